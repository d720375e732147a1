// Quantize float rows to int8: symmetric, groups of 32, round to nearest even.
//
// Per group: top = max |x|; scale = top / 127; q = rint(x * (127 / top)), so |q| <= 127 (never -128).
//  - A group with a NaN or an infinity gets q = 0 and scale = NaN: every output it touches is NaN, and the sampler
//    reports it. The maximum is taken over the bit patterns of |x| as integers, which orders NaN above infinity above all.
//  - A group whose top is below 2^-100 becomes zero: 127 / top would overflow.
// All instruction sets do the same IEEE operations (one division each, one multiplication, one rounding): same bits.
//
// Or round them to the nearest bfloat16, ties to even, for the layout BF16Pairs; |x| < 2^-56 becomes zero.
#include "kernels/decl.h"
#include "kernels/quantize_block.h"
#include "simd/simd.h"

namespace headrace {
namespace HR_ISA {

namespace {

constexpr int32_t kNotFinite = 0x7f800000;   // bits of +infinity
constexpr int32_t kTiny = 0x0d800000;        // bits of 2^-100

// Sums of the quantized values of one group: [half of the group][k % 4 in {0, 1} or {2, 3}].
struct LaneSums { int32_t lane[2][2]; };

HR_INLINE int32_t top_bits(I8 a) {
    int32_t v[8];
    store(v, a);
    int32_t top = v[0];
    for (int i = 1; i < 8; i++) top = greatest(top, v[i]);
    return top;
}

HR_INLINE LaneSums quantize_group(const F8 x[4], float factor, int8_t *q) {
    LaneSums sums = {{{0, 0}, {0, 0}}};
    for (int i = 0; i < 4; i++) {
        int32_t rounded[8];
        store(rounded, to_int(x[i] * splat(factor)));
        for (int j = 0; j < 8; j++) {
            q[8 * i + j] = (int8_t)rounded[j];
            sums.lane[i / 2][j / 2 & 1] += rounded[j];
        }
    }
    return sums;
}

// Start value of integer sums, from the sums of columns k % 4 < 2 and k % 4 >= 2: one 32-bit lane, or its two 16-bit lanes.
HR_INLINE int32_t start_value(int32_t low, int32_t high) {
#if defined(HR_SIMD_AVX512)
    return -8 * (low + high);
#else
    return (int32_t)((uint32_t)(-8 * high) << 16 | (uint16_t)(-8 * low));
#endif
}

// Group g of a row of `groups`.
HR_INLINE void quantize_one(const float *x, const QuantRows *out, size_t row, size_t groups, size_t g) {
    const size_t at = row * groups + g;
    int8_t *q = out->q + 32 * at;
    F8 v[4];
    I8 top8 = splat((int32_t)0);
    for (int i = 0; i < 4; i++) {
        v[i] = load(x + 32 * g + 8 * i);
        top8 = max(top8, as_int(abs(v[i])));
    }
    const int32_t bits = top_bits(top8);
    float scale = 0.0f;
    LaneSums sums = {{{0, 0}, {0, 0}}};
    if (bits >= kTiny && bits < kNotFinite) {
        const float top = bits_float((uint32_t)bits);
        scale = top / 127.0f;
        sums = quantize_group(v, 127.0f / top, q);
    } else {
        std::memset(q, 0, 32);
        if (bits >= kNotFinite) scale = bits_float(0x7fc00000u);
    }
    const int32_t half0 = sums.lane[0][0] + sums.lane[0][1], half1 = sums.lane[1][0] + sums.lane[1][1];
    out->scale[at] = scale;
    out->scaled_sum[at] = scale * (float)(half0 + half1);
    out->scaled_sum16[2 * at] = scale * (float)half0;
    out->scaled_sum16[2 * at + 1] = scale * (float)half1;
    out->start[at] = start_value(sums.lane[0][0] + sums.lane[1][0], sums.lane[0][1] + sums.lane[1][1]);
    out->start16[2 * at] = start_value(sums.lane[0][0], sums.lane[0][1]);
    out->start16[2 * at + 1] = start_value(sums.lane[1][0], sums.lane[1][1]);
}

#if defined(HR_SIMD_AVX2)
// Groups [g, g + count) of a row; false: there is one that is not as usual, nothing is written.
HR_INLINE bool quantize_groups(const float *x, const QuantRows *out, size_t at, size_t g, int count) {
    const BlockOutput all = {out->q + 32 * at, out->scale + at, out->scaled_sum + at, out->scaled_sum16 + 2 * at, out->start + at,
                             out->start16 + 2 * at};
    if (count == kBlockGroups) return quantize_block<true>(x + 32 * g, count, kTiny, kNotFinite, all);
    return quantize_block<false>(x + 32 * g, count, kTiny, kNotFinite, all);
}
#endif

HR_INLINE void quantize_row(const float *x, const QuantRows *out, size_t row) {
    const size_t groups = (size_t)out->k / 32;
#if defined(HR_SIMD_AVX2)
    const size_t count = groups < kBlockGroups ? groups : kBlockGroups;
    for (size_t next = 0; next < groups; next += count) {
        const size_t g = next + count > groups ? groups - count : next;      // the last block may overlap the one before
        if (quantize_groups(x, out, row * groups + g, g, (int)count)) continue;
        for (size_t i = g; i < g + count; i++) quantize_one(x, out, row, groups, i);
    }
#else
    for (size_t g = 0; g < groups; g++) quantize_one(x, out, row, groups, g);
#endif
}

// x as the nearest bfloat16, in the upper half of a float.
HR_INLINE uint32_t rounded_bits(float x) {
    const uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffffu;
    const uint32_t nearest = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    return magnitude > 0x7f800000u ? 0x7fc00000u : magnitude < float_bits(kLeastBfloat) ? 0 : nearest;
}

HR_INLINE void round_row(const float *x, int k, float *rounded) {
#if defined(HR_SIMD_AVX512BF16)
    for (int i = 0; i < k / 2; i++) rounded[i] = bits_float(rounded_bits(x[2 * i]) >> 16 | rounded_bits(x[2 * i + 1]));
#else
    for (int i = 0; i < k; i++) rounded[i] = bits_float(rounded_bits(x[i]));
#endif
}

}  // namespace

void quantize_rows(const float *x, size_t ldx, const QuantRows *out, int32_t row_begin, int32_t row_end) {
    for (int32_t row = row_begin; row < row_end; row++) {
        if (out->q) quantize_row(x + (size_t)row * ldx, out, (size_t)row);
        if (out->rounded) round_row(x + (size_t)row * ldx, out->k, out->rounded + (size_t)row * rounded_stride(out->k));
    }
}

}  // namespace HR_ISA
}  // namespace headrace
