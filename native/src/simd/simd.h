// Eight floats (F8), eight 32-bit integers (I8) and masks (M8): the vector words in which kernels are written once.
//
// Every operation gives the same bits on every instruction set:
//  - multiply-add is fused everywhere (`fma`); sources are built with -ffp-contract=off, so nothing else is fused;
//  - horizontal sums and maxima have one fixed tree;
//  - min/max are "a < b ? a : b" and "a > b ? a : b": with a NaN operand the result is b;
//  - conversions to integers round to nearest even and need |x| < 2^31.
// NaN payloads and the sign of a NaN are not part of that promise.
//
// Everything lives in the namespace of the instruction set, and kernels should prefer these helpers to templates of the
// standard library (std::min, std::vector ...): an out-of-line template instance built with AVX-512 flags could be the
// copy that the linker keeps for all, and would crash an older CPU.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#ifndef HR_ISA
#error "define HR_ISA (portable, avx2, avx512, avx512bf16, avx512amx, neon or neondot): one translation unit serves one instruction set"
#endif

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define HR_SIMD_AVX2 1
#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define HR_SIMD_NEON 1
#else
#define HR_SIMD_PORTABLE 1
#endif
#if defined(HR_SIMD_AVX2) && defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && \
    defined(__AVX512DQ__) && defined(__AVX512VNNI__)
#define HR_SIMD_AVX512 1  // F8 stays 256 bits wide; kernels that gain from 512 bits use the intrinsics themselves
#if defined(__AVX512BF16__)
#define HR_SIMD_AVX512BF16 1
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // g++ 12 warns about _mm512_undefined_ps of its own header
#endif
#endif

// g++ 12 keeps an accumulator array in memory if one loop over it is not unrolled, re-associates integer sums (hoisting
// all multiplies and spilling them) and re-loads vectors per use. HR_UNROLL and HR_PIN (keep x in a register here)
// prevent that; measured cost of leaving them out: 1.05x to 4x.
#if defined(HR_SANITIZED)
#define HR_UNROLL  // speed does not matter there, and g++ would take minutes per file
#elif defined(__clang__)
#define HR_UNROLL _Pragma("clang loop unroll(full)")
#elif defined(__GNUC__)
#define HR_UNROLL _Pragma("GCC unroll 32")
#else
#define HR_UNROLL
#endif
#if defined(HR_SIMD_AVX512)
#define HR_PIN(x) asm volatile("" : "+v"(x))
#elif defined(HR_SIMD_AVX2)
#define HR_PIN(x) asm volatile("" : "+x"(x))
#elif defined(HR_SIMD_NEON)
#define HR_PIN(x) asm volatile("" : "+w"(x))
#else
#define HR_PIN(x) ((void)0)
#endif
#define HR_INLINE inline __attribute__((always_inline))
#define HR_NOINLINE __attribute__((noinline))

namespace headrace {
namespace HR_ISA {

template <class T> HR_INLINE T least(T a, T b) { return b < a ? b : a; }
template <class T> HR_INLINE T greatest(T a, T b) { return a < b ? b : a; }

// Keeps a vector word in its register (or registers) here. Also for the words that kernels add to F8 and I8.
template <class W> HR_INLINE void pin(W &word) {
#if defined(HR_SIMD_AVX2)
    HR_PIN(word.v);
#elif defined(HR_SIMD_NEON)
    HR_PIN(word.lo);
    HR_PIN(word.hi);
#else
    (void)word;
#endif
}

HR_INLINE void prefetch(const void *p) { __builtin_prefetch(p, 0, 3); }
HR_INLINE void prefetch_once(const void *p) { __builtin_prefetch(p, 0, 0); }     // what is read once displaces nothing in L2
HR_INLINE void prefetch_l2(const void *p) { __builtin_prefetch(p, 0, 2); }

HR_INLINE uint32_t float_bits(float x) { uint32_t u; std::memcpy(&u, &x, 4); return u; }
HR_INLINE float bits_float(uint32_t u) { float x; std::memcpy(&x, &u, 4); return x; }

// IEEE half -> float, exact (subnormals, infinities and NaN included).
HR_INLINE float half_to_float(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, mantissa = h & 0x3ff, exponent = (h >> 10) & 31;
    if (exponent == 31) return bits_float(sign | 0x7f800000u | mantissa << 13 | (mantissa ? 0x400000u : 0));
    if (exponent) return bits_float(sign | (exponent + 112) << 23 | mantissa << 13);
    const float subnormal = (float)mantissa * 0x1p-24f;
    return bits_float(sign | float_bits(subnormal));
}

// float -> IEEE half, round to nearest even; too large becomes infinity.
HR_INLINE uint16_t float_to_half(float x) {
    const uint32_t bits = float_bits(x), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff));
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00);  // >= 65520 rounds to infinity
    if (magnitude < 0x38800000u) {                                   // subnormal half: let the float adder round
        const float shifted = bits_float(magnitude) + 0.5f;          // unit in the last place of 0.5 is 2^-24
        return (uint16_t)(sign | (float_bits(shifted) - 0x3f000000u));
    }
    const uint32_t odd = (magnitude >> 13) & 1;
    return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfff + odd) >> 13));
}

HR_INLINE float bfloat_to_float(uint16_t b) { return bits_float((uint32_t)b << 16); }

#if defined(HR_SIMD_AVX2)

struct F8 { __m256 v; };
struct I8 { __m256i v; };
struct M8 { __m256 v; };  // all bits of a lane set or clear

HR_INLINE F8 load(const float *p) { return {_mm256_loadu_ps(p)}; }
HR_INLINE void store(float *p, F8 a) { _mm256_storeu_ps(p, a.v); }
HR_INLINE F8 load_half(const void *p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p))}; }
HR_INLINE void store_half(void *p, F8 a) {
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
HR_INLINE F8 load_bfloat(const void *p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16))};
}
HR_INLINE F8 splat(float x) { return {_mm256_set1_ps(x)}; }
HR_INLINE F8 zero() { return {_mm256_setzero_ps()}; }
HR_INLINE F8 operator+(F8 a, F8 b) { return {_mm256_add_ps(a.v, b.v)}; }
HR_INLINE F8 operator-(F8 a, F8 b) { return {_mm256_sub_ps(a.v, b.v)}; }
HR_INLINE F8 operator*(F8 a, F8 b) { return {_mm256_mul_ps(a.v, b.v)}; }
HR_INLINE F8 operator/(F8 a, F8 b) { return {_mm256_div_ps(a.v, b.v)}; }
HR_INLINE F8 fma(F8 a, F8 b, F8 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }   // a * b + c
HR_INLINE F8 fnma(F8 a, F8 b, F8 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; } // c - a * b
HR_INLINE F8 min(F8 a, F8 b) { return {_mm256_min_ps(a.v, b.v)}; }
HR_INLINE F8 max(F8 a, F8 b) { return {_mm256_max_ps(a.v, b.v)}; }
HR_INLINE F8 abs(F8 a) { return {_mm256_and_ps(a.v, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff)))}; }
HR_INLINE F8 neg(F8 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))}; }
HR_INLINE F8 sqrt(F8 a) { return {_mm256_sqrt_ps(a.v)}; }
HR_INLINE F8 round(F8 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
HR_INLINE M8 less(F8 a, F8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }       // false with NaN
HR_INLINE M8 less_equal(F8 a, F8 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
HR_INLINE M8 is_nan(F8 a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
HR_INLINE M8 operator&(M8 a, M8 b) { return {_mm256_and_ps(a.v, b.v)}; }
HR_INLINE M8 operator|(M8 a, M8 b) { return {_mm256_or_ps(a.v, b.v)}; }
HR_INLINE F8 select(M8 m, F8 yes, F8 no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
HR_INLINE uint32_t bits(M8 m) { return (uint32_t)_mm256_movemask_ps(m.v); }           // bit i = lane i

HR_INLINE I8 load(const int32_t *p) { return {_mm256_loadu_si256((const __m256i *)p)}; }
HR_INLINE void store(int32_t *p, I8 a) { _mm256_storeu_si256((__m256i *)p, a.v); }
HR_INLINE I8 splat(int32_t x) { return {_mm256_set1_epi32(x)}; }
HR_INLINE I8 operator+(I8 a, I8 b) { return {_mm256_add_epi32(a.v, b.v)}; }
HR_INLINE I8 operator-(I8 a, I8 b) { return {_mm256_sub_epi32(a.v, b.v)}; }
HR_INLINE I8 operator*(I8 a, I8 b) { return {_mm256_mullo_epi32(a.v, b.v)}; }
HR_INLINE I8 operator&(I8 a, I8 b) { return {_mm256_and_si256(a.v, b.v)}; }
HR_INLINE I8 operator|(I8 a, I8 b) { return {_mm256_or_si256(a.v, b.v)}; }
HR_INLINE I8 operator^(I8 a, I8 b) { return {_mm256_xor_si256(a.v, b.v)}; }
HR_INLINE I8 max(I8 a, I8 b) { return {_mm256_max_epi32(a.v, b.v)}; }
template <int N> HR_INLINE I8 shift_left(I8 a) { return {_mm256_slli_epi32(a.v, N)}; }
template <int N> HR_INLINE I8 shift_right(I8 a) { return {_mm256_srai_epi32(a.v, N)}; }         // keeps the sign
template <int N> HR_INLINE I8 shift_right_zero(I8 a) { return {_mm256_srli_epi32(a.v, N)}; }
HR_INLINE M8 equal(I8 a, I8 b) { return {_mm256_castsi256_ps(_mm256_cmpeq_epi32(a.v, b.v))}; }
HR_INLINE M8 greater(I8 a, I8 b) { return {_mm256_castsi256_ps(_mm256_cmpgt_epi32(a.v, b.v))}; }
HR_INLINE F8 to_float(I8 a) { return {_mm256_cvtepi32_ps(a.v)}; }
HR_INLINE I8 to_int(F8 a) { return {_mm256_cvtps_epi32(a.v)}; }
HR_INLINE I8 as_int(F8 a) { return {_mm256_castps_si256(a.v)}; }
HR_INLINE I8 as_int(M8 m) { return {_mm256_castps_si256(m.v)}; }                      // -1 where it is set
HR_INLINE F8 as_float(I8 a) { return {_mm256_castsi256_ps(a.v)}; }
HR_INLINE I8 widen_u8(const void *p) { return {_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))}; }
HR_INLINE I8 widen_i8(const void *p) { return {_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))}; }

#elif defined(HR_SIMD_NEON)

struct F8 { float32x4_t lo, hi; };
struct I8 { int32x4_t lo, hi; };
struct M8 { uint32x4_t lo, hi; };

HR_INLINE F8 load(const float *p) { return {vld1q_f32(p), vld1q_f32(p + 4)}; }
HR_INLINE void store(float *p, F8 a) { vst1q_f32(p, a.lo); vst1q_f32(p + 4, a.hi); }
HR_INLINE F8 load_half(const void *p) {
    const uint16x8_t h = vld1q_u16((const uint16_t *)p);
    return {vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(h))), vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(h)))};
}
HR_INLINE void store_half(void *p, F8 a) {
    vst1q_u16((uint16_t *)p, vcombine_u16(vreinterpret_u16_f16(vcvt_f16_f32(a.lo)), vreinterpret_u16_f16(vcvt_f16_f32(a.hi))));
}
HR_INLINE F8 load_bfloat(const void *p) {
    const uint16x8_t b = vld1q_u16((const uint16_t *)p);
    return {vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)), vreinterpretq_f32_u32(vshll_n_u16(vget_high_u16(b), 16))};
}
HR_INLINE F8 splat(float x) { return {vdupq_n_f32(x), vdupq_n_f32(x)}; }
HR_INLINE F8 zero() { return splat(0.0f); }
HR_INLINE F8 operator+(F8 a, F8 b) { return {vaddq_f32(a.lo, b.lo), vaddq_f32(a.hi, b.hi)}; }
HR_INLINE F8 operator-(F8 a, F8 b) { return {vsubq_f32(a.lo, b.lo), vsubq_f32(a.hi, b.hi)}; }
HR_INLINE F8 operator*(F8 a, F8 b) { return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)}; }
HR_INLINE F8 operator/(F8 a, F8 b) { return {vdivq_f32(a.lo, b.lo), vdivq_f32(a.hi, b.hi)}; }
HR_INLINE F8 fma(F8 a, F8 b, F8 c) { return {vfmaq_f32(c.lo, a.lo, b.lo), vfmaq_f32(c.hi, a.hi, b.hi)}; }
HR_INLINE F8 fnma(F8 a, F8 b, F8 c) { return {vfmsq_f32(c.lo, a.lo, b.lo), vfmsq_f32(c.hi, a.hi, b.hi)}; }
HR_INLINE M8 less(F8 a, F8 b) { return {vcltq_f32(a.lo, b.lo), vcltq_f32(a.hi, b.hi)}; }
HR_INLINE M8 less_equal(F8 a, F8 b) { return {vcleq_f32(a.lo, b.lo), vcleq_f32(a.hi, b.hi)}; }
HR_INLINE M8 is_nan(F8 a) { return {vmvnq_u32(vceqq_f32(a.lo, a.lo)), vmvnq_u32(vceqq_f32(a.hi, a.hi))}; }
HR_INLINE M8 operator&(M8 a, M8 b) { return {vandq_u32(a.lo, b.lo), vandq_u32(a.hi, b.hi)}; }
HR_INLINE M8 operator|(M8 a, M8 b) { return {vorrq_u32(a.lo, b.lo), vorrq_u32(a.hi, b.hi)}; }
HR_INLINE F8 select(M8 m, F8 yes, F8 no) { return {vbslq_f32(m.lo, yes.lo, no.lo), vbslq_f32(m.hi, yes.hi, no.hi)}; }
HR_INLINE F8 min(F8 a, F8 b) { return select(less(a, b), a, b); }
HR_INLINE F8 max(F8 a, F8 b) { return select(less(b, a), a, b); }
HR_INLINE F8 abs(F8 a) { return {vabsq_f32(a.lo), vabsq_f32(a.hi)}; }
HR_INLINE F8 neg(F8 a) { return {vnegq_f32(a.lo), vnegq_f32(a.hi)}; }
HR_INLINE F8 sqrt(F8 a) { return {vsqrtq_f32(a.lo), vsqrtq_f32(a.hi)}; }
HR_INLINE F8 round(F8 a) { return {vrndnq_f32(a.lo), vrndnq_f32(a.hi)}; }
HR_INLINE uint32_t bits(M8 m) {
    const uint32x4_t weights = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m.lo, weights)) | vaddvq_u32(vandq_u32(m.hi, weights)) << 4;
}

HR_INLINE I8 load(const int32_t *p) { return {vld1q_s32(p), vld1q_s32(p + 4)}; }
HR_INLINE void store(int32_t *p, I8 a) { vst1q_s32(p, a.lo); vst1q_s32(p + 4, a.hi); }
HR_INLINE I8 splat(int32_t x) { return {vdupq_n_s32(x), vdupq_n_s32(x)}; }
HR_INLINE I8 operator+(I8 a, I8 b) { return {vaddq_s32(a.lo, b.lo), vaddq_s32(a.hi, b.hi)}; }
HR_INLINE I8 operator-(I8 a, I8 b) { return {vsubq_s32(a.lo, b.lo), vsubq_s32(a.hi, b.hi)}; }
HR_INLINE I8 operator*(I8 a, I8 b) { return {vmulq_s32(a.lo, b.lo), vmulq_s32(a.hi, b.hi)}; }
HR_INLINE I8 operator&(I8 a, I8 b) { return {vandq_s32(a.lo, b.lo), vandq_s32(a.hi, b.hi)}; }
HR_INLINE I8 operator|(I8 a, I8 b) { return {vorrq_s32(a.lo, b.lo), vorrq_s32(a.hi, b.hi)}; }
HR_INLINE I8 operator^(I8 a, I8 b) { return {veorq_s32(a.lo, b.lo), veorq_s32(a.hi, b.hi)}; }
HR_INLINE I8 max(I8 a, I8 b) { return {vmaxq_s32(a.lo, b.lo), vmaxq_s32(a.hi, b.hi)}; }
template <int N> HR_INLINE I8 shift_left(I8 a) { return {vshlq_n_s32(a.lo, N), vshlq_n_s32(a.hi, N)}; }
template <int N> HR_INLINE I8 shift_right(I8 a) { return {vshrq_n_s32(a.lo, N), vshrq_n_s32(a.hi, N)}; }
template <int N> HR_INLINE I8 shift_right_zero(I8 a) {
    return {vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.lo), N)),
            vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.hi), N))};
}
HR_INLINE M8 equal(I8 a, I8 b) { return {vceqq_s32(a.lo, b.lo), vceqq_s32(a.hi, b.hi)}; }
HR_INLINE M8 greater(I8 a, I8 b) { return {vcgtq_s32(a.lo, b.lo), vcgtq_s32(a.hi, b.hi)}; }
HR_INLINE F8 to_float(I8 a) { return {vcvtq_f32_s32(a.lo), vcvtq_f32_s32(a.hi)}; }
HR_INLINE I8 to_int(F8 a) { return {vcvtnq_s32_f32(a.lo), vcvtnq_s32_f32(a.hi)}; }
HR_INLINE I8 as_int(F8 a) { return {vreinterpretq_s32_f32(a.lo), vreinterpretq_s32_f32(a.hi)}; }
HR_INLINE I8 as_int(M8 m) { return {vreinterpretq_s32_u32(m.lo), vreinterpretq_s32_u32(m.hi)}; }
HR_INLINE F8 as_float(I8 a) { return {vreinterpretq_f32_s32(a.lo), vreinterpretq_f32_s32(a.hi)}; }
HR_INLINE I8 widen_u8(const void *p) {
    const uint16x8_t w = vmovl_u8(vld1_u8((const uint8_t *)p));
    return {vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(w))), vreinterpretq_s32_u32(vmovl_u16(vget_high_u16(w)))};
}
HR_INLINE I8 widen_i8(const void *p) {
    const int16x8_t w = vmovl_s8(vld1_s8((const int8_t *)p));
    return {vmovl_s16(vget_low_s16(w)), vmovl_s16(vget_high_s16(w))};
}

#else  // plain C++

struct F8 { float v[8]; };
struct I8 { int32_t v[8]; };
struct M8 { uint32_t v[8]; };

#define HR_EACH(T, expression) T r; for (int i = 0; i < 8; i++) r.v[i] = (expression); return r
HR_INLINE F8 load(const float *p) { F8 r; std::memcpy(r.v, p, 32); return r; }
HR_INLINE void store(float *p, F8 a) { std::memcpy(p, a.v, 32); }
HR_INLINE F8 load_half(const void *p) { uint16_t h[8]; std::memcpy(h, p, 16); HR_EACH(F8, half_to_float(h[i])); }
HR_INLINE void store_half(void *p, F8 a) {
    uint16_t h[8];
    for (int i = 0; i < 8; i++) h[i] = float_to_half(a.v[i]);
    std::memcpy(p, h, 16);
}
HR_INLINE F8 load_bfloat(const void *p) { uint16_t b[8]; std::memcpy(b, p, 16); HR_EACH(F8, bfloat_to_float(b[i])); }
HR_INLINE F8 splat(float x) { HR_EACH(F8, x); }
HR_INLINE F8 zero() { return splat(0.0f); }
HR_INLINE F8 operator+(F8 a, F8 b) { HR_EACH(F8, a.v[i] + b.v[i]); }
HR_INLINE F8 operator-(F8 a, F8 b) { HR_EACH(F8, a.v[i] - b.v[i]); }
HR_INLINE F8 operator*(F8 a, F8 b) { HR_EACH(F8, a.v[i] * b.v[i]); }
HR_INLINE F8 operator/(F8 a, F8 b) { HR_EACH(F8, a.v[i] / b.v[i]); }
HR_INLINE F8 fma(F8 a, F8 b, F8 c) { HR_EACH(F8, __builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
HR_INLINE F8 fnma(F8 a, F8 b, F8 c) { HR_EACH(F8, __builtin_fmaf(-a.v[i], b.v[i], c.v[i])); }
HR_INLINE F8 min(F8 a, F8 b) { HR_EACH(F8, a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
HR_INLINE F8 max(F8 a, F8 b) { HR_EACH(F8, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
HR_INLINE F8 abs(F8 a) { HR_EACH(F8, bits_float(float_bits(a.v[i]) & 0x7fffffffu)); }
HR_INLINE F8 neg(F8 a) { HR_EACH(F8, bits_float(float_bits(a.v[i]) ^ 0x80000000u)); }
HR_INLINE F8 sqrt(F8 a) { HR_EACH(F8, __builtin_sqrtf(a.v[i])); }
HR_INLINE F8 round(F8 a) { HR_EACH(F8, __builtin_nearbyintf(a.v[i])); }
HR_INLINE M8 less(F8 a, F8 b) { HR_EACH(M8, a.v[i] < b.v[i] ? ~0u : 0u); }
HR_INLINE M8 less_equal(F8 a, F8 b) { HR_EACH(M8, a.v[i] <= b.v[i] ? ~0u : 0u); }
HR_INLINE M8 is_nan(F8 a) { HR_EACH(M8, a.v[i] != a.v[i] ? ~0u : 0u); }
HR_INLINE M8 operator&(M8 a, M8 b) { HR_EACH(M8, a.v[i] & b.v[i]); }
HR_INLINE M8 operator|(M8 a, M8 b) { HR_EACH(M8, a.v[i] | b.v[i]); }
HR_INLINE F8 select(M8 m, F8 yes, F8 no) { HR_EACH(F8, m.v[i] ? yes.v[i] : no.v[i]); }
HR_INLINE uint32_t bits(M8 m) {
    uint32_t r = 0;
    for (int i = 0; i < 8; i++) r |= (m.v[i] & 1u) << i;
    return r;
}

HR_INLINE I8 load(const int32_t *p) { I8 r; std::memcpy(r.v, p, 32); return r; }
HR_INLINE void store(int32_t *p, I8 a) { std::memcpy(p, a.v, 32); }
HR_INLINE I8 splat(int32_t x) { HR_EACH(I8, x); }
// Unsigned arithmetic: wraps like the vector instructions instead of being undefined.
HR_INLINE I8 operator+(I8 a, I8 b) { HR_EACH(I8, (int32_t)((uint32_t)a.v[i] + (uint32_t)b.v[i])); }
HR_INLINE I8 operator-(I8 a, I8 b) { HR_EACH(I8, (int32_t)((uint32_t)a.v[i] - (uint32_t)b.v[i])); }
HR_INLINE I8 operator*(I8 a, I8 b) { HR_EACH(I8, (int32_t)((uint32_t)a.v[i] * (uint32_t)b.v[i])); }
HR_INLINE I8 operator&(I8 a, I8 b) { HR_EACH(I8, a.v[i] & b.v[i]); }
HR_INLINE I8 operator|(I8 a, I8 b) { HR_EACH(I8, a.v[i] | b.v[i]); }
HR_INLINE I8 operator^(I8 a, I8 b) { HR_EACH(I8, a.v[i] ^ b.v[i]); }
HR_INLINE I8 max(I8 a, I8 b) { HR_EACH(I8, a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
template <int N> HR_INLINE I8 shift_left(I8 a) { HR_EACH(I8, (int32_t)((uint32_t)a.v[i] << N)); }
template <int N> HR_INLINE I8 shift_right(I8 a) { HR_EACH(I8, a.v[i] >> N); }
template <int N> HR_INLINE I8 shift_right_zero(I8 a) { HR_EACH(I8, (int32_t)((uint32_t)a.v[i] >> N)); }
HR_INLINE M8 equal(I8 a, I8 b) { HR_EACH(M8, a.v[i] == b.v[i] ? ~0u : 0u); }
HR_INLINE M8 greater(I8 a, I8 b) { HR_EACH(M8, a.v[i] > b.v[i] ? ~0u : 0u); }
HR_INLINE F8 to_float(I8 a) { HR_EACH(F8, (float)a.v[i]); }
// A value outside the range (NaN included) gives INT32_MIN, as on x86.
HR_INLINE I8 to_int(F8 a) {
    HR_EACH(I8, a.v[i] >= -0x1p31f && a.v[i] < 0x1p31f ? (int32_t)__builtin_nearbyintf(a.v[i]) : INT32_MIN);
}
HR_INLINE I8 as_int(F8 a) { I8 r; std::memcpy(r.v, a.v, 32); return r; }
HR_INLINE I8 as_int(M8 m) { I8 r; std::memcpy(r.v, m.v, 32); return r; }
HR_INLINE F8 as_float(I8 a) { F8 r; std::memcpy(r.v, a.v, 32); return r; }
HR_INLINE I8 widen_u8(const void *p) { HR_EACH(I8, ((const uint8_t *)p)[i]); }
HR_INLINE I8 widen_i8(const void *p) { HR_EACH(I8, ((const int8_t *)p)[i]); }
#undef HR_EACH

#endif

// a, and +0 where the mask is set, or where it is not.
HR_INLINE F8 zero_where(M8 m, F8 a) {
#if defined(HR_SIMD_AVX2)
    return {_mm256_andnot_ps(m.v, a.v)};            // any port takes it, unlike a blend
#else
    return select(m, zero(), a);
#endif
}
HR_INLINE F8 zero_unless(M8 m, F8 a) {
#if defined(HR_SIMD_AVX2)
    return {_mm256_and_ps(m.v, a.v)};
#else
    return select(m, a, zero());
#endif
}

// Lane j of v[i] becomes that of `no` if bit 8 i + j is clear.
HR_INLINE void keep_bits(uint32_t bits_of_lanes, F8 no, F8 (&v)[4]) {
#if defined(HR_SIMD_AVX512)
    HR_UNROLL for (int i = 0; i < 4; i++) v[i] = {_mm256_mask_blend_ps((__mmask8)(bits_of_lanes >> 8 * i), no.v, v[i].v)};
#else
    static const int32_t lane_bits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    I8 own = load(lane_bits);
    const I8 all = splat((int32_t)bits_of_lanes);
    HR_UNROLL for (int i = 0; i < 4; i++, own = shift_left<8>(own)) v[i] = select(equal(all & own, own), v[i], no);
#endif
}

// Horizontal sum: ((0+4)+(2+6)) + ((1+5)+(3+7)).
HR_INLINE float sum(F8 a) {
#if defined(HR_SIMD_AVX2)
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
#else
    float v[8];
    store(v, a);
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
#endif
}

// Horizontal maximum, same tree; with NaN lanes the result is one of the lanes.
HR_INLINE float max_of(F8 a) {
    float v[8];
    store(v, a);
    for (int step = 4; step; step >>= 1)
        for (int i = 0; i < step; i++) v[i] = v[i] > v[i + step] ? v[i] : v[i + step];
    return v[0];
}

}  // namespace HR_ISA
}  // namespace headrace
