// y = x W^T (+ y) (+ bias) for float weights (F32, F16, BF16), and the door to the quantized product.
//
// One chain of fused multiply-adds in ascending k per output element, from zero; then s + bias, then y_old + s. A panel is
// [K][16]: a tile keeps M rows x 16 outputs in registers and reads each weight once per tile, converting on use.
//
//   for block of rows: for panel: for tile of <= 6 rows (12 with AVX-512): for k
#include "kernels/decl.h"
#include "kernels/matmul_quant.h"

namespace headrace {
namespace HR_ISA {

namespace {

template <Layout L> struct Weight;
template <> struct Weight<Layout::F32> { static constexpr int BYTES = 4; };
template <> struct Weight<Layout::F16> { static constexpr int BYTES = 2; };
template <> struct Weight<Layout::BF16> { static constexpr int BYTES = 2; };

#if defined(HR_SIMD_AVX512)
constexpr int kTileRows = 12;

template <Layout L> HR_INLINE __m512 weights16(const uint8_t *w) {
    if constexpr (L == Layout::F32) return _mm512_loadu_ps(w);
    const __m256i half = _mm256_loadu_si256((const __m256i *)w);
    if constexpr (L == Layout::F16) return _mm512_cvtph_ps(half);
    else return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

template <Layout L, int M> HR_NOINLINE void tile(const uint8_t *w, const float *x, size_t ldx, int k, float *sums) {
    __m512 acc[M];
    HR_UNROLL for (int m = 0; m < M; m++) acc[m] = _mm512_setzero_ps();
    constexpr int ROW = kRows * Weight<L>::BYTES;
    for (int i = 0; i < k; i++, w += ROW, x++) {
        prefetch(w + 2048);
        const __m512 v = weights16<L>(w);
        HR_UNROLL for (int m = 0; m < M; m++) acc[m] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[m * ldx]), acc[m]);
        HR_UNROLL for (int m = 0; m < M; m++) HR_PIN(acc[m]);
    }
    HR_UNROLL for (int m = 0; m < M; m++) _mm512_storeu_ps(sums + kRows * m, acc[m]);
}
#else
constexpr int kTileRows = 6;

template <Layout L> HR_INLINE F8 weights8(const uint8_t *w) {
    if constexpr (L == Layout::F32) return load((const float *)w);
    if constexpr (L == Layout::F16) return load_half(w);
    else return load_bfloat(w);
}

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

template <Layout L, int M> HR_NOINLINE void tile(const uint8_t *w, const float *x, size_t ldx, int k, float *sums) {
    F8 acc[M][2];
    HR_UNROLL for (int m = 0; m < M; m++) acc[m][0] = acc[m][1] = zero();
    constexpr int HALF = 8 * Weight<L>::BYTES;
    for (int i = 0; i < k; i++, w += 2 * HALF, x++) {
        prefetch(w + 2048);
        const F8 v[2] = {weights8<L>(w), weights8<L>(w + HALF)};
        HR_UNROLL for (int m = 0; m < M; m++) {
            const F8 a = splat(x[m * ldx]);
            HR_UNROLL for (int h = 0; h < 2; h++) acc[m][h] = fma(v[h], a, acc[m][h]);
        }
        HR_UNROLL for (int m = 0; m < M; m++) HR_UNROLL for (int h = 0; h < 2; h++) pin(acc[m][h]);
    }
    HR_UNROLL for (int m = 0; m < M; m++) HR_UNROLL for (int h = 0; h < 2; h++) store(sums + kRows * m + 8 * h, acc[m][h]);
}
#endif

template <Layout L, int M = kTileRows>
HR_INLINE void tile_of(int m, const uint8_t *w, const float *x, size_t ldx, int k, float *sums) {
    if (m == M) tile<L, M>(w, x, ldx, k, sums);
    else if constexpr (M > 1) tile_of<L, M - 1>(m, w, x, ldx, k, sums);
}

template <Layout L> void multiply_float(const MatmulArgs &a) {
    alignas(64) float sums[kTileRows * kRows];
    const int block_rows = rows_per_block(4 * a.w->k, 96, kTileRows);
    for (int block = a.row_begin; block < a.row_end; block += block_rows)
        for (int panel = a.panel_begin; panel < a.panel_end; panel++) {
            const uint8_t *w = a.w->data + a.w->panel_bytes * (size_t)panel;
            const int end = least(a.row_end, block + block_rows);
            for (int row = block; row < end;) {
                const int m = next_tile(end - row, kTileRows);
                tile_of<L>(m, w, a.x + (size_t)row * a.ldx, a.ldx, a.w->k, sums);
                for (int i = 0; i < m; i++) write_out(a, panel, (size_t)(row + i), sums + kRows * i);
                row += m;
            }
        }
}

}  // namespace

void matmul_float(const MatmulArgs *args) {
    switch (args->w->layout) {
        case Layout::F32: multiply_float<Layout::F32>(*args); break;
        case Layout::F16: multiply_float<Layout::F16>(*args); break;
        case Layout::BF16: multiply_float<Layout::BF16>(*args); break;
        default: break;
    }
}

void matmul(const MatmulArgs *args) {
    if (args->w->layout <= Layout::BF16) matmul_float(args);
    else matmul_quant(args);
}

}  // namespace HR_ISA
}  // namespace headrace
