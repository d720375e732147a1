// The block formats of GGUF files, decoded to codes and scales without loss.
//
// `Block` is one block (32 or 256 columns of one row) in plain form. Field order of each format: see the drawings; `d` and
// `dmin` are IEEE halves, kept as bits.
#pragma once
#include <cstdint>
#include <cstring>

namespace headrace {
namespace pack {

struct Block {
    int8_t code[256];           // as stored in the packed matrix: unsigned and not centred, signed for 8 bits
    uint16_t d, dmin;           // scale (super-scale) and minimum (super-minimum)
    uint8_t sub[16], sub_min[16];
};

inline uint16_t read_u16(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
inline uint32_t read_u32(const uint8_t *p) { return (uint32_t)read_u16(p) | (uint32_t)read_u16(p + 2) << 16; }

// 16 bytes of nibbles: columns 0..15 low, 16..31 high.
inline void read_nibbles(const uint8_t *p, int8_t *code) {
    for (int i = 0; i < 16; i++) {
        code[i] = (int8_t)(p[i] & 15);
        code[16 + i] = (int8_t)(p[i] >> 4);
    }
}

inline void read_fifth_bits(const uint8_t *p, int8_t *code) {
    const uint32_t bits = read_u32(p);
    for (int i = 0; i < 32; i++) code[i] = (int8_t)(code[i] | (bits >> i & 1) << 4);
}

// d | 16 bytes of nibbles
struct Q4_0 {
    static constexpr int COLUMNS = 32, BYTES = 18;
    static void read(const uint8_t *p, Block *b) { b->d = read_u16(p); read_nibbles(p + 2, b->code); }
};

// d | minimum | 16 bytes of nibbles
struct Q4_1 {
    static constexpr int COLUMNS = 32, BYTES = 20;
    static void read(const uint8_t *p, Block *b) {
        b->d = read_u16(p);
        b->dmin = read_u16(p + 2);
        read_nibbles(p + 4, b->code);
    }
};

// d | 32 fifth bits | 16 bytes of nibbles
struct Q5_0 {
    static constexpr int COLUMNS = 32, BYTES = 22;
    static void read(const uint8_t *p, Block *b) {
        b->d = read_u16(p);
        read_nibbles(p + 6, b->code);
        read_fifth_bits(p + 2, b->code);
    }
};

// d | minimum | 32 fifth bits | 16 bytes of nibbles
struct Q5_1 {
    static constexpr int COLUMNS = 32, BYTES = 24;
    static void read(const uint8_t *p, Block *b) {
        b->d = read_u16(p);
        b->dmin = read_u16(p + 2);
        read_nibbles(p + 8, b->code);
        read_fifth_bits(p + 4, b->code);
    }
};

// d | 32 signed bytes
struct Q8_0 {
    static constexpr int COLUMNS = 32, BYTES = 34;
    static void read(const uint8_t *p, Block *b) { b->d = read_u16(p); std::memcpy(b->code, p + 2, 32); }
};

// 16 x (sub-scale | sub-minimum << 4) | 64 bytes: per 128 columns, 32 bytes of four 2-bit planes | d | dmin
struct Q2_K {
    static constexpr int COLUMNS = 256, BYTES = 84;
    static void read(const uint8_t *p, Block *b) {
        for (int g = 0; g < 16; g++) {
            b->sub[g] = p[g] & 15;
            b->sub_min[g] = p[g] >> 4;
        }
        for (int i = 0; i < 256; i++) b->code[i] = (int8_t)(p[16 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3);
        b->d = read_u16(p + 80);
        b->dmin = read_u16(p + 82);
    }
};

// 32 bytes: third bit of column i = bit i / 32 of byte i % 32 | 64 bytes of 2-bit planes as above | 12 bytes of 6-bit
// sub-scales (8 bytes of low nibbles, 4 of high pairs), offset by 32 | d
struct Q3_K {
    static constexpr int COLUMNS = 256, BYTES = 110;
    static void read(const uint8_t *p, Block *b) {
        for (int i = 0; i < 256; i++) {
            const int low = p[32 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3, high = p[i % 32] >> (i / 32) & 1;
            b->code[i] = (int8_t)(low | high << 2);   // the value is code - 4
        }
        const uint8_t *s = p + 96;
        for (int g = 0; g < 16; g++) {
            const int low = s[g % 8] >> (g / 8 * 4) & 15, high = s[8 + g % 4] >> (g / 4 * 2) & 3;
            b->sub[g] = (uint8_t)(int8_t)((low | high << 4) - 32);
        }
        b->d = read_u16(p + 108);
    }
};

// 12 bytes: 8 sub-scales and 8 sub-minima of 6 bits. Groups 0..3 in the low six bits of bytes 0..3 and 4..7; of groups
// 4..7 four bits are in bytes 8..11 and two in the top of bytes 0..7.
inline void read_sub_pairs(const uint8_t *s, Block *b) {
    for (int g = 0; g < 4; g++) {
        b->sub[g] = s[g] & 63;
        b->sub_min[g] = s[4 + g] & 63;
        b->sub[4 + g] = (uint8_t)((s[8 + g] & 15) | (s[g] >> 6) << 4);
        b->sub_min[4 + g] = (uint8_t)(s[8 + g] >> 4 | (s[4 + g] >> 6) << 4);
    }
}

// d | dmin | 12 bytes of sub-scales and sub-minima | per 64 columns 32 bytes of nibbles: low = first 32 columns
struct Q4_K {
    static constexpr int COLUMNS = 256, BYTES = 144;
    static void read(const uint8_t *p, Block *b) {
        b->d = read_u16(p);
        b->dmin = read_u16(p + 2);
        read_sub_pairs(p + 4, b);
        for (int i = 0; i < 256; i++) b->code[i] = (int8_t)(p[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15);
    }
};

// as Q4_K, with 32 bytes of fifth bits (bit i / 32 of byte i % 32) before the nibbles
struct Q5_K {
    static constexpr int COLUMNS = 256, BYTES = 176;
    static void read(const uint8_t *p, Block *b) {
        b->d = read_u16(p);
        b->dmin = read_u16(p + 2);
        read_sub_pairs(p + 4, b);
        for (int i = 0; i < 256; i++) {
            const int low = p[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 * 4) & 15, high = p[16 + i % 32] >> (i / 32) & 1;
            b->code[i] = (int8_t)(low | high << 4);
        }
    }
};

// 128 bytes: per 128 columns 64 bytes of nibbles | 64 bytes: per 128 columns 32 bytes of four 2-bit planes (high bits) |
// 16 signed sub-scales | d
struct Q6_K {
    static constexpr int COLUMNS = 256, BYTES = 210;
    static void read(const uint8_t *p, Block *b) {
        for (int i = 0; i < 256; i++) {
            const int low = p[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
            const int high = p[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
            b->code[i] = (int8_t)(low | high << 4);
        }
        std::memcpy(b->sub, p + 192, 16);
        b->d = read_u16(p + 208);
    }
};

}  // namespace pack
}  // namespace headrace
