// 16-bit codes of a head: x[d] is about code[d] * scale, the scale a bfloat16. The rule: KVLayer in headrace/kernels.h.
#pragma once
#include "kernels/attention_plan.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kNotFinite = 0x7f800000;   // bits of +infinity
constexpr int32_t kTiny = 0x0d800000;        // bits of 2^-100
constexpr uint16_t kBfloatNaN = 0x7fc0;
constexpr float kCodeNorm = 46300.0f;        // Euclidean norm of the codes of a key or query
constexpr float kKeyCode = 32766.0f;         // largest code of a key or query, less one for the rounding of its factor
constexpr float kValueCode = 16383.0f;       // largest code of a value

HR_INLINE uint16_t bfloat_up(float x) { return (uint16_t)((float_bits(x) + 0xffffu) >> 16); }

// Bits of the largest |x| of `dims` values (a multiple of 8): as integers, which puts NaN above infinity above all.
HR_INLINE int32_t largest_bits(const float *x, int32_t dims) {
    I8 top8 = splat((int32_t)0);
    for (int32_t d = 0; d < dims; d += 8) top8 = max(top8, as_int(abs(load(x + d))));
    int32_t tops[8], top = 0;
    store(tops, top8);
    for (int32_t i = 0; i < 8; i++) top = greatest(top, tops[i]);
    return top;
}

// codes[d] of `dims` values as 32-bit integers; returns the scale. norm: codes have a norm of at most kCodeNorm and are at
// most kKeyCode; otherwise they are at most kValueCode.
HR_INLINE uint16_t make_codes(const float *x, int32_t dims, bool norm, int32_t *codes) {
    const int32_t top = largest_bits(x, dims);
    if (top < kTiny || top >= kNotFinite) {
        for (int32_t d = 0; d < dims; d += 8) store(codes + d, splat((int32_t)0));
        return top < kTiny ? 0 : kBfloatNaN;
    }
    const float largest = bits_float((uint32_t)top);
    float step = 1.0f / kValueCode;
    if (norm) {                                // of x / largest: its squares neither overflow nor vanish
        F8 squares = zero();
        for (int32_t d = 0; d < dims; d += 8) {
            const F8 y = load(x + d) / splat(largest);
            squares = squares + y * y;
        }
        step = greatest(__builtin_sqrtf(sum(squares)) * (1.0f / kCodeNorm), 1.0f / kKeyCode);
    }
    const uint16_t scale = bfloat_up(largest * step);
    const F8 factor = splat(1.0f / bfloat_to_float(scale));
    for (int32_t d = 0; d < dims; d += 8) store(codes + d, to_int(load(x + d) * factor));
    return scale;
}

}  // namespace HR_ISA
}  // namespace headrace
