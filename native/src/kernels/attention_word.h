// The vector words of attention: F8 everywhere, and Wide (16 floats) where AVX-512 is built in.
//
// An element's bits do not depend on the word that holds it: sums over tokens or dims are chains per lane, and the one
// horizontal sum (of weights) goes through eight lanes whatever the word.
#pragma once
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {

#if defined(HR_SIMD_AVX512)
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"  // g++ 12: the undefined operand of its own extract intrinsics
#endif

struct Wide { __m512 v; };
using Word = Wide;

HR_INLINE Wide fma(Wide a, Wide b, Wide c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HR_INLINE Wide operator-(Wide a, Wide b) { return {_mm512_sub_ps(a.v, b.v)}; }
HR_INLINE Wide operator*(Wide a, Wide b) { return {_mm512_mul_ps(a.v, b.v)}; }
HR_INLINE Wide max(Wide a, Wide b) { return {_mm512_max_ps(a.v, b.v)}; }
HR_INLINE void store(float *p, Wide a) { _mm512_storeu_ps(p, a.v); }
HR_INLINE F8 low(Wide a) { return {_mm512_castps512_ps256(a.v)}; }
HR_INLINE F8 high(Wide a) { return {_mm512_extractf32x8_ps(a.v, 1)}; }

template <class V> HR_INLINE V load_as(const float *p) {
    if constexpr (sizeof(V) == sizeof(F8)) return load(p);
    else return V{_mm512_loadu_ps(p)};
}
template <class V> HR_INLINE V splat_as(float x) {
    if constexpr (sizeof(V) == sizeof(F8)) return splat(x);
    else return V{_mm512_set1_ps(x)};
}

HR_INLINE Wide exp2_series(Wide f) {
    Wide p = fma(splat_as<Wide>(0x1.41fbbcp-13f), f, splat_as<Wide>(0x1.5f3e54p-10f));
    p = fma(p, f, splat_as<Wide>(0x1.3b2d4cp-7f));
    p = fma(p, f, splat_as<Wide>(0x1.c6aee8p-5f));
    p = fma(p, f, splat_as<Wide>(0x1.ebfbdcp-3f));
    p = fma(p, f, splat_as<Wide>(0x1.62e430p-1f));
    return fma(p, f, splat_as<Wide>(1.0f));
}

// The same bits as on eight lanes: p 2^n is exact there and here.
HR_INLINE Wide exp2_nonpositive(Wide x) {
    const __mmask16 large = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-126.0f), _CMP_NLT_UQ);
    const __m512 n = _mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    const Wide f = {_mm512_sub_ps(x.v, n)};
    return {_mm512_maskz_scalef_ps(large, exp2_series(f).v, n)};
}

HR_INLINE Wide tanh(Wide x) {
    const F8 a = tanh(low(x)), b = tanh(high(x));
    return {_mm512_insertf32x8(_mm512_castps256_ps512(a.v), b.v, 1)};
}

// Lanes whose token (first lane = token) lies in [begin, end) keep x, the others become `none`.
HR_INLINE Wide between(Wide x, int32_t token, int32_t begin, int32_t end, float none) {
    const int32_t from = greatest(begin - token, 0), to = least(end - token, 16);
    const uint32_t seen = to <= from ? 0u : (0xffffu >> (16 - (to - from))) << from;
    return {_mm512_mask_mov_ps(_mm512_set1_ps(none), (__mmask16)seen, x.v)};
}

// sum + the lanes of a, eight after eight.
HR_INLINE F8 add_lanes(F8 sum, Wide a) { return (sum + low(a)) + high(a); }
HR_INLINE F8 fold_max(Wide a) { return max(low(a), high(a)); }

#else

using Word = F8;

template <class V> HR_INLINE V load_as(const float *p) { return load(p); }
template <class V> HR_INLINE V splat_as(float x) { return splat(x); }

HR_INLINE F8 between(F8 x, int32_t token, int32_t begin, int32_t end, float none) {
    const I8 at = lane_index() + splat(token);
    return select(greater(at, splat(begin - 1)) & greater(splat(end), at), x, splat(none));
}

HR_INLINE F8 add_lanes(F8 sum, F8 a) { return sum + a; }
HR_INLINE F8 fold_max(F8 a) { return a; }

#endif

constexpr int kLanes = sizeof(Word) / sizeof(float);

// sum = x b + sum, fused, in the register of `sum`: left to itself, g++ 12 adds copies of registers between the fmas.
#if defined(HR_SIMD_AVX512)
HR_INLINE void add_product(Wide &sum, const float &x, Wide b) {
    asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(b.v), "m"(x));
}
#endif
HR_INLINE void add_product(F8 &sum, const float &x, F8 b) {
#if defined(HR_SIMD_AVX512)
    asm("vfmadd231ps %2%{1to8%}, %1, %0" : "+v"(sum.v) : "v"(b.v), "m"(x));
#else
    sum = fma(splat(x), b, sum);
#endif
}

// `sum` and `max_of` of simd.h, the same trees, without the way through memory.
HR_INLINE float sum_lanes(F8 a) {
#if defined(HR_SIMD_AVX2)
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return sum(a);
#endif
}

HR_INLINE float max_lanes(F8 a) {
#if defined(HR_SIMD_AVX2)
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
#else
    return max_of(a);
#endif
}

}  // namespace HR_ISA
}  // namespace headrace
