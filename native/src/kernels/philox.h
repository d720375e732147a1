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
#if defined(HR_SIMD_NEON)
    const uint32x4_t words[2] = {vreinterpretq_u32_s32(a.lo), vreinterpretq_u32_s32(a.hi)};
    int32x4_t high[2], low[2];
    for (int i = 0; i < 2; i++) {
        const uint32x4_t p = vreinterpretq_u32_u64(vmull_n_u32(vget_low_u32(words[i]), m));
        const uint32x4_t q = vreinterpretq_u32_u64(vmull_n_u32(vget_high_u32(words[i]), m));
        low[i] = vreinterpretq_s32_u32(vuzp1q_u32(p, q));
        high[i] = vreinterpretq_s32_u32(vuzp2q_u32(p, q));
    }
    return {{high[0], high[1]}, {low[0], low[1]}};
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

// The keys of the ten rounds, in 64-bit words.
struct RoundKeys {
    uint64_t k[10][2];
    int32_t position;

    explicit RoundKeys(NoiseKey key) : position(key.position) {
        uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) k[round][0] = k0, k[round][1] = k1;
    }
};

#if defined(HR_SIMD_AVX2)
HR_INLINE __m256i xor3(__m256i a, __m256i b, __m256i c) {
#if defined(HR_SIMD_AVX512)
    return _mm256_ternarylogic_epi64(a, b, c, 0x96);
#else
    return _mm256_xor_si256(_mm256_xor_si256(a, b), c);
#endif
}

// Four counters in 64-bit lanes: words lie in the low halves, the high halves hold what the last product left there.
struct WideCounters {
    __m256i c[4];

    // The state after the first round, which starts from (block, position, 0, 0).
    HR_INLINE WideCounters(__m256i block, const RoundKeys &keys) {
        const __m256i p = _mm256_mul_epu32(block, _mm256_set1_epi64x(0xD2511F53));
        c[0] = _mm256_set1_epi64x((int64_t)((uint32_t)keys.position ^ keys.k[0][0]));
        c[1] = _mm256_setzero_si256();
        c[2] = _mm256_xor_si256(_mm256_srli_epi64(p, 32), _mm256_set1_epi64x((int64_t)keys.k[0][1]));
        c[3] = p;
    }
    HR_INLINE void round(__m256i k0, __m256i k1) {
        const __m256i p = _mm256_mul_epu32(c[0], _mm256_set1_epi64x(0xD2511F53)), q = _mm256_mul_epu32(c[2], _mm256_set1_epi64x(0xCD9E8D57));
        c[0] = xor3(_mm256_srli_epi64(q, 32), k0, c[1]);
        c[1] = q;
        c[2] = xor3(_mm256_srli_epi64(p, 32), k1, c[3]);
        c[3] = p;
    }
};
#endif

// The top 23 bits of the words of ids [first, first + 32), first a multiple of 4.
HR_INLINE NoiseWords noise_words(const RoundKeys &keys, int32_t first) {
#if defined(HR_SIMD_AVX2)
    const __m256i block = _mm256_set1_epi64x(first / 4);
    WideCounters even(_mm256_add_epi64(block, _mm256_setr_epi64x(0, 2, 4, 6)), keys);
    WideCounters odd(_mm256_add_epi64(block, _mm256_setr_epi64x(1, 3, 5, 7)), keys);
    HR_UNROLL for (int round = 1; round < 10; round++) {
        const __m256i k0 = _mm256_set1_epi64x((int64_t)keys.k[round][0]), k1 = _mm256_set1_epi64x((int64_t)keys.k[round][1]);
        even.round(k0, k1);
        odd.round(k0, k1);
    }
    NoiseWords out;
    HR_UNROLL for (int w = 0; w < 4; w++)
        out.word[w] = {_mm256_srli_epi32(_mm256_blend_epi32(even.c[w], _mm256_slli_epi64(odd.c[w], 32), 0xaa), 9)};
    return out;
#else
    I8 c0 = lane_index() + splat(first / 4), c1 = splat(keys.position), c2 = splat((int32_t)0), c3 = c2;
    for (const uint64_t (&k)[2] : keys.k) {
        const Products p = multiply_wide(c0, 0xD2511F53u), q = multiply_wide(c2, 0xCD9E8D57u);
        c0 = q.high ^ c1 ^ splat((int32_t)k[0]);
        c1 = q.low;
        c2 = p.high ^ c3 ^ splat((int32_t)k[1]);
        c3 = p.low;
    }
    return {{shift_right_zero<9>(c0), shift_right_zero<9>(c1), shift_right_zero<9>(c2), shift_right_zero<9>(c3)}};
#endif
}

// -log(-log((n + 0.5) 2^-23)) for 0 <= n < 2^23.
HR_INLINE F8 gumbel(I8 n) {
    const F8 u = fma(to_float(n), splat(0x1p-23f), splat(0x1p-24f));
    return neg(log(neg(log(u))));
}

}  // namespace HR_ISA
}  // namespace headrace
