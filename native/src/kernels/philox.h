// Counter-based noise: Philox4x32-10 (Salmon, Moraes, Dror and Shaw 2011), eight counters at once, and standard Gumbel
// variables made of its words.
//
// Key = the two halves of the seed, counter = (id / 4, position, 0, 0); word id % 4 of the block belongs to the id.
// n = word >> 9, u = (n + 0.5) * 2^-23 (exact in float), noise = -log(-log(u)): between -2.82 and 16.64.
#pragma once
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {

#if defined(HR_SIMD_AVX512)
constexpr int32_t kNoiseBlock = 64;          // ids of one call
#else
constexpr int32_t kNoiseBlock = 32;
#endif
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

// The keys of the ten rounds, in 64-bit words.
struct RoundKeys {
    uint64_t k[10][2];
    int32_t position;

    explicit RoundKeys(NoiseKey key) : position(key.position) {
        uint32_t k0 = (uint32_t)key.seed, k1 = (uint32_t)(key.seed >> 32);
        for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) k[round][0] = k0, k[round][1] = k1;
    }
};

#if defined(HR_SIMD_AVX512)
using WideWord = __m512i;
HR_INLINE WideWord wide_splat(int64_t x) { return _mm512_set1_epi64(x); }
HR_INLINE WideWord wide_add(WideWord a, WideWord b) { return _mm512_add_epi64(a, b); }
HR_INLINE WideWord wide_product(WideWord a, WideWord b) { return _mm512_mul_epu32(a, b); }
HR_INLINE WideWord wide_high(WideWord a) { return _mm512_srli_epi64(a, 32); }
HR_INLINE WideWord wide_xor(WideWord a, WideWord b, WideWord c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
#elif defined(HR_SIMD_AVX2)
using WideWord = __m256i;
HR_INLINE WideWord wide_splat(int64_t x) { return _mm256_set1_epi64x(x); }
HR_INLINE WideWord wide_add(WideWord a, WideWord b) { return _mm256_add_epi64(a, b); }
HR_INLINE WideWord wide_product(WideWord a, WideWord b) { return _mm256_mul_epu32(a, b); }
HR_INLINE WideWord wide_high(WideWord a) { return _mm256_srli_epi64(a, 32); }
HR_INLINE WideWord wide_xor(WideWord a, WideWord b, WideWord c) { return _mm256_xor_si256(_mm256_xor_si256(a, b), c); }
#endif

#if defined(HR_SIMD_AVX2)
// Counters in 64-bit lanes: words lie in the low halves, the high halves hold what the last product left there.
struct WideCounters {
    WideWord c[4];

    // The state after the first round, which starts from (block, position, 0, 0).
    HR_INLINE WideCounters(WideWord block, const RoundKeys &keys) {
        const WideWord p = wide_product(block, wide_splat(0xD2511F53));
        c[0] = wide_splat((int64_t)((uint32_t)keys.position ^ keys.k[0][0]));
        c[1] = wide_splat(0);
        c[2] = wide_xor(wide_high(p), wide_splat((int64_t)keys.k[0][1]), c[1]);
        c[3] = p;
    }
    HR_INLINE void round(WideWord k0, WideWord k1) {
        const WideWord p = wide_product(c[0], wide_splat(0xD2511F53)), q = wide_product(c[2], wide_splat(0xCD9E8D57));
        c[0] = wide_xor(wide_high(q), k0, c[1]);
        c[1] = q;
        c[2] = wide_xor(wide_high(p), k1, c[3]);
        c[3] = p;
    }
};

// The top 23 bits of the words of ids [first, first + kNoiseBlock), first a multiple of 4: lane j of word[w] belongs to id
// first + 4 j + w.
struct NoiseWords {
    WideWord word[4];

    HR_INLINE NoiseWords(const RoundKeys &keys, int32_t first) {
        const WideWord block = wide_splat(first / 4);
#if defined(HR_SIMD_AVX512)
        const WideWord twos = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
#else
        const WideWord twos = _mm256_setr_epi64x(0, 2, 4, 6);
#endif
        WideCounters even(wide_add(block, twos), keys), odd(wide_add(wide_add(block, twos), wide_splat(1)), keys);
        HR_UNROLL for (int round = 1; round < 10; round++) {
            const WideWord k0 = wide_splat((int64_t)keys.k[round][0]), k1 = wide_splat((int64_t)keys.k[round][1]);
            even.round(k0, k1);
            odd.round(k0, k1);
        }
        HR_UNROLL for (int w = 0; w < 4; w++) {
#if defined(HR_SIMD_AVX512)
            word[w] = _mm512_srli_epi32(_mm512_mask_blend_epi32(0xaaaa, even.c[w], _mm512_slli_epi64(odd.c[w], 32)), 9);
#else
            word[w] = _mm256_srli_epi32(_mm256_blend_epi32(even.c[w], _mm256_slli_epi64(odd.c[w], 32), 0xaa), 9);
#endif
        }
    }
    HR_INLINE bool is_any_from(int32_t least) const {
#if defined(HR_SIMD_AVX512)
        const WideWord most = _mm512_max_epi32(_mm512_max_epi32(word[0], word[1]), _mm512_max_epi32(word[2], word[3]));
        return _mm512_cmpgt_epi32_mask(most, _mm512_set1_epi32(least - 1)) != 0;
#else
        const WideWord most = _mm256_max_epi32(_mm256_max_epi32(word[0], word[1]), _mm256_max_epi32(word[2], word[3]));
        return _mm256_movemask_epi8(_mm256_cmpgt_epi32(most, _mm256_set1_epi32(least - 1))) != 0;
#endif
    }
    HR_INLINE void store_by_id(int32_t *ids) const {
        int32_t lanes[4][kNoiseBlock / 4];
        std::memcpy(lanes, word, sizeof lanes);
        for (int32_t i = 0; i < kNoiseBlock; i++) ids[i] = lanes[i % 4][i / 4];
    }
};
#else
// The same in 32-bit lanes.
struct NoiseWords {
    I8 word[4];

    HR_INLINE NoiseWords(const RoundKeys &keys, int32_t first) {
        I8 c0 = lane_index() + splat(first / 4), c1 = splat(keys.position), c2 = splat((int32_t)0), c3 = c2;
        for (const uint64_t (&k)[2] : keys.k) {
            const Products p = multiply_wide(c0, 0xD2511F53u), q = multiply_wide(c2, 0xCD9E8D57u);
            c0 = q.high ^ c1 ^ splat((int32_t)k[0]);
            c1 = q.low;
            c2 = p.high ^ c3 ^ splat((int32_t)k[1]);
            c3 = p.low;
        }
        const I8 all[4] = {c0, c1, c2, c3};
        for (int w = 0; w < 4; w++) word[w] = shift_right_zero<9>(all[w]);
    }
    HR_INLINE bool is_any_from(int32_t least) const {
        const I8 most = max(max(word[0], word[1]), max(word[2], word[3]));
        return bits(greater(most, splat(least - 1))) != 0;
    }
    HR_INLINE void store_by_id(int32_t *ids) const {
        int32_t lanes[4][8];
        for (int32_t w = 0; w < 4; w++) store(lanes[w], word[w]);
        for (int32_t i = 0; i < kNoiseBlock; i++) ids[i] = lanes[i % 4][i / 4];
    }
};
#endif

// -log(-log((n + 0.5) 2^-23)) for 0 <= n < 2^23.
HR_INLINE F8 gumbel(I8 n) {
    const F8 u = fma(to_float(n), splat(0x1p-23f), splat(0x1p-24f));
    return neg(log(neg(log(u))));
}

}  // namespace HR_ISA
}  // namespace headrace
