// How attention reads a stored key or value: one struct per KV type.
//
//   kBytes        bytes of one stored value
//   kScaled       values are codes: scores and weights are multiplied by their scales (layout in headrace/kernels.h)
//   load(p)       eight consecutive values or codes at p as floats, exact
//   load_wide(p)  sixteen of them (where AVX-512 is built in)
#pragma once
#include "kernels/attention_word.h"

namespace headrace {
namespace HR_ISA {

struct Half {
    static constexpr int32_t kBytes = 2;
    static constexpr bool kScaled = false;
    static HR_INLINE F8 load(const uint8_t *p) { return load_half(p); }
#if defined(HR_SIMD_AVX512)
    static HR_INLINE Wide load_wide(const uint8_t *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))}; }
#endif
};

struct Single {
    static constexpr int32_t kBytes = 4;
    static constexpr bool kScaled = false;
    static HR_INLINE F8 load(const uint8_t *p) { return HR_ISA::load((const float *)p); }
#if defined(HR_SIMD_AVX512)
    static HR_INLINE Wide load_wide(const uint8_t *p) { return {_mm512_loadu_ps(p)}; }
#endif
};

struct Byte {
    static constexpr int32_t kBytes = 1;
    static constexpr bool kScaled = true;
    static HR_INLINE F8 load(const uint8_t *p) { return to_float(widen_i8(p)); }
#if defined(HR_SIMD_AVX512)
    static HR_INLINE Wide load_wide(const uint8_t *p) {
        return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)))};
    }
#endif
};

// Rotates a head before its keys become codes, and queries alike: x <- H x on runs of `run` dims (KVUnit::rotation), H the
// Hadamard matrix of entries +-1, so q . k = (H q) . (H k) / run. A few channels of K are far larger than the rest in some
// models (Qwen2 adds a bias); the rotation spreads them over all dims, so one scale suits all (QuaRot, arXiv:2404.00456).
// The order of sums is fixed by the dims alone.
HR_INLINE void rotate(float *x, int32_t dims, int32_t run) {
    for (int32_t d = 0; d < dims; d += 8) {
        float *v = x + d;
        HR_UNROLL for (int step = 1; step < 8; step *= 2) {
            float sums[8];
            HR_UNROLL for (int i = 0; i < 8; i++) sums[i] = i & step ? v[i - step] - v[i] : v[i] + v[i + step];
            HR_UNROLL for (int i = 0; i < 8; i++) v[i] = sums[i];
        }
    }
    for (int32_t step = 8; step < run; step *= 2)
        for (int32_t d = 0; d < dims; d += 8) {
            if (d & step) continue;
            const F8 a = load(x + d), b = load(x + d + step);
            store(x + d, a + b);
            store(x + d + step, a - b);
        }
}

// The stored values at p, as many as V has lanes.
template <class T, class V> HR_INLINE V read(const uint8_t *p) {
#if defined(HR_SIMD_AVX512)
    if constexpr (sizeof(V) == sizeof(Wide)) return T::load_wide(p);
    else
#endif
        return T::load(p);
}

}  // namespace HR_ISA
}  // namespace headrace
