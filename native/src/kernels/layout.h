// How a quantized weight matrix lies in memory: the compile-time description of each layout and scalar access to it.
//
// A panel is 16 output rows over the whole of K, a run of blocks; a block is a header of scales and then the codes of
// STEPS steps; a step is 16 rows x 32 columns, cut into 8 quads of 4 columns.
//
//   panel:  | header | codes of step 0 | ... | codes of step STEPS-1 | header | codes ...
//
//   codes:  byte 4 * row + k % 4 of a 64-byte plane belongs to (row, k); a dword lane is one output row, so a dot product
//           needs no horizontal sum, and one broadcast of 4 activations serves all 16 rows.
//     8 bits        plane q            = the bytes of quad q (signed)
//     4 low bits    plane q % 4        = quad q in the low (q < 4) or high nibble
//     2 low bits    plane q % 2        = quad q at bit 2 * (q / 2)
//     high bit      one plane          = quad q at bit q                          (5 and 3 bits)
//     high 2 bits   plane q / 4        = quad q at bit 2 * (q % 4)                (6 bits)
//
//   header, plain layouts (STEPS = 1, groups of 32):  f16 scale[16] | f16 minimum[16] if MIN
//   header, K layouts (STEPS = 8, 256 columns):       f16 scale[16] | f16 minimum[16] if MIN | sub-scales | sub-minima
//     sub-scales are one byte [group][16 rows]; Q2K keeps its 4-bit sub-scale and sub-minimum in one byte.
//
// Value of a weight: d * (code - ZERO) + m with d and m of its group:
//   plain     d = scale                m = minimum
//   K         d = scale * sub-scale    m = -(minimum * sub-minimum)         both products are exact in fp32
#pragma once
#include "headrace/kernels.h"
#include "simd/simd.h"

namespace headrace {
namespace HR_ISA {

constexpr int kRows = 16;        // output rows of a panel
constexpr int kStep = 32;        // columns of a step
constexpr int kSuper = 256;      // columns of a block of the K layouts

template <int Bits, int Group, bool Min, bool Super, int Zero> struct Packing {
    static constexpr int BITS = Bits, GROUP = Group, ZERO = Zero;
    static constexpr bool MIN = Min, SUPER = Super;
    static constexpr int GROUPS = kStep / Group;                    // groups per step
    static constexpr int STEPS = Super ? kSuper / kStep : 1;        // steps per block
    static constexpr int CODE_BYTES = 64 * Bits;                    // per step
    static constexpr int LOW_BYTES = Bits == 8 ? 512 : Bits >= 4 ? 256 : 128;
    static constexpr bool NIBBLE_PAIR = Super && Bits == 2;         // sub-scale | sub-minimum << 4
    static constexpr int SUBS = Super ? GROUPS * STEPS * kRows : 0; // bytes of one table of sub-scales
    static constexpr int SUPER_BYTES = 2 * kRows * (1 + Min);       // f16 scales (and minima)
    static constexpr int HEADER_BYTES = SUPER_BYTES + SUBS * (Min && !NIBBLE_PAIR ? 2 : 1);
    static constexpr int BLOCK_BYTES = HEADER_BYTES + STEPS * CODE_BYTES;
    static constexpr int BLOCK_COLUMNS = STEPS * kStep;
};

template <Layout L> struct Format;
template <> struct Format<Layout::Q8> : Packing<8, 32, false, false, 0> {};
template <> struct Format<Layout::Q4> : Packing<4, 32, false, false, 8> {};
template <> struct Format<Layout::Q4M> : Packing<4, 32, true, false, 0> {};
template <> struct Format<Layout::Q5> : Packing<5, 32, false, false, 16> {};
template <> struct Format<Layout::Q5M> : Packing<5, 32, true, false, 0> {};
template <> struct Format<Layout::Q6K> : Packing<6, 16, false, true, 32> {};
template <> struct Format<Layout::Q4K> : Packing<4, 32, true, true, 0> {};
template <> struct Format<Layout::Q5K> : Packing<5, 32, true, true, 0> {};
template <> struct Format<Layout::Q3K> : Packing<3, 16, false, true, 4> {};
template <> struct Format<Layout::Q2K> : Packing<2, 16, true, true, 0> {};

// Calls f(Format<L>{}) for a quantized layout; returns false for a float layout.
template <class Fn> HR_INLINE bool with_format(Layout layout, Fn &&f) {
    switch (layout) {
        case Layout::Q8: f(Format<Layout::Q8>{}); return true;
        case Layout::Q4: f(Format<Layout::Q4>{}); return true;
        case Layout::Q4M: f(Format<Layout::Q4M>{}); return true;
        case Layout::Q5: f(Format<Layout::Q5>{}); return true;
        case Layout::Q5M: f(Format<Layout::Q5M>{}); return true;
        case Layout::Q6K: f(Format<Layout::Q6K>{}); return true;
        case Layout::Q4K: f(Format<Layout::Q4K>{}); return true;
        case Layout::Q5K: f(Format<Layout::Q5K>{}); return true;
        case Layout::Q3K: f(Format<Layout::Q3K>{}); return true;
        case Layout::Q2K: f(Format<Layout::Q2K>{}); return true;
        default: return false;
    }
}

// Code of (row, k), k < 32, in the codes of one step; 8-bit codes come back as signed values.
template <class F> HR_INLINE int get_code(const uint8_t *codes, int row, int k) {
    const int q = k >> 2, at = 4 * row + (k & 3);
    if constexpr (F::BITS == 8) return (int8_t)codes[64 * q + at];
    int code;
    if constexpr (F::BITS >= 4) code = codes[64 * (q & 3) + at] >> (4 * (q >> 2)) & 15;
    else code = codes[64 * (q & 1) + at] >> (2 * (q >> 1)) & 3;
    const uint8_t *high = codes + F::LOW_BYTES;
    if constexpr (F::BITS == 5 || F::BITS == 3) code |= (high[at] >> q & 1) << (F::BITS - 1);
    if constexpr (F::BITS == 6) code |= (high[64 * (q >> 2) + at] >> (2 * (q & 3)) & 3) << 4;
    return code;
}

HR_INLINE uint16_t load_u16(const uint8_t *p) { uint16_t h; std::memcpy(&h, p, 2); return h; }

// Scale d of group g (counted within the block) of a row.
template <class F> HR_INLINE float get_scale(const uint8_t *block, int g, int row) {
    const float d = half_to_float(load_u16(block + 2 * row));
    if constexpr (!F::SUPER) return d;
    const uint8_t sub = block[F::SUPER_BYTES + kRows * g + row];
    if constexpr (F::NIBBLE_PAIR) return d * (float)(sub & 15);
    return F::MIN ? d * (float)sub : d * (float)(int8_t)sub;
}

// Minimum m of group g of a row, as it is added; only for layouts with MIN.
template <class F> HR_INLINE float get_minimum(const uint8_t *block, int g, int row) {
    const float m = half_to_float(load_u16(block + 2 * kRows + 2 * row));
    if constexpr (!F::SUPER) return m;
    const uint8_t *subs = block + F::SUPER_BYTES;
    if constexpr (F::NIBBLE_PAIR) return -(m * (float)(subs[kRows * g + row] >> 4));
    return -(m * (float)subs[F::SUBS + kRows * g + row]);
}

// Scales (and minima) of group g for rows 8h .. 8h+7 as floats.
template <class F> HR_INLINE F8 scales8(const uint8_t *block, int g, int h) {
    const F8 d = load_half(block + 16 * h);
    if constexpr (!F::SUPER) return d;
    const uint8_t *sub = block + F::SUPER_BYTES + kRows * g + 8 * h;
    if constexpr (F::NIBBLE_PAIR) return d * to_float(widen_u8(sub) & splat((int32_t)15));
    if constexpr (F::MIN) return d * to_float(widen_u8(sub));
    else return d * to_float(widen_i8(sub));
}
template <class F> HR_INLINE F8 minima8(const uint8_t *block, int g, int h) {
    const F8 m = load_half(block + 2 * kRows + 16 * h);
    if constexpr (!F::SUPER) return m;
    const uint8_t *sub = block + F::SUPER_BYTES + kRows * g + 8 * h;
    if constexpr (F::NIBBLE_PAIR) return neg(m * to_float(shift_right<4>(widen_u8(sub))));
    else return neg(m * to_float(widen_u8(sub + F::SUBS)));
}

HR_INLINE size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

}  // namespace HR_ISA
}  // namespace headrace
