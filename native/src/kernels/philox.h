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
constexpr int32_t kNoiseBlock = 64;          // ids of one block, which are two chains of rounds
constexpr int32_t kTogether = 2;             // blocks whose rounds take turns: while one chain waits, the others work
#else
constexpr int32_t kNoiseBlock = 32;
constexpr int32_t kTogether = 1;             // four chains do not fit into 16 registers
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

#if defined(HR_SIMD_AVX512)
using WideWord = __m512i;
HR_INLINE WideWord wide_splat(int64_t x) { return _mm512_set1_epi64(x); }
HR_INLINE WideWord wide_add(WideWord a, WideWord b) { return _mm512_add_epi64(a, b); }
HR_INLINE WideWord wide_product(WideWord a, WideWord b) { return _mm512_mul_epu32(a, b); }
HR_INLINE WideWord wide_high(WideWord a) { return _mm512_srli_epi64(a, 32); }
HR_INLINE WideWord wide_xor(WideWord a, WideWord b, WideWord c) { return _mm512_ternarylogic_epi64(a, b, c, 0x96); }
HR_INLINE WideWord wide_max(WideWord a, WideWord b) { return _mm512_max_epu32(a, b); }
#elif defined(HR_SIMD_AVX2)
using WideWord = __m256i;
HR_INLINE WideWord wide_splat(int64_t x) { return _mm256_set1_epi64x(x); }
HR_INLINE WideWord wide_add(WideWord a, WideWord b) { return _mm256_add_epi64(a, b); }
HR_INLINE WideWord wide_product(WideWord a, WideWord b) { return _mm256_mul_epu32(a, b); }
HR_INLINE WideWord wide_high(WideWord a) { return _mm256_srli_epi64(a, 32); }
HR_INLINE WideWord wide_xor(WideWord a, WideWord b, WideWord c) {
    WideWord early = _mm256_xor_si256(b, c);     // there before the product is; the compiler would take a and b first
    asm("" : "+x"(early));
    return _mm256_xor_si256(a, early);
}
HR_INLINE WideWord wide_max(WideWord a, WideWord b) { return _mm256_max_epu32(a, b); }      // of 32-bit halves
#endif

// Words of a lane each: 64 bits wide, or 32.
#if defined(HR_SIMD_AVX2)
HR_INLINE WideWord key_word(uint32_t k) { return wide_splat((int64_t)k); }
#else
HR_INLINE I8 key_word(uint32_t k) { return splat((int32_t)k); }
#endif

// The keys of the ten rounds, as vectors: the rounds read them from memory, as there are too many for registers.
struct RoundKeys {
    decltype(key_word(0)) k[10][2], position, start;     // start: the first word after the first round

    explicit RoundKeys(NoiseKey key)
        : position(key_word((uint32_t)key.position)), start(key_word((uint32_t)key.position ^ (uint32_t)key.seed)) {
        // Unrolled: g++ 12 vectorizes the loop of the portable words wrongly.
        HR_UNROLL for (uint32_t round = 0; round < 10; round++) {
            k[round][0] = key_word((uint32_t)key.seed + round * 0x9E3779B9u);
            k[round][1] = key_word((uint32_t)(key.seed >> 32) + round * 0xBB67AE85u);
        }
    }
};

#if defined(HR_SIMD_AVX2)
// Counters in 64-bit lanes: words lie in the low halves, the high halves hold what the last product left there.
struct WideCounters {
    WideWord c[4];

    // The state after the first round, which starts from (block, position, 0, 0).
    HR_INLINE void begin(WideWord block, const RoundKeys &keys) {
        const WideWord p = wide_product(block, wide_splat(0xD2511F53));
        c[0] = keys.start;
        c[1] = wide_splat(0);
        c[2] = wide_xor(wide_high(p), keys.k[0][1], c[1]);
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

// The words of ids [first, first + kNoiseBlock), first a multiple of 4: word w of lane j of `even` belongs to id first + 8 j + w,
// that of `odd` to the one four further on.
struct NoiseWords {
    static constexpr int32_t kFirstRound = 1;
    WideCounters even, odd;

    HR_INLINE void begin(const RoundKeys &keys, int32_t first) {
#if defined(HR_SIMD_AVX512)
        const WideWord twos = _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14);
#else
        const WideWord twos = _mm256_setr_epi64x(0, 2, 4, 6);
#endif
        even.begin(wide_add(wide_splat(first / 4), twos), keys);
        odd.begin(wide_add(wide_splat(first / 4 + 1), twos), keys);
    }
    HR_INLINE void round(WideWord k0, WideWord k1) { even.round(k0, k1), odd.round(k0, k1); }
    // Whether the top 23 bits of one of the words are at least `least`; asked before the words are put in order.
    HR_INLINE bool is_any_from(int32_t least) const {
        WideWord most = wide_max(even.c[0], odd.c[0]);
        HR_UNROLL for (int w = 1; w < 4; w++) most = wide_max(most, wide_max(even.c[w], odd.c[w]));
#if defined(HR_SIMD_AVX512)
        return _mm512_mask_cmpge_epu32_mask(0x5555, most, _mm512_set1_epi32(least << 9)) != 0;
#else
        const WideWord reached = _mm256_cmpeq_epi32(wide_max(most, _mm256_set1_epi32(least << 9)), most);
        return (_mm256_movemask_ps(_mm256_castsi256_ps(reached)) & 0x55) != 0;
#endif
    }
    // The top 23 bits of the words by id.
    HR_INLINE void store_by_id(int32_t *ids) const {
        uint64_t lanes[2][4][kNoiseBlock / 8];
        std::memcpy(lanes[0], even.c, sizeof lanes[0]);
        std::memcpy(lanes[1], odd.c, sizeof lanes[1]);
        for (int32_t i = 0; i < kNoiseBlock; i++) ids[i] = (int32_t)((uint32_t)lanes[i / 4 % 2][i % 4][i / 8] >> 9);
    }
};
#else
// The same in 32-bit lanes: word w of lane j belongs to id first + 4 j + w.
struct NoiseWords {
    static constexpr int32_t kFirstRound = 0;
    I8 c[4];

    HR_INLINE void begin(const RoundKeys &keys, int32_t first) {
        c[0] = lane_index() + splat(first / 4);
        c[1] = keys.position;
        c[2] = c[3] = splat((int32_t)0);
    }
    HR_INLINE void round(I8 k0, I8 k1) {
        const Products p = multiply_wide(c[0], 0xD2511F53u), q = multiply_wide(c[2], 0xCD9E8D57u);
        c[0] = q.high ^ c[1] ^ k0;
        c[1] = q.low;
        c[2] = p.high ^ c[3] ^ k1;
        c[3] = p.low;
    }
    HR_INLINE bool is_any_from(int32_t least) const {
        I8 most = shift_right_zero<9>(c[0]);
        HR_UNROLL for (int w = 1; w < 4; w++) most = max(most, shift_right_zero<9>(c[w]));
        return bits(greater(most, splat(least - 1))) != 0;
    }
    HR_INLINE void store_by_id(int32_t *ids) const {
        int32_t lanes[4][8];
        for (int32_t w = 0; w < 4; w++) store(lanes[w], shift_right_zero<9>(c[w]));
        for (int32_t i = 0; i < kNoiseBlock; i++) ids[i] = lanes[i % 4][i / 4];
    }
};
#endif

HR_INLINE void run_rounds(const RoundKeys &keys, NoiseWords (&words)[kTogether]) {
    HR_UNROLL for (int round = NoiseWords::kFirstRound; round < 10; round++)
        HR_UNROLL for (NoiseWords &w : words) w.round(keys.k[round][0], keys.k[round][1]);
}

// -log(-log((n + 0.5) 2^-23)) for 0 <= n < 2^23.
HR_INLINE F8 gumbel(I8 n) {
    const F8 u = fma(to_float(n), splat(0x1p-23f), splat(0x1p-24f));
    return neg(log(neg(log(u))));
}

}  // namespace HR_ISA
}  // namespace headrace
