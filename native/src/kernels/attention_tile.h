// The two hot loops of attention: scores of a tile of rows against units of K, and weighted sums of V.
//
//   scores:  for d: K[d][16 tokens] is loaded once, each row adds q[d] * K[d]       (a lane is a token)
//   values:  for t: V[t][lanes * W dims] is loaded once, each row adds p[t] * V[t]  (a lane is a dim)
//
// Each sum is one chain of fused multiply-adds, ascending in d or t, so neither the tile's height nor its width nor the
// word changes a bit. Both loops stay functions of their own with run-time trip counts and fully unrolled bodies:
// otherwise g++ 12 keeps the sums in memory.
//
// While a chunk is used, the next one is drawn into the cache, evenly: the score loop asks for its K, the value loop for
// its V. Asking for all of it in the score loop is more than the core's miss buffers hold.
#pragma once
#include <type_traits>

#include "kernels/attention_load.h"
#include "kernels/attention_plan.h"

namespace headrace {
namespace HR_ISA {

#if defined(HR_SIMD_AVX512)
constexpr int32_t kMaxTile = 8;       // rows of a tile: 8 rows x 2 words = 16 sums in 32 registers
#else
constexpr int32_t kMaxTile = 6;       // 6 rows x 2 words = 12 sums in 16 registers
#endif
constexpr int32_t kLine = 64;         // bytes of a cache line

// Into the second cache: a core has fewer miss buffers for the first (Zen 4: 24, which is 15 GB/s at 100 ns). Codes of one
// byte, half the bytes for the same arithmetic, do not wait for memory and gain from the first.
template <class T> HR_INLINE void draw_in(const uint8_t *p) {
    if (T::kBytes == 1) prefetch(p);
    else prefetch_l2(p);
}

// sums[r][j] += row(r) * column(j). The shorter side is held in registers and the longer one is loaded one by one: with
// twelve sums, 16 registers have room for no more.
template <class V, int R, int N, class Row, class Column>
HR_INLINE void multiply_tile(V (&sums)[R][N], Row row, Column column) {
    if (R < N) {
        V x[R];
        HR_UNROLL for (int r = 0; r < R; r++) x[r] = splat_as<V>(row(r));
        HR_UNROLL for (int r = 0; r < R; r++) pin(x[r]);
        HR_UNROLL for (int j = 0; j < N; j++) {
            V k = column(j);
            pin(k);
            HR_UNROLL for (int r = 0; r < R; r++) sums[r][j] = fma(x[r], k, sums[r][j]);
        }
    } else {
        V k[N];
        HR_UNROLL for (int j = 0; j < N; j++) k[j] = column(j);
        HR_UNROLL for (int r = 0; r < R; r++) {
            const float &x = row(r);
            HR_UNROLL for (int j = 0; j < N; j++) add_product(sums[r][j], x, k[j]);
        }
    }
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) pin(sums[r][j]);
}

// Scores of R rows against U units: scores[r * kChunk + 16 * u + token]. q is dim-major [dims][R]. Meanwhile K of the units
// at `ahead` is drawn into the cache.
template <class T, class V, int R, int U>
HR_NOINLINE void score_tile(const uint8_t *const *units, const uint8_t *const *ahead, const float *q, int32_t dims,
                            float *scores) {
    constexpr int kWidth = sizeof(V) / sizeof(float), kWords = kUnit / kWidth, N = kWords * U;
    constexpr int32_t kRow = kUnit * T::kBytes, kStep = kWidth * T::kBytes;
    V sums[R][N];
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) sums[r][j] = splat_as<V>(0.0f);
    for (int32_t at = 0; at < dims * kRow; at += kRow, q += R) {
        if (at % kLine == 0) HR_UNROLL for (int u = 0; u < U; u++) draw_in<T>(ahead[u] + at);
        multiply_tile<V, R, N>(sums, [&](int r) -> const float & { return q[r]; },
                               [&](int j) { return read<T, V>(units[j / kWords] + at + kStep * (j % kWords)); });
    }
    HR_UNROLL for (int r = 0; r < R; r++)
        HR_UNROLL for (int j = 0; j < N; j++) store(scores + r * kChunk + kWidth * j, sums[r][j]);
}

// V of consecutive tokens [begin, end) of a chunk, one row of `stride` bytes each, and the V to draw in meanwhile.
struct Run {
    const uint8_t *v, *ahead;
    int32_t begin, end;
};

// sums[r * lds + i] += p[r * kChunk + t] * V[t][i] for i < lanes * W and t in [begin, end); V pointers are offset by `skip`.
template <class T, class V, int R, int W>
HR_NOINLINE void value_tile(const Run *runs, int32_t begin, int32_t end, size_t skip, int32_t stride, const float *p,
                            float *sums, int32_t lds) {
    constexpr int kWidth = sizeof(V) / sizeof(float);
    constexpr int32_t kStep = kWidth * T::kBytes;
    V a[R][W];
    HR_UNROLL for (int r = 0; r < R; r++)
        HR_UNROLL for (int i = 0; i < W; i++) a[r][i] = load_as<V>(sums + r * lds + kWidth * i);
    for (; begin < end; runs++) {
        const int32_t stop = least(runs->end, end);
        if (stop <= begin) continue;
        const size_t at = (size_t)(begin - runs->begin) * stride + skip;
        const uint8_t *v = runs->v + at, *ahead = runs->ahead + at;
        for (; begin < stop; begin++, v += stride, ahead += stride) {
            const float *w = p + begin;
            HR_UNROLL for (int32_t b = 0; b < W * kStep; b += kLine) draw_in<T>(ahead + b);
            multiply_tile<V, R, W>(a, [&](int r) -> const float & { return w[r * kChunk]; },
                                   [&](int i) { return read<T, V>(v + kStep * i); });
        }
    }
    HR_UNROLL for (int r = 0; r < R; r++)
        HR_UNROLL for (int i = 0; i < W; i++) store(sums + r * lds + kWidth * i, a[r][i]);
}

// The word, units per score tile and words per value tile. Up to 24 sums in 32 registers, about twelve in 16; the latency
// of fma needs eight chains of F8, four of Wide. A Wide of halves costs 1.33 cycles to read, an F8 half a cycle, so Wide
// gains only from four rows on.
template <int R> struct TileShape {
#if defined(HR_SIMD_AVX512)
    using V = std::conditional_t<R <= 3, F8, Wide>;
    static constexpr int kUnits = R <= 6 ? 4 : 2, kWidth = R <= 3 ? 8 : R <= 6 ? 4 : 2;
#else
    using V = F8;
    static constexpr int kUnits = R == 1 ? 4 : R <= 3 ? 2 : 1, kWidth = R == 1 ? 8 : R <= 3 ? 4 : 2;
#endif
};

template <class T, int R>
void score_units(const uint8_t *const *units, const uint8_t *const *ahead, int32_t count, const float *q, int32_t dims,
                 float *scores) {
    using Tile = TileShape<R>;
    constexpr int U = Tile::kUnits;
    int32_t u = 0;
    for (; u + U <= count; u += U)
        score_tile<T, typename Tile::V, R, U>(units + u, ahead + u, q, dims, scores + kUnit * u);
    for (; u < count; u++) score_tile<T, typename Tile::V, R, 1>(units + u, ahead + u, q, dims, scores + kUnit * u);
}

template <class T, int R>
void add_values(const Run *runs, int32_t begin, int32_t end, int32_t dims, const float *p, float *sums) {
    if (begin >= end) return;
    using V = typename TileShape<R>::V;
    constexpr int W = TileShape<R>::kWidth, kWidth = sizeof(V) / sizeof(float);
    const int32_t stride = dims * T::kBytes;
    int32_t d = 0;
    for (; d + kWidth * W <= dims; d += kWidth * W)
        value_tile<T, V, R, W>(runs, begin, end, (size_t)d * T::kBytes, stride, p, sums + d, dims);
    for (; d + kWidth <= dims; d += kWidth)
        value_tile<T, V, R, 1>(runs, begin, end, (size_t)d * T::kBytes, stride, p, sums + d, dims);
    for (; d < dims; d += 8) value_tile<T, F8, R, 1>(runs, begin, end, (size_t)d * T::kBytes, stride, p, sums + d, dims);
}

}  // namespace HR_ISA
}  // namespace headrace
