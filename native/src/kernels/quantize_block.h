// Up to eight groups at once, AVX2 and AVX-512: what is scalar for a group (its maximum, two divisions, its sums) fills
// the lanes of a register for eight. The operations on each value are those of one group, so are the bits.
#pragma once
#include "headrace/kernels.h"
#include "simd/simd.h"

#if defined(HR_SIMD_AVX2)
namespace headrace {
namespace HR_ISA {

constexpr int kBlockGroups = 8;

// Lane i of *low: the four dwords in the lower half of v[i], folded by `op`; *high: those in the upper half.
template <class Op> HR_INLINE void fold_halves(const __m256i v[kBlockGroups], Op op, __m256i *low, __m256i *high) {
    __m256i four[2];
    HR_UNROLL for (int i = 0; i < 2; i++) {
        const __m256i *w = v + 4 * i;
        const __m256i a = op(_mm256_unpacklo_epi32(w[0], w[1]), _mm256_unpackhi_epi32(w[0], w[1]));
        const __m256i b = op(_mm256_unpacklo_epi32(w[2], w[3]), _mm256_unpackhi_epi32(w[2], w[3]));
        four[i] = op(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    }
    *low = _mm256_permute2x128_si256(four[0], four[1], 0x20);
    *high = _mm256_permute2x128_si256(four[0], four[1], 0x31);
}

// The first `count` lanes, 1 to 8.
template <bool Whole> HR_INLINE void store_lanes(void *out, __m256i v, int count) {
    if (Whole || count == 8) return _mm256_storeu_si256((__m256i *)out, v);
#if defined(HR_SIMD_AVX512)
    _mm256_mask_storeu_epi32(out, (__mmask8)((1 << count) - 1), v);
#else
    alignas(32) int32_t lanes[8];
    _mm256_store_si256((__m256i *)lanes, v);
    int32_t *to = (int32_t *)out;
    if (count < 4) {
        for (int i = 0; i < count; i++) to[i] = lanes[i];
    } else {
        _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(v));
        _mm_storeu_si128((__m128i *)(to + count - 4), _mm_loadu_si128((const __m128i *)(lanes + count - 4)));
    }
#endif
}

// out[2 i] = a of lane i, out[2 i + 1] = b, for `count` lanes.
template <bool Whole> HR_INLINE void store_pairs(void *out, __m256i a, __m256i b, int count) {
    const __m256i low = _mm256_unpacklo_epi32(a, b), high = _mm256_unpackhi_epi32(a, b);
    const __m256i first = _mm256_permute2x128_si256(low, high, 0x20);
    if (!Whole && count <= 4) return store_lanes<false>(out, first, 2 * count);
    _mm256_storeu_si256((__m256i *)out, first);
    store_lanes<Whole>((__m256i *)out + 1, _mm256_permute2x128_si256(low, high, 0x31), 2 * count - 8);
}

// Sums of 16 bits of even and odd pairs of columns: low and high half of a dword.
HR_INLINE __m256i both_sums(__m256i pairs) {
    return _mm256_add_epi32(_mm256_srai_epi32(_mm256_slli_epi32(pairs, 16), 16), _mm256_srai_epi32(pairs, 16));
}

// -8 * the sums, as the integer sums start with: one 32-bit lane, or its two 16-bit lanes.
HR_INLINE __m256i start_values(__m256i pairs) {
#if defined(HR_SIMD_AVX512)
    return _mm256_sub_epi32(_mm256_setzero_si256(), _mm256_slli_epi32(both_sums(pairs), 3));
#else
    return _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_slli_epi16(pairs, 3));
#endif
}

// Where a block's results go.
struct BlockOutput {
    int8_t *q;
    float *scale, *scaled_sum, *scaled_sum16;
    int32_t *start, *start16;
};

// `count` groups of 32 floats from x on. Whole: count is 8.
// Returns false, with nothing written, if a group's maximum is outside [tiny, not_finite).
template <bool Whole> HR_INLINE bool quantize_block(const float *x, int count, int32_t tiny, int32_t not_finite, const BlockOutput &out) {
    const auto group = [count](int i) { return Whole ? i : least(i, count - 1); };
    __m256i v[kBlockGroups], low, high;
    HR_UNROLL for (int i = 0; i < kBlockGroups; i++) {
        const float *p = x + 32 * group(i);
        const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
        v[i] = _mm256_and_si256(_mm256_loadu_si256((const __m256i *)p), magnitude);
        HR_UNROLL for (int j = 1; j < 4; j++)
            v[i] = _mm256_max_epi32(v[i], _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(p + 8 * j)), magnitude));
    }
    fold_halves(v, [](__m256i a, __m256i b) { return _mm256_max_epi32(a, b); }, &low, &high);
    const __m256i bits = _mm256_max_epi32(low, high);
    const __m256i usual = _mm256_and_si256(_mm256_cmpgt_epi32(bits, _mm256_set1_epi32(tiny - 1)),
                                           _mm256_cmpgt_epi32(_mm256_set1_epi32(not_finite), bits));
    if (_mm256_movemask_epi8(usual) != -1) return false;
    const __m256 top = _mm256_castsi256_ps(bits), most = _mm256_set1_ps(127.0f), scale = _mm256_div_ps(top, most);
    alignas(32) float factor[kBlockGroups];
    _mm256_store_ps(factor, _mm256_div_ps(most, top));
    HR_UNROLL for (int i = 0; i < kBlockGroups; i++) {
        const float *p = x + 32 * group(i);
        const __m256 by = _mm256_broadcast_ss(factor + i);
        __m256i rounded[4];
        HR_UNROLL for (int j = 0; j < 4; j++) rounded[j] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(p + 8 * j), by));
        // packs works inside 128-bit halves: undo its order with one permutation of dwords
        const __m256i words0 = _mm256_packs_epi32(rounded[0], rounded[1]), words1 = _mm256_packs_epi32(rounded[2], rounded[3]);
        const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words0, words1), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
        _mm256_storeu_si256((__m256i *)(out.q + 32 * group(i)), bytes);
        v[i] = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    }
    fold_halves(v, [](__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }, &low, &high);
    const __m256i both = _mm256_add_epi16(low, high);
    const auto scaled = [&](__m256i pairs) { return _mm256_mul_ps(scale, _mm256_cvtepi32_ps(both_sums(pairs))); };
    store_lanes<Whole>(out.scale, _mm256_castps_si256(scale), count);
    store_lanes<Whole>(out.scaled_sum, _mm256_castps_si256(scaled(both)), count);
    store_pairs<Whole>(out.scaled_sum16, _mm256_castps_si256(scaled(low)), _mm256_castps_si256(scaled(high)), count);
    store_lanes<Whole>(out.start, start_values(both), count);
    store_pairs<Whole>(out.start16, start_values(low), start_values(high), count);
    return true;
}

}  // namespace HR_ISA
}  // namespace headrace
#endif
