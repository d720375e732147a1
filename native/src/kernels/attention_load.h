// How attention reads a stored key or value: one struct per KV type.
//
//   kBytes        bytes of one stored value
//   load(p)       eight consecutive values at p as floats, exact
//   load_wide(p)  sixteen of them (where AVX-512 is built in)
#pragma once
#include "kernels/attention_word.h"

namespace headrace {
namespace HR_ISA {

struct Half {
    static constexpr int32_t kBytes = 2;
    static HR_INLINE F8 load(const uint8_t *p) { return load_half(p); }
#if defined(HR_SIMD_AVX512)
    static HR_INLINE Wide load_wide(const uint8_t *p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p))}; }
#endif
};

struct Single {
    static constexpr int32_t kBytes = 4;
    static HR_INLINE F8 load(const uint8_t *p) { return HR_ISA::load((const float *)p); }
#if defined(HR_SIMD_AVX512)
    static HR_INLINE Wide load_wide(const uint8_t *p) { return {_mm512_loadu_ps(p)}; }
#endif
};

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
