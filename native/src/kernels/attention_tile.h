// The two hot loops of attention: scores of a tile of rows against units of K, and weighted sums of V.
//
//   scores:  for d: K[d][16 tokens] is loaded once, each row adds q[d] * K[d]       (a lane is a token)
//   values:  for t: V[t][8 * W dims] is loaded once, each row adds p[t] * V[t]      (a lane is a dim)
//
// Each sum is one chain of fused multiply-adds, ascending in d or t, so neither the tile's height nor its width changes
// a bit. Both loops stay functions of their own with run-time trip counts and fully unrolled bodies: otherwise g++ 12
// keeps the sums in memory.
#pragma once
#include "kernels/attention_load.h"
#include "kernels/attention_plan.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kMaxTile = 6;       // rows of a tile: 6 rows x 2 vectors = 12 sums in 16 registers

HR_INLINE void pin(F8 &a) {
#if defined(HR_SIMD_AVX2)
    HR_PIN(a.v);
#elif defined(HR_SIMD_NEON)
    HR_PIN(a.lo);
    HR_PIN(a.hi);
#else
    (void)a;
#endif
}

// sums[r][j] += row(r) * column(j). The shorter side is held in registers and the longer one is loaded one by one: with
// twelve sums, 16 registers have room for no more.
template <int R, int N, class Row, class Column>
HR_INLINE void multiply_tile(F8 (&sums)[R][N], Row row, Column column) {
    if (R < N) {
        F8 x[R];
        HR_UNROLL for (int r = 0; r < R; r++) x[r] = row(r);
        HR_UNROLL for (int r = 0; r < R; r++) pin(x[r]);
        HR_UNROLL for (int j = 0; j < N; j++) {
            F8 k = column(j);
            pin(k);
            HR_UNROLL for (int r = 0; r < R; r++) sums[r][j] = fma(x[r], k, sums[r][j]);
        }
    } else {
        F8 k[N];
        HR_UNROLL for (int j = 0; j < N; j++) k[j] = column(j);
        HR_UNROLL for (int r = 0; r < R; r++) {
            const F8 x = row(r);
            HR_UNROLL for (int j = 0; j < N; j++) sums[r][j] = fma(x, k[j], sums[r][j]);
        }
    }
}

// Scores of R rows against U units: scores[r * kChunk + 16 * u + token]. q is dim-major [dims][R]. While unit u is read,
// the unit at ahead[u] (K, and V behind it) is drawn into the cache: two rows of K a step cover both.
template <class T, int R, int U>
HR_NOINLINE void score_tile(const uint8_t *const *units, const uint8_t *const *ahead, const float *q, int32_t dims,
                            float *scores) {
    constexpr int N = 2 * U;
    constexpr int32_t kRow = kUnit * T::kBytes;
    F8 sums[R][N];
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) sums[r][j] = zero();
    for (int32_t d = 0; d < dims; d++, q += R) {
        HR_UNROLL for (int u = 0; u < U; u++) {
            prefetch(ahead[u] + 2 * d * kRow);
            if (T::kBytes == 4) prefetch(ahead[u] + 2 * d * kRow + 64);
        }
        multiply_tile<R, N>(sums, [&](int r) { return splat(q[r]); },
                            [&](int j) { return T::load(units[j / 2] + d * kRow + 8 * T::kBytes * (j & 1)); });
        HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int j = 0; j < N; j++) pin(sums[r][j]);
    }
    HR_UNROLL for (int r = 0; r < R; r++)
        HR_UNROLL for (int j = 0; j < N; j++) store(scores + r * kChunk + 8 * j, sums[r][j]);
}

// V of consecutive tokens [begin, end) of a chunk, one row of `stride` bytes each.
struct Run {
    const uint8_t *v;
    int32_t begin, end;
};

// sums[r * lds + i] += p[r * kChunk + t] * V[t][i] for i < 8 W and t in [begin, end); V pointers are offset by `skip`.
template <class T, int R, int W>
HR_NOINLINE void value_tile(const Run *runs, int32_t begin, int32_t end, size_t skip, int32_t stride, const float *p,
                            float *sums, int32_t lds) {
    F8 a[R][W];
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int i = 0; i < W; i++) a[r][i] = load(sums + r * lds + 8 * i);
    for (; begin < end; runs++) {
        const int32_t stop = least(runs->end, end);
        if (stop <= begin) continue;
        const uint8_t *v = runs->v + (size_t)(begin - runs->begin) * stride + skip;
        for (; begin < stop; begin++, v += stride) {
            const float *w = p + begin;
            multiply_tile<R, W>(a, [&](int r) { return splat(w[r * kChunk]); },
                                [&](int i) { return T::load(v + 8 * T::kBytes * i); });
            HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int i = 0; i < W; i++) pin(a[r][i]);
        }
    }
    HR_UNROLL for (int r = 0; r < R; r++) HR_UNROLL for (int i = 0; i < W; i++) store(sums + r * lds + 8 * i, a[r][i]);
}

// Units per score tile and vectors per value tile: about twelve sums, enough to hide the latency of fma.
template <int R> struct TileShape {
    static constexpr int kUnits = R == 1 ? 4 : R <= 3 ? 2 : 1;
    static constexpr int kWidth = R == 1 ? 8 : R <= 3 ? 4 : 2;
};

template <class T, int R>
void score_units(const uint8_t *const *units, const uint8_t *const *ahead, int32_t count, const float *q, int32_t dims,
                 float *scores) {
    constexpr int U = TileShape<R>::kUnits;
    int32_t u = 0;
    for (; u + U <= count; u += U) score_tile<T, R, U>(units + u, ahead + u, q, dims, scores + kUnit * u);
    for (; u < count; u++) score_tile<T, R, 1>(units + u, ahead + u, q, dims, scores + kUnit * u);
}

template <class T, int R>
void add_values(const Run *runs, int32_t begin, int32_t end, int32_t dims, const float *p, float *sums) {
    constexpr int W = TileShape<R>::kWidth;
    const int32_t stride = dims * T::kBytes;
    int32_t d = 0;
    for (; d + 8 * W <= dims; d += 8 * W)
        value_tile<T, R, W>(runs, begin, end, (size_t)d * T::kBytes, stride, p, sums + d, dims);
    for (; d < dims; d += 8) value_tile<T, R, 1>(runs, begin, end, (size_t)d * T::kBytes, stride, p, sums + d, dims);
}

}  // namespace HR_ISA
}  // namespace headrace
