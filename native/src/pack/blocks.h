// The block formats of GGUF files, decoded to codes and scales without loss.
//
// A block is 32 columns (one step) or 256 (eight steps) of one row. Field order of each format: see the drawings; `d` and
// `dmin` are IEEE halves, kept as bits. Each format says
//   header(p, h)         scales and minima of the block at p
//   quad(p, step, q)     the codes of columns 32 * step + 4 * q .. + 3, column 4 * q + i in byte i (little-endian)
// Codes are as stored in the packed matrix: unsigned and not centred, signed for 8 bits. Four codes in one word are moved
// at the price of one, and the formats keep neighbouring columns in neighbouring bytes just as the panels do.
#pragma once
#include <cstdint>
#include <cstring>

namespace headrace {
namespace pack {

struct Header {
    uint16_t d, dmin;           // scale (super-scale) and minimum (super-minimum)
    uint8_t sub[16], sub_min[16];
};

constexpr uint32_t kOnes = 0x01010101;
constexpr uint32_t kPairs = 0x03030303;
constexpr uint32_t kNibbles = 0x0f0f0f0f;

inline uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
inline uint32_t read_u32(const uint8_t *p) { uint32_t v; std::memcpy(&v, p, 4); return v; }

// 16 bytes of nibbles: columns 0..15 low, 16..31 high.
inline uint32_t nibble_quad(const uint8_t *p, int q) { return read_u32(p + 4 * (q & 3)) >> (q & 4) & kNibbles; }

// 32 bits, one per column: those of quad q, each at bit 4 of its byte.
inline uint32_t fifth_bits(const uint8_t *p, int q) {
    const uint32_t nibble = read_u32(p) >> (4 * q) & 15;
    return (nibble * 0x00204081u & kOnes) << 4;     // bit i goes to bit i + 7 i = 8 i
}

// 32 bytes of bit planes: plane of the step, one bit per column.
inline uint32_t plane_quad(const uint8_t *p, int step, int q) { return read_u32(p + 4 * q) >> step & kOnes; }

// Per 128 columns 32 bytes of four 2-bit planes.
inline uint32_t pair_quad(const uint8_t *p, int step, int q) {
    return read_u32(p + 32 * (step >> 2) + 4 * q) >> (2 * (step & 3)) & kPairs;
}

// Per 64 columns 32 bytes of nibbles: low = first 32 columns.
inline uint32_t half_quad(const uint8_t *p, int step, int q) {
    return read_u32(p + 32 * (step >> 1) + 4 * q) >> (4 * (step & 1)) & kNibbles;
}

// d | 16 bytes of nibbles
struct Q4_0 {
    static constexpr int COLUMNS = 32, BYTES = 18;
    static void header(const uint8_t *p, Header *h) { h->d = read_u16(p); }
    static uint32_t quad(const uint8_t *p, int, int q) { return nibble_quad(p + 2, q); }
};

// d | minimum | 16 bytes of nibbles
struct Q4_1 {
    static constexpr int COLUMNS = 32, BYTES = 20;
    static void header(const uint8_t *p, Header *h) {
        h->d = read_u16(p);
        h->dmin = read_u16(p + 2);
    }
    static uint32_t quad(const uint8_t *p, int, int q) { return nibble_quad(p + 4, q); }
};

// d | 32 fifth bits | 16 bytes of nibbles
struct Q5_0 {
    static constexpr int COLUMNS = 32, BYTES = 22;
    static void header(const uint8_t *p, Header *h) { h->d = read_u16(p); }
    static uint32_t quad(const uint8_t *p, int, int q) { return nibble_quad(p + 6, q) | fifth_bits(p + 2, q); }
};

// d | minimum | 32 fifth bits | 16 bytes of nibbles
struct Q5_1 {
    static constexpr int COLUMNS = 32, BYTES = 24;
    static void header(const uint8_t *p, Header *h) { Q4_1::header(p, h); }
    static uint32_t quad(const uint8_t *p, int, int q) { return nibble_quad(p + 8, q) | fifth_bits(p + 4, q); }
};

// d | 32 signed bytes
struct Q8_0 {
    static constexpr int COLUMNS = 32, BYTES = 34;
    static void header(const uint8_t *p, Header *h) { h->d = read_u16(p); }
    static uint32_t quad(const uint8_t *p, int, int q) { return read_u32(p + 2 + 4 * q); }
};

// 16 x (sub-scale | sub-minimum << 4) | 64 bytes: per 128 columns, 32 bytes of four 2-bit planes | d | dmin
struct Q2_K {
    static constexpr int COLUMNS = 256, BYTES = 84;
    static void header(const uint8_t *p, Header *h) {
        for (int g = 0; g < 16; g++) {
            h->sub[g] = p[g] & 15;
            h->sub_min[g] = p[g] >> 4;
        }
        h->d = read_u16(p + 80);
        h->dmin = read_u16(p + 82);
    }
    static uint32_t quad(const uint8_t *p, int step, int q) { return pair_quad(p + 16, step, q); }
};

// 32 bytes: third bit of column i = bit i / 32 of byte i % 32 | 64 bytes of 2-bit planes as above | 12 bytes of 6-bit
// sub-scales (8 bytes of low nibbles, 4 of high pairs), offset by 32 | d. The value is code - 4.
struct Q3_K {
    static constexpr int COLUMNS = 256, BYTES = 110;
    static void header(const uint8_t *p, Header *h) {
        const uint8_t *s = p + 96;
        for (int g = 0; g < 16; g++) {
            const int low = s[g % 8] >> (g / 8 * 4) & 15, high = s[8 + g % 4] >> (g / 4 * 2) & 3;
            h->sub[g] = (uint8_t)(int8_t)((low | high << 4) - 32);
        }
        h->d = read_u16(p + 108);
    }
    static uint32_t quad(const uint8_t *p, int step, int q) {
        return pair_quad(p + 32, step, q) | plane_quad(p, step, q) << 2;
    }
};

// 12 bytes: 8 sub-scales and 8 sub-minima of 6 bits. Groups 0..3 in the low six bits of bytes 0..3 and 4..7; of groups
// 4..7 four bits are in bytes 8..11 and two in the top of bytes 0..7.
inline void read_sub_pairs(const uint8_t *s, Header *h) {
    for (int g = 0; g < 4; g++) {
        h->sub[g] = s[g] & 63;
        h->sub_min[g] = s[4 + g] & 63;
        h->sub[4 + g] = (uint8_t)((s[8 + g] & 15) | (s[g] >> 6) << 4);
        h->sub_min[4 + g] = (uint8_t)(s[8 + g] >> 4 | (s[4 + g] >> 6) << 4);
    }
}

// d | dmin | 12 bytes of sub-scales and sub-minima | per 64 columns 32 bytes of nibbles: low = first 32 columns
struct Q4_K {
    static constexpr int COLUMNS = 256, BYTES = 144;
    static void header(const uint8_t *p, Header *h) {
        h->d = read_u16(p);
        h->dmin = read_u16(p + 2);
        read_sub_pairs(p + 4, h);
    }
    static uint32_t quad(const uint8_t *p, int step, int q) { return half_quad(p + 16, step, q); }
};

// as Q4_K, with 32 bytes of fifth bits (bit i / 32 of byte i % 32) before the nibbles
struct Q5_K {
    static constexpr int COLUMNS = 256, BYTES = 176;
    static void header(const uint8_t *p, Header *h) { Q4_K::header(p, h); }
    static uint32_t quad(const uint8_t *p, int step, int q) {
        return half_quad(p + 48, step, q) | plane_quad(p + 16, step, q) << 4;
    }
};

// 128 bytes: per 128 columns 64 bytes of nibbles | 64 bytes: per 128 columns 32 bytes of four 2-bit planes (high bits) |
// 16 signed sub-scales | d
struct Q6_K {
    static constexpr int COLUMNS = 256, BYTES = 210;
    static void header(const uint8_t *p, Header *h) {
        std::memcpy(h->sub, p + 192, 16);
        h->d = read_u16(p + 208);
    }
    static uint32_t quad(const uint8_t *p, int step, int q) {
        const uint8_t *low = p + 64 * (step >> 2) + 32 * (step & 1) + 4 * q;
        return (read_u32(low) >> (2 * (step & 2)) & kNibbles) | pair_quad(p + 128, step, q) << 4;
    }
};

}  // namespace pack
}  // namespace headrace
