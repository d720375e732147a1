// Counter-based noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011), eight counters at once, and standard Gumbel
// variables made of its words.
//
// Key = the two halves of the seed, counter = (id / 4, position, 0, 0); word id % 4 of the block belongs to the id.
// n = word >> 9, u = (n + 0.5) * 2^-23 (exact in float), noise = -log(-log(u)): between -2.82 and 16.64.
#pragma once
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kNoiseBlock = 32;          // ids of one call
constexpr float kNoiseBound = 16.64f;        // above -log(-log(1 - 2^-24)) = 16.6355 and its rounding

struct NoiseKey {
    uint64_t seed;
    int32_t position;
};

struct Products { I8 high, low; };

// The 64-bit products of eight unsigned words with m.
HR_INLINE Products multiply_wide(I8 a, uint32_t m) {
#if defined(HR_SIMD_AVX2)
    const __m256i factor = _mm256_set1_epi32((int32_t)m);
    const __m256i even = _mm256_mul_epu32(a.v, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a.v, 32), factor);
    return {{_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa)},
            {_mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa)}};
#else
    int32_t words[8], high[8], low[8];
    store(words, a);
    for (int i = 0; i < 8; i++) {
        const uint64_t product = (uint64_t)(uint32_t)words[i] * m;
        high[i] = (int32_t)(product >> 32);
        low[i] = (int32_t)product;
    }
    return {load(high), load(low)};
#endif
}

struct NoiseWords { I8 word[4]; };           // lane j of word[w] belongs to id `first` + 4 j + w

// The top 23 bits of the words of ids [first, first + 32), first a multiple of 4.
HR_INLINE NoiseWords noise_words(NoiseKey key, int32_t first) {
    I8 c0 = lane_index() + splat(first / 4), c1 = splat(key.position), c2 = splat((int32_t)0), c3 = c2;
    uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
    for (int round = 0; round < 10; round++) {
        const Products p = multiply_wide(c0, 0xD2511F53u), q = multiply_wide(c2, 0xCD9E8D57u);
        c0 = q.high ^ c1 ^ splat((int32_t)k0);
        c1 = q.low;
        c2 = p.high ^ c3 ^ splat((int32_t)k1);
        c3 = p.low;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{shift_right_zero<9>(c0), shift_right_zero<9>(c1), shift_right_zero<9>(c2), shift_right_zero<9>(c3)}};
}

// -log(-log((n + 0.5) 2^-23)) for 0 <= n < 2^23.
HR_INLINE F8 gumbel(I8 n) {
    const F8 u = fma(to_float(n), splat(0x1p-23f), splat(0x1p-24f));
    return neg(log(neg(log(u))));
}

}  // namespace HR_ISA
}  // namespace headrace
