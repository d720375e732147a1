// Elementary functions on eight lanes with fixed arithmetic, and loads and stores of fewer than eight floats.
//
// Tails are computed by the vector code on padded lanes, so an element's bits never depend on its place in a vector.
#pragma once
#include "simd/simd.h"

namespace headrace {
namespace HR_ISA {

// The first n < 8 floats; the other lanes are zero.
HR_INLINE F8 load_part(const float *p, int32_t n) {
    float v[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    for (int32_t i = 0; i < n; i++) v[i] = p[i];
    return load(v);
}

HR_INLINE void store_part(float *p, F8 a, int32_t n) {
    float v[8];
    store(v, a);
    for (int32_t i = 0; i < n; i++) p[i] = v[i];
}

HR_INLINE I8 lane_index() {
    static const int32_t index[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    return load(index);
}

// 2^f on [-0.5, 0.5]: degree 6, relative error 8e-8 (minimax, own fit).
HR_INLINE F8 exp2_series(F8 f) {
    F8 p = fma(splat(0x1.41fbbcp-13f), f, splat(0x1.5f3e54p-10f));
    p = fma(p, f, splat(0x1.3b2d4cp-7f));
    p = fma(p, f, splat(0x1.c6aee8p-5f));
    p = fma(p, f, splat(0x1.ebfbdcp-3f));
    p = fma(p, f, splat(0x1.62e430p-1f));
    return fma(p, f, splat(1.0f));
}

// 2^x for x <= 0; exactly 1 at 0; 0 below -126.
HR_INLINE F8 exp2_nonpositive(F8 x) {
    const M8 tiny = less(x, splat(-126.0f));
    const F8 n = round(x), f = x - n;
    const F8 p = exp2_series(f);
    const F8 scaled = as_float(as_int(p) + shift_left<23>(to_int(n)));
    return select(tiny, zero(), scaled);
}

constexpr float kLog2E = 1.44269504f;
constexpr float kLn2 = 0.69314718f;

// e^x for x <= 0. The product x log2(e) is split in two, so that the error does not grow with |x|.
HR_INLINE F8 exp_nonpositive(F8 x) {
    const M8 tiny = less(x, splat(-87.0f));
    const F8 n = round(x * splat(kLog2E));
    F8 r = fnma(n, splat(0x1.62e400p-1f), x);         // ln 2 = high part (15 bits: n * high is exact) ...
    r = fnma(n, splat(0x1.7f7d1cp-20f), r);           // ... + low part
    const F8 f = r * splat(kLog2E);
    const F8 p = exp2_series(f);
    const F8 scaled = as_float(as_int(p) + shift_left<23>(to_int(n)));
    return zero_where(tiny, scaled);
}

// 1 / (1 + e^-x), without overflow at either end.
HR_INLINE F8 sigmoid(F8 x) {
    const F8 e = exp_nonpositive(neg(abs(x)));
    return select(less(x, zero()), e, splat(1.0f)) / (e + splat(1.0f));
}

// tanh: odd polynomial below 0.625 (Cephes tanhf), (1 - e) / (1 + e) with e = e^-2|x| above.
HR_INLINE F8 tanh(F8 x) {
    const F8 a = abs(x), z = x * x;
    F8 p = fma(splat(-5.70498872745e-3f), z, splat(2.06390887954e-2f));
    p = fma(p, z, splat(-5.37397155531e-2f));
    p = fma(p, z, splat(1.33314422036e-1f));
    p = fma(p, z, splat(-3.33332819422e-1f));
    const F8 small = fma(p * z, x, x);
    const F8 e = exp_nonpositive(splat(-2.0f) * a);
    const F8 large = (splat(1.0f) - e) / (splat(1.0f) + e);
    return select(less(a, splat(0.625f)), small, select(less(x, zero()), neg(large), large));
}

// ln(m 2^e) for f = m - 1 with m in [sqrt(1/2), sqrt(2)) (Cephes logf); accurate relative to the result for e = 0.
HR_INLINE F8 log_parts(F8 f, F8 e) {
    const F8 z = f * f;
    F8 p = fma(splat(7.0376836292e-2f), f, splat(-1.1514610310e-1f));
    p = fma(p, f, splat(1.1676998740e-1f));
    p = fma(p, f, splat(-1.2420140846e-1f));
    p = fma(p, f, splat(1.4249322787e-1f));
    p = fma(p, f, splat(-1.6668057665e-1f));
    p = fma(p, f, splat(2.0000714765e-1f));
    p = fma(p, f, splat(-2.4999993993e-1f));
    p = fma(p, f, splat(3.3333331174e-1f));
    F8 y = p * f * z;
    y = fma(e, splat(-2.12194440e-4f), y);            // ln 2 = 0.693359375 - 2.12194440e-4
    y = fnma(splat(0.5f), z, y) + f;
    return fma(e, splat(0.693359375f), y);
}

// Exponent of x relative to [sqrt(1/2), sqrt(2)), x positive and normal.
HR_INLINE I8 log_exponent(F8 x) { return shift_right<23>(as_int(x) - splat((int32_t)0x3f3504f3)); }

// ln x for positive normal x.
HR_INLINE F8 log(F8 x) {
    const I8 e = log_exponent(x);
    return log_parts(as_float(as_int(x) - shift_left<23>(e)) - splat(1.0f), to_float(e));
}

}  // namespace HR_ISA
}  // namespace headrace
