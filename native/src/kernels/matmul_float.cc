// y = x W^T (+ y) (+ bias) for float weights (F32, F16, BF16), and the door to the quantized product.
//
// One chain of fused multiply-adds in ascending k per output element, from zero; then s + bias, then y_old + s. A panel is
// [K][16]. A tile keeps M rows x P panels of sums in registers: many chains side by side hide the latency of the
// multiply-add, and each activation that is read serves P panels. docs/kernels_float.md has the arithmetic and the ladder.
//
//   one tile of rows   for P panels: for k                                   panels fetched ahead of use
//   more               for block of rows: for P panels: for piece of K: for tile: for k in piece
//
// A piece of the panels stays in the cache for all tiles of the block; sums wait in an array between the pieces. With six
// rows a tile the conversion to floats would cost more than it does here: once per piece, into the L1 cache. With
// fourteen rows it is hidden behind the multiply-adds, and the panels are read as they are.
#include "kernels/decl.h"
#include "kernels/matmul_quant.h"

namespace headrace {
namespace HR_ISA {

namespace {

template <Layout L> constexpr int kRowBytes = L == Layout::F32 ? 64 : 32;   // of one k in a panel

#if defined(HR_SIMD_AVX512)
struct Word { __m512 v; };                       // kWords of them hold one k of a panel
constexpr int kWords = 1;
constexpr int kTileRows = 14;                    // x 2 panels: 28 sums, 2 weights, 1 activation of 32 registers

template <Layout L> HR_INLINE Word weight(const uint8_t *w, int) {
    if constexpr (L == Layout::F32) {
        return {_mm512_loadu_ps(w)};
    } else {
        const __m256i half = _mm256_loadu_si256((const __m256i *)w);
        if constexpr (L == Layout::F16) return {_mm512_cvtph_ps(half)};
        else return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
    }
}
HR_INLINE Word everywhere(float x) { return {_mm512_set1_ps(x)}; }
HR_INLINE Word multiply_add(Word a, Word b, Word c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
HR_INLINE Word read(const float *p) { return {_mm512_loadu_ps(p)}; }
HR_INLINE void write(float *p, Word a) { _mm512_storeu_ps(p, a.v); }

constexpr int most_rows(int panels) { return panels == 4 ? 2 : kTileRows; }
constexpr int kBlockPanels = 2, kPiece = 1024, kBlockRows = 8 * kTileRows;
constexpr bool kConverts = false;
#else
using Word = F8;
constexpr int kWords = 2;
constexpr int kTileRows = 6;                     // x 1 panel: 12 sums, 2 weights, 1 activation of 16 registers

template <Layout L> HR_INLINE Word weight(const uint8_t *w, int word) {
    if constexpr (L == Layout::F32) return load((const float *)w + 8 * word);
    if constexpr (L == Layout::F16) return load_half(w + 16 * word);
    else return load_bfloat(w + 16 * word);
}
HR_INLINE Word everywhere(float x) { return splat(x); }
HR_INLINE Word multiply_add(Word a, Word b, Word c) { return fma(a, b, c); }
HR_INLINE Word read(const float *p) { return load(p); }
HR_INLINE void write(float *p, Word a) { store(p, a); }

constexpr int most_rows(int panels) { return panels == 4 ? 1 : panels == 2 ? 3 : kTileRows; }
constexpr int kBlockPanels = 1, kPiece = 128, kBlockRows = 16 * kTileRows;
constexpr bool kConverts = true;
#endif

constexpr int kAhead = 2048;                     // bytes: how far ahead of use a panel is fetched; twice as far if alone

// The weights of P neighbouring panels, `stride` bytes apart, for k columns.
struct Weights {
    const uint8_t *data;
    size_t stride;
    int k;
};

struct Activations {
    const float *x;
    size_t ld;
};

// One k: sums += weights of P panels * activations of M rows.
template <Layout L, int M, int P>
HR_INLINE void add_column(const uint8_t *w, size_t stride, Activations a, Word sums[M][P * kWords]) {
    constexpr int WIDTH = P * kWords;
    if constexpr (M <= 3) {                      // the shorter side is kept: few registers beside the sums
        Word x[M];
        HR_UNROLL for (int m = 0; m < M; m++) x[m] = everywhere(a.x[m * a.ld]);
        HR_UNROLL for (int p = 0; p < WIDTH; p++) {
            const Word v = weight<L>(w + stride * (p / kWords), p % kWords);
            HR_UNROLL for (int m = 0; m < M; m++) {
                sums[m][p] = multiply_add(v, x[m], sums[m][p]);
                pin(sums[m][p]);
            }
        }
        return;
    }
    Word v[WIDTH];
    HR_UNROLL for (int p = 0; p < WIDTH; p++) v[p] = weight<L>(w + stride * (p / kWords), p % kWords);
    HR_UNROLL for (int m = 0; m < M; m++) {
        const Word x = everywhere(a.x[m * a.ld]);
        HR_UNROLL for (int p = 0; p < WIDTH; p++) sums[m][p] = multiply_add(v[p], x, sums[m][p]);
    }
    HR_UNROLL for (int m = 0; m < M; m++) HR_UNROLL for (int p = 0; p < WIDTH; p++) pin(sums[m][p]);
}

// sums[M][P * 16] (+)= M rows x P panels. Streaming tiles fetch ahead; near the end of a panel, from the panels of the
// next tile, P panels on.
template <Layout L, int M, int P, bool Streams>
HR_NOINLINE void tile(Weights w, Activations a, float *sums, bool resume) {
    constexpr int WIDTH = P * kWords, FLOATS = kRows / kWords, AHEAD = P == 1 ? 2 * kAhead : kAhead;
    Word acc[M][WIDTH];
    HR_UNROLL for (int m = 0; m < M; m++)
        HR_UNROLL for (int p = 0; p < WIDTH; p++) acc[m][p] = everywhere(0.0f);
    if (resume)
        HR_UNROLL for (int m = 0; m < M; m++)
            HR_UNROLL for (int p = 0; p < WIDTH; p++) acc[m][p] = read(sums + kRows * P * m + FLOATS * p);
    const uint8_t *data = w.data, *const end = data + (size_t)kRowBytes<L> * w.k;
    if constexpr (Streams) {
        const uint8_t *const turn = end - data > AHEAD ? end - AHEAD : data;
        for (size_t ahead = AHEAD; data < end; ahead += (P - 1) * w.stride)
            for (const uint8_t *const stop = data < turn ? turn : end; data < stop; data += kRowBytes<L>, a.x++) {
                HR_UNROLL for (int p = 0; p < P; p++) prefetch(data + ahead + w.stride * p);
                add_column<L, M, P>(data, w.stride, a, acc);
            }
    } else {
        for (; data < end; data += kRowBytes<L>, a.x++) add_column<L, M, P>(data, w.stride, a, acc);
    }
    HR_UNROLL for (int m = 0; m < M; m++)
        HR_UNROLL for (int p = 0; p < WIDTH; p++) write(sums + kRows * P * m + FLOATS * p, acc[m][p]);
}

template <Layout L, int P, bool Streams, int M = most_rows(P)>
HR_INLINE void tile_of(int m, Weights w, Activations a, float *sums, bool resume) {
    if (m == M) tile<L, M, P, Streams>(w, a, sums, resume);
    else if constexpr (M > 1) tile_of<L, P, Streams, M - 1>(m, w, a, sums, resume);
}

template <int P> HR_INLINE void write_panels(const MatmulArgs &a, int panel, int row, int rows, const float *sums) {
    for (int i = 0; i < rows; i++)
        for (int p = 0; p < P; p++) write_out(a, panel + p, (size_t)(row + i), sums + kRows * (P * i + p));
}

HR_INLINE Weights weights_of(const MatmulArgs &a, int panel) {
    return {a.w->data + a.w->panel_bytes * (size_t)panel, a.w->panel_bytes, a.w->k};
}

HR_INLINE Activations activations_of(const MatmulArgs &a, int row) { return {a.x + (size_t)row * a.ldx, a.ldx}; }

// All rows, at most one tile, and the panels from `panel` on, P at a time; what is left goes to smaller P.
template <Layout L, int P> void multiply_few(const MatmulArgs &a, int panel) {
    alignas(64) float sums[most_rows(P) * P * kRows];
    const int rows = a.row_end - a.row_begin;
    for (; panel + P <= a.panel_end; panel += P) {
        tile_of<L, P, true>(rows, weights_of(a, panel), activations_of(a, a.row_begin), sums, false);
        write_panels<P>(a, panel, a.row_begin, rows, sums);
    }
    if constexpr (P > 1)
        if (panel < a.panel_end) multiply_few<L, P / 2>(a, panel);
}

// floats[P][kPiece][16] = columns [0, w.k) of P panels; asks for the piece after them.
template <Layout L, int P> void convert(Weights w, float *floats) {
    for (int p = 0; p < P; p++) {
        const uint8_t *data = w.data + w.stride * p;
        for (int i = 0; i < w.k; i++, data += kRowBytes<L>) {
            prefetch(data + kRowBytes<L> * kPiece);
            HR_UNROLL for (int word = 0; word < kWords; word++)
                write(floats + kRows * (kPiece * p + i) + kRows / kWords * word, weight<L>(data, word));
        }
    }
}

// sums[end - begin][P * 16] (+)= rows [begin, end) of a piece of K that starts at column k.
template <Layout L, int P> void add_piece(const MatmulArgs &a, int begin, int end, int k, Weights piece, float *sums) {
    for (int row = begin; row < end;) {
        const int m = next_tile(end - row, most_rows(P));
        const Activations x = {a.x + (size_t)row * a.ldx + k, a.ldx};
        tile_of<L, P, !kConverts>(m, piece, x, sums + kRows * P * (row - begin), k > 0);
        row += m;
    }
}

// Rows [begin, end), at most kBlockRows, and the panels from `panel` on.
template <Layout L, int P> void multiply_block(const MatmulArgs &a, int begin, int end, int panel) {
    constexpr bool CONVERTS = kConverts && L != Layout::F32;
    alignas(64) float sums[kBlockRows * P * kRows], floats[CONVERTS ? P * kPiece * kRows : 1];
    for (; panel + P <= a.panel_end; panel += P) {
        for (int k = 0; k < a.w->k; k += kPiece) {
            Weights piece = weights_of(a, panel);
            piece.data += (size_t)kRowBytes<L> * k;
            piece.k = least(kPiece, a.w->k - k);
            if constexpr (CONVERTS) {
                convert<L, P>(piece, floats);
                piece = {(const uint8_t *)floats, sizeof(float) * kPiece * kRows, piece.k};
                add_piece<Layout::F32, P>(a, begin, end, k, piece, sums);
            } else {
                add_piece<L, P>(a, begin, end, k, piece, sums);
            }
        }
        write_panels<P>(a, panel, begin, end - begin, sums);
    }
    if constexpr (P > 1)
        if (panel < a.panel_end) multiply_block<L, P / 2>(a, begin, end, panel);
}

template <Layout L> void multiply_float(const MatmulArgs &a) {
    const int rows = a.row_end - a.row_begin;
    if (rows <= most_rows(4)) return multiply_few<L, 4>(a, a.panel_begin);
    if (rows <= most_rows(2)) return multiply_few<L, 2>(a, a.panel_begin);
    if (rows <= most_rows(1)) return multiply_few<L, 1>(a, a.panel_begin);
    for (int row = a.row_begin; row < a.row_end; row += kBlockRows)
        multiply_block<L, kBlockPanels>(a, row, least(a.row_end, row + kBlockRows), a.panel_begin);
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
