// Attention over 16-bit codes: scores and weighted sums in integers, which have no order and therefore one result.
//
//   scores:  for pairs of dims:    sums[token] += K[2i][token] q[2i] + K[2i+1][token] q[2i+1]     (a lane is a token)
//   values:  for pairs of tokens:  sums[dim] += V[2t][dim] w[2t] + V[2t+1][dim] w[2t+1]           (a lane is a dim)
//
// No sum overflows 32 bits. Scores: codes of a key and of a query have a Euclidean norm of at most kCodeNorm + 8 (rounding
// moves each of at most 256 codes by half a unit), so by Cauchy-Schwarz their product stays below 46308^2 < 2^31. Partial sums
// may wrap and wrap back. Values: codes are at most kValueCode, the weights of a chunk are made codes whose sum is at most
// kWeightSum + 64 / 2, and (131000 + 33) * 16383 < 2^31.
//
// A chunk's sums become floats once: sums <- sums * factor + integer * step of the weights' codes.
#pragma once
#include <type_traits>

#include "kernels/attention_load.h"
#include "kernels/attention_softmax.h"

namespace headrace {
namespace HR_ISA {

struct Pair {
    static constexpr int32_t kBytes = 2;
    static constexpr bool kScaled = true;
};

constexpr float kWeightCode = 32766.0f;      // largest code of a weight, less one for the rounding of its factor
constexpr float kWeightSum = 131000.0f;      // largest sum of a row's codes in one chunk, before they are rounded
constexpr float kTinyStep = 0x1p-100f;

// Words of 32-bit sums, and words of pairs of codes that are multiplied into them.
#if defined(HR_SIMD_AVX512)
struct WideSum { __m512i v; };
using Sum = WideSum;
HR_INLINE Wide as_floats(WideSum a) { return {_mm512_cvtepi32_ps(a.v)}; }
#else
using Sum = I8;
#endif

template <class S> HR_INLINE S no_sum() {
    if constexpr (sizeof(S) == sizeof(I8)) return splat((int32_t)0);
#if defined(HR_SIMD_AVX512)
    else return S{_mm512_setzero_si512()};
#endif
}
HR_INLINE F8 as_floats(I8 a) { return to_float(a); }

#if defined(HR_SIMD_NEON)
struct Pairs8 { int16x8_t even, odd; };
#elif defined(HR_SIMD_PORTABLE)
struct Pairs8 { int16_t v[16]; };
#else
using Pairs8 = I8;
#endif

// A pair of codes as one word. Codes are written as 16-bit integers and queries lie where floats do, hence may_alias.
#if defined(__GNUC__)
typedef int32_t __attribute__((may_alias)) PairWord;
#else
typedef int32_t PairWord;
#endif

// Eight pairs (16 of them where S is wider) of codes at p.
template <class S> HR_INLINE auto load_pairs(const uint8_t *p) {
#if defined(HR_SIMD_AVX512)
    if constexpr (sizeof(S) == sizeof(WideSum)) return WideSum{_mm512_loadu_si512(p)};
    else return I8{_mm256_loadu_si256((const __m256i *)p)};
#elif defined(HR_SIMD_AVX2)
    return I8{_mm256_loadu_si256((const __m256i *)p)};
#elif defined(HR_SIMD_NEON)
    const int16x8x2_t both = vld2q_s16((const int16_t *)p);
    return Pairs8{both.val[0], both.val[1]};
#else
    Pairs8 r;
    std::memcpy(r.v, p, 32);
    return r;
#endif
}

// sum[lane] += a[lane].even * b.even + a[lane].odd * b.odd, b the pair of codes at `pair`.
#if defined(HR_SIMD_AVX512)
HR_INLINE void add_pairs(WideSum &sum, WideSum a, const PairWord &pair) {
    asm("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum.v) : "v"(a.v), "m"(pair));
}
HR_INLINE void add_pairs(I8 &sum, I8 a, const PairWord &pair) {
    asm("vpdpwssd %2%{1to8%}, %1, %0" : "+v"(sum.v) : "v"(a.v), "m"(pair));
}
#else
HR_INLINE void add_pairs(I8 &sum, Pairs8 a, const PairWord &pair) {
#if defined(HR_SIMD_AVX2)
    sum.v = _mm256_add_epi32(sum.v, _mm256_madd_epi16(a.v, _mm256_set1_epi32(pair)));
#elif defined(HR_SIMD_NEON)
    const int16_t even = (int16_t)pair, odd = (int16_t)(pair >> 16);
    sum.lo = vmlal_n_s16(sum.lo, vget_low_s16(a.even), even);
    sum.hi = vmlal_n_s16(sum.hi, vget_high_s16(a.even), even);
    sum.lo = vmlal_n_s16(sum.lo, vget_low_s16(a.odd), odd);
    sum.hi = vmlal_n_s16(sum.hi, vget_high_s16(a.odd), odd);
#else
    int16_t b[2];
    std::memcpy(b, &pair, 4);
    for (int i = 0; i < 8; i++)
        sum.v[i] = (int32_t)((uint32_t)sum.v[i] + (uint32_t)(a.v[2 * i] * b[0]) + (uint32_t)(a.v[2 * i + 1] * b[1]));
#endif
}
#endif

// sums[r][j] += row(r) . column(j)
template <class S, int R, int N, class Row, class Column>
HR_INLINE void multiply_pairs(S (&sums)[R][N], Row row, Column column) {
    decltype(column(0)) k[N];
    HR_UNROLL for (int j = 0; j < N; j++) k[j] = column(j);
    HR_UNROLL for (int r = 0; r < R; r++) {
        const PairWord &pair = row(r);
        HR_UNROLL for (int j = 0; j < N; j++) add_pairs(sums[r][j], k[j], pair);
    }
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) pin(sums[r][j]);
}

// Scores of R rows against U units, times the scales of K: scores[r * kChunk + 16 u + token]. q: pairs [dims / 2][R].
template <class S, int R, int U>
HR_NOINLINE void score_pairs(const uint8_t *const *units, const uint8_t *const *ahead, const PairWord *q, int32_t dims,
                             const float *scales, float *scores) {
    constexpr int kWidth = sizeof(S) / 4, kWords = kUnit / kWidth, N = kWords * U;
    constexpr int32_t kRow = kUnit * 4, kStep = kWidth * 4;
    S sums[R][N];
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) sums[r][j] = no_sum<S>();
    for (int32_t at = 0; at < dims / 2 * kRow; at += kRow, q += R) {
        HR_UNROLL for (int u = 0; u < U; u++) prefetch_l2(ahead[u] + at);
        multiply_pairs<S, R, N>(sums, [&](int r) -> const PairWord & { return q[r]; },
                                [&](int j) { return load_pairs<S>(units[j / kWords] + at + kStep * (j % kWords)); });
    }
    HR_UNROLL for (int u = 0; u < U; u++) prefetch_l2(ahead[u] + 2 * kUnit * 2 * dims);        // its scales
    HR_UNROLL for (int j = 0; j < N; j++) {
        const Word scale = load_as<Word>(scales + kWidth * j);
        HR_UNROLL for (int r = 0; r < R; r++) store(scores + r * kChunk + kWidth * j, as_floats(sums[r][j]) * scale);
    }
}

// sums[r * lds + i] = sums * factor[r] + step[r] * (sum over tokens of `count` units, codes[r * kChunk + t] * V[t][i]).
template <class S, int R, int W>
HR_NOINLINE void value_pairs(const uint8_t *const *units, const uint8_t *const *ahead, int32_t count, size_t values,
                             int32_t dims, const int16_t *codes, const float *factor, const float *step, float *sums) {
    constexpr int kWidth = sizeof(S) / 4;
    using V = decltype(as_floats(no_sum<S>()));
    S a[R][W];
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int i = 0; i < W; i++) a[r][i] = no_sum<S>();
    const PairWord *pairs = (const PairWord *)codes;
    for (int32_t u = 0; u < count; u++) {
        const uint8_t *v = units[u] + values, *next = ahead[u] + values;
        for (int32_t t = 0; t < kUnit / 2; t++, v += 4 * dims, next += 4 * dims, pairs++) {
            HR_UNROLL for (int32_t b = 0; b < W * kWidth * 4; b += 64) prefetch_l2(next + b);
            multiply_pairs<S, R, W>(a, [&](int r) -> const PairWord & { return pairs[r * (kChunk / 2)]; },
                                    [&](int i) { return load_pairs<S>(v + kWidth * 4 * i); });
        }
    }
    HR_UNROLL for (int r = 0; r < R; r++)
        HR_UNROLL for (int i = 0; i < W; i++) {
            float *to = sums + r * dims + kWidth * i;
            store(to, fma(as_floats(a[r][i]), splat_as<V>(step[r]), load_as<V>(to) * splat_as<V>(factor[r])));
        }
}

template <int R> struct PairShape {
#if defined(HR_SIMD_AVX512)
    static constexpr int kUnits = R <= 6 ? 4 : 2, kWidth = R <= 6 ? 4 : 2;
#else
    static constexpr int kUnits = R == 1 ? 2 : 1, kWidth = R <= 2 ? 4 : 2;
#endif
};

template <int R>
void score_units_of_pairs(const uint8_t *const *units, const uint8_t *const *ahead, int32_t count, const PairWord *q,
                          int32_t dims, const float *scales, float *scores) {
    constexpr int U = PairShape<R>::kUnits;
    int32_t u = 0;
    for (; u + U <= count; u += U)
        score_pairs<Sum, R, U>(units + u, ahead + u, q, dims, scales + kUnit * u, scores + kUnit * u);
    for (; u < count; u++) score_pairs<Sum, R, 1>(units + u, ahead + u, q, dims, scales + kUnit * u, scores + kUnit * u);
}

template <int R>
void add_values_of_pairs(const uint8_t *const *units, const uint8_t *const *ahead, int32_t count, int32_t dims,
                         const int16_t *codes, const float *factor, const float *step, float *sums) {
    constexpr int W = PairShape<R>::kWidth, kWidth = sizeof(Sum) / 4;
    const size_t values = (size_t)dims * kUnit * 2;
    int32_t d = 0;
    for (; d + kWidth * W <= dims; d += kWidth * W)
        value_pairs<Sum, R, W>(units, ahead, count, values + 4 * d, dims, codes, factor, step, sums + d);
    for (; d + kWidth <= dims; d += kWidth)
        value_pairs<Sum, R, 1>(units, ahead, count, values + 4 * d, dims, codes, factor, step, sums + d);
    for (; d < dims; d += 8)
        value_pairs<I8, R, 1>(units, ahead, count, values + 4 * d, dims, codes, factor, step, sums + d);
}

// 2^x for x <= 0, or above by a rounding; what is below 2^-125 becomes that. Degree 4 on [-0.5, 0.5], relative error 3e-6
// (minimax, own fit): codes of weights are coarser.
template <class V> HR_INLINE V power_of(V x, V n) {
    const V f = x - n;
    V p = fma(splat_as<V>(0x1.3a02ccp-7f), f, splat_as<V>(0x1.c9fc46p-5f));
    p = fma(p, f, splat_as<V>(0x1.ec0378p-3f));
    p = fma(p, f, splat_as<V>(0x1.62e12cp-1f));
    return fma(p, f, splat_as<V>(1.0f));
}
HR_INLINE F8 coarse_exp2(F8 x) {
    x = max(splat(-125.0f), x);
    const F8 n = round(x);
    return as_float(as_int(power_of(x, n)) + shift_left<23>(to_int(n)));
}
#if defined(HR_SIMD_AVX512)
HR_INLINE Wide coarse_exp2(Wide x) {
    x = max(splat_as<Wide>(-125.0f), x);
    const Wide n = {_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    return {_mm512_scalef_ps(power_of(x, n).v, n.v)};
}
HR_INLINE Wide operator+(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
#endif

// Sixteen sums, one per token of a unit: a word of the unit at a time. Their sum is the tree of `sum_lanes` over lanes i + 8.
struct UnitSums {
    Word lanes[kUnit / kLanes];
    HR_INLINE UnitSums() { for (Word &w : lanes) w = splat_as<Word>(0.0f); }
    HR_INLINE float total() const {
#if defined(HR_SIMD_AVX512)
        return sum_lanes(low(lanes[0]) + high(lanes[0]));
#else
        return sum_lanes(lanes[0] + lanes[1]);
#endif
    }
};

// Codes of sixteen weights, which are at least 0 and below 32768 after the product with `per_step`.
HR_INLINE void store_codes(int16_t *to, const float *weights, float per_step) {
#if defined(HR_SIMD_AVX512)
    const __m512i code = _mm512_cvtps_epi32((load_as<Wide>(weights) * splat_as<Wide>(per_step)).v);
    _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(code));
#else
    const I8 low = to_int(load(weights) * splat(per_step)), high = to_int(load(weights + 8) * splat(per_step));
#if defined(HR_SIMD_AVX2)
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(_mm256_packs_epi32(low.v, high.v), 0xd8));
#else
    int32_t code[16];
    store(code, low);
    store(code + 8, high);
    for (int i = 0; i < 16; i++) to[i] = (int16_t)code[i];
#endif
#endif
}

// The online softmax of R rows over units [begin, end) of a chunk. scores: products of codes times the scales of K; they are
// overwritten. codes: of the weights times the scales of V. The row's sums are to become sums * factor + step * integer sums.
template <int R>
void softmax_of_pairs(float *scores, const Visible &seen, const float *query_scales, const float *value_scales, float cap,
                      float *maximum, float *weight, int16_t *codes, float *factor, float *step) {
    alignas(32) float top[8], added[8], scales[8], sum[8], most[8], per_step[8];
    store(top, splat(-__builtin_inff()));
    store(added, zero());
    store(sum, zero());
    store(most, zero());
    store(scales, cap != 0.0f ? splat(1.0f) : load(query_scales));
    HR_UNROLL for (int r = 0; r < R; r++) {
        if (seen.first[r] >= seen.last[r]) continue;
        float *row = scores + r * kChunk;
        Word best = splat_as<Word>(kNone);
        for (int32_t i = seen.word_begin; i < seen.word_end; i++) {
            const int32_t t = kLanes * i;
            Word x = load_as<Word>(row + t);
            if (cap != 0.0f) store(row + t, x = splat_as<Word>(cap) * tanh(x * splat_as<Word>(query_scales[r])));
            if (t < seen.first[r] || t + kLanes > seen.last[r]) x = between(x, t, seen.first[r], seen.last[r], kNone);
            best = max(x, best);
        }
        top[r] = max_lanes(fold_max(best));
    }
    const F8 before = load(maximum), largest = max(load(top) * load(scales), before), scale = exp2_nonpositive(before - largest);
    store(maximum, largest);
    store(factor, scale);
    HR_UNROLL for (int r = 0; r < R; r++) {
        float *row = scores + r * kChunk;
        if (seen.first[r] >= seen.last[r]) {
            for (int32_t t = seen.word_begin * kLanes; t < seen.word_end * kLanes; t += 8) store(row + t, zero());
            continue;
        }
        const Word by = splat_as<Word>(scales[r]), less = splat_as<Word>(-maximum[r]);
        UnitSums weights, scaled;
        Word largest_scaled = splat_as<Word>(0.0f);
        for (int32_t u = seen.word_begin * kLanes; u < seen.word_end * kLanes; u += kUnit)
            HR_UNROLL for (int32_t i = 0; i < kUnit / kLanes; i++) {
                const int32_t t = u + kLanes * i;
                Word p = coarse_exp2(fma(load_as<Word>(row + t), by, less));
                Word w = p * load_as<Word>(value_scales + t);
                if (t < seen.first[r] || t + kLanes > seen.last[r]) {
                    p = between(p, t, seen.first[r], seen.last[r], 0.0f);
                    w = between(w, t, seen.first[r], seen.last[r], 0.0f);
                }
                weights.lanes[i] = weights.lanes[i] + p;
                scaled.lanes[i] = scaled.lanes[i] + w;
                largest_scaled = max(w, largest_scaled);
                store(row + t, w);
            }
        added[r] = weights.total();
        sum[r] = scaled.total();
        most[r] = max_lanes(fold_max(largest_scaled));
    }
    store(weight, load(weight) * scale + load(added));
    // A sum that is not a number must stay one: max gives its second operand then.
    const F8 steps = max(splat(kTinyStep), max(load(most) * splat(1.0f / kWeightCode), load(sum) * splat(1.0f / kWeightSum)));
    store(step, steps);
    store(per_step, splat(1.0f) / steps);
    HR_UNROLL for (int r = 0; r < R; r++)
        for (int32_t t = seen.word_begin * kLanes; t < seen.word_end * kLanes; t += kUnit)
            store_codes(codes + r * kChunk + t, scores + r * kChunk + t, per_step[r]);
}

}  // namespace HR_ISA
}  // namespace headrace
