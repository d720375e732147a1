// y = x W^T (+ y) (+ bias) for float weights (F32, F16, BF16, BF16Pairs), and the door to the quantized product.
//
// One chain of fused multiply-adds in ascending k per output element, from zero; then s + bias, then y_old + s. A panel is
// [K][16]. A tile keeps M rows x P panels of sums in registers: many chains side by side hide the latency of the
// multiply-add, and each activation that is read serves P panels. docs/kernels_float.md has the arithmetic and the ladder.
//
// BF16Pairs: activations are rounded to bfloat16 and k goes 1, 0, 3, 2, 5, 4 ...: what vdpbf16ps does with a pair. Others do it
// with two fused multiply-adds. Products of two bfloat16 are exact and no sum is subnormal (kLeastBfloat): same bits.
//
//   one tile of rows   for P panels: for k                                   panels fetched ahead of use
//   more               for block of rows: for P panels: for piece of K: for tile: for k in piece
//
// A piece of the panels stays in the cache for all tiles of the block; sums wait in an array between the pieces. The first
// tile of a block converts 16-bit weights as it uses them and keeps the floats, which the other tiles read: a conversion
// takes the place of a multiply-add.
#include "kernels/decl.h"
#include "kernels/matmul_quant.h"

namespace headrace {
#if defined(HR_SIMD_AVX512BF16)
namespace avx512 { void matmul_quant(const MatmulArgs *args); }
#endif
namespace HR_ISA {

namespace {

// A step of a panel is one k, or a pair.
template <Layout L> constexpr int kStepBytes = L == Layout::F32 || L == Layout::BF16Pairs ? 64 : 32;
template <Layout L> constexpr int kStepColumns = L == Layout::BF16Pairs ? 2 : 1;
#if defined(HR_SIMD_AVX512BF16)
constexpr bool kMultipliesPairs = true;
#else
constexpr bool kMultipliesPairs = false;
#endif
template <Layout L> constexpr bool kSplitsPairs = L == Layout::BF16Pairs && !kMultipliesPairs;
template <Layout L> constexpr int kStepWords = kSplitsPairs<L> ? 2 : 1;    // 32-bit words of a row's activations in a step

#if defined(HR_SIMD_AVX512)
struct Word { __m512 v; };                       // kWords of them hold one k of a panel
constexpr int kWords = 1;
constexpr int kTileRows = 14;                    // x 2 panels: 28 sums, 2 weights, 1 activation of 32 registers

// `half`: which of a pair that is split.
template <Layout L> HR_INLINE Word weight(const uint8_t *w, int, int half) {
    if constexpr (kSplitsPairs<L>) {
        const __m512i pairs = _mm512_loadu_si512(w);
        if (half) return {_mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)))};
        return {_mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16))};
    } else if constexpr (kStepBytes<L> == 64) {
        return {_mm512_loadu_ps(w)};
    } else {
        const __m256i half = _mm256_loadu_si256((const __m256i *)w);
        if constexpr (L == Layout::F16) return {_mm512_cvtph_ps(half)};
        else return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
    }
}
HR_INLINE Word everywhere(float x) { return {_mm512_set1_ps(x)}; }
template <Layout L> HR_INLINE Word multiply_add(Word a, Word b, Word c) {
#if defined(HR_SIMD_AVX512BF16)
    if constexpr (L == Layout::BF16Pairs) return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
#endif
    return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
HR_INLINE Word read(const float *p) { return {_mm512_loadu_ps(p)}; }
HR_INLINE void write(float *p, Word a) { _mm512_storeu_ps(p, a.v); }

constexpr int most_rows(int panels) { return panels == 4 ? 2 : kTileRows; }
constexpr int kBlockPanels = 2, kPiece = 640, kBlockRows = 8 * kTileRows;     // floats of a piece: 80 KB in L2
HR_INLINE void fetch_far(const void *p) { prefetch_l2(p); }     // few rows wait for memory, and L1 has too few miss buffers
HR_INLINE void fetch_near(const void *p) { prefetch(p); }
#else
using Word = F8;
constexpr int kWords = 2;
constexpr int kTileRows = 6;                     // x 1 panel: 12 sums, 2 weights, 1 activation of 16 registers

template <Layout L> HR_INLINE Word weight(const uint8_t *w, int word, int half) {
    if constexpr (L == Layout::F32) return load((const float *)w + 8 * word);
    if constexpr (L == Layout::F16) return load_half(w + 16 * word);
    if constexpr (L == Layout::BF16Pairs) {
        const I8 pairs = load((const int32_t *)w + 8 * word);
        return as_float(half ? pairs & splat((int32_t)0xffff0000u) : shift_left<16>(pairs));
    }
    else return load_bfloat(w + 16 * word);
}
HR_INLINE Word everywhere(float x) { return splat(x); }
template <Layout L> HR_INLINE Word multiply_add(Word a, Word b, Word c) { return fma(a, b, c); }
HR_INLINE Word read(const float *p) { return load(p); }
HR_INLINE void write(float *p, Word a) { store(p, a); }

constexpr int most_rows(int panels) { return panels == 4 ? 1 : panels == 2 ? 3 : kTileRows; }
constexpr int kBlockPanels = 1, kPiece = 128, kBlockRows = 16 * kTileRows;    // floats of a piece: 8 KB in L1
HR_INLINE void fetch_far(const void *p) { prefetch(p); }
HR_INLINE void fetch_near(const void *) {}
#endif

constexpr int kAhead = 2048;                     // bytes: how far ahead of use a panel is fetched; twice as far if alone

// The weights of P neighbouring panels, `stride` bytes apart. What is read after them begins `onward` bytes behind their
// end, in each panel.
struct Weights {
    const uint8_t *data;
    size_t stride;
    int steps;
    ptrdiff_t onward;
};

struct Activations {
    const float *x;
    size_t ld;
};

// A word of weights; `Keeps`: also as floats at `kept`, panels [kPiece][16].
template <Layout L, int Half, bool Keeps> HR_INLINE Word take(const uint8_t *w, size_t stride, int p, float *kept) {
    const Word v = weight<L>(w + stride * (p / kWords), p % kWords, Half);
    if constexpr (Keeps) write(kept + kRows * kPiece * (p / kWords) + kRows / kWords * (p % kWords), v);
    return v;
}

// One k, or a pair in one instruction: sums += weights of P panels * activations of M rows.
template <Layout L, int M, int P, int Half, bool Keeps>
HR_INLINE void add_column(const uint8_t *w, size_t stride, Activations a, Word sums[M][P * kWords], float *kept) {
    constexpr int WIDTH = P * kWords;
    if constexpr (M <= 3) {                      // the shorter side is kept: few registers beside the sums
        Word x[M];
        HR_UNROLL for (int m = 0; m < M; m++) x[m] = everywhere(a.x[m * a.ld]);
        HR_UNROLL for (int p = 0; p < WIDTH; p++) {
            const Word v = take<L, Half, Keeps>(w, stride, p, kept);
            HR_UNROLL for (int m = 0; m < M; m++) {
                sums[m][p] = multiply_add<L>(v, x[m], sums[m][p]);
                pin(sums[m][p]);
            }
        }
        return;
    }
    Word v[WIDTH];
    HR_UNROLL for (int p = 0; p < WIDTH; p++) v[p] = take<L, Half, Keeps>(w, stride, p, kept);
    HR_UNROLL for (int m = 0; m < M; m++) {
        const Word x = everywhere(a.x[m * a.ld]);
        HR_UNROLL for (int p = 0; p < WIDTH; p++) sums[m][p] = multiply_add<L>(v[p], x, sums[m][p]);
    }
    HR_UNROLL for (int m = 0; m < M; m++) HR_UNROLL for (int p = 0; p < WIDTH; p++) pin(sums[m][p]);
}

template <Layout L, int M, int P, bool Keeps>
HR_INLINE void add_step(const uint8_t *w, size_t stride, Activations a, Word sums[M][P * kWords], float *kept) {
    if constexpr (kSplitsPairs<L>) add_column<L, M, P, 1, false>(w, stride, {a.x + 1, a.ld}, sums, nullptr);
    add_column<L, M, P, 0, Keeps>(w, stride, a, sums, kept);
}

// sums[M][P * 16] (+)= M rows x P panels. Tiles ask for what they read soon, and near the end for what comes next.
// `Near`: another tile has read the same, so it is in a cache.
template <Layout L, int M, int P, bool Near, bool Keeps>
HR_NOINLINE void tile(Weights w, Activations a, float *sums, bool resume, float *kept) {
    constexpr int WIDTH = P * kWords, FLOATS = kRows / kWords, AHEAD = P == 1 ? 2 * kAhead : kAhead;
    Word acc[M][WIDTH];
    HR_UNROLL for (int m = 0; m < M; m++)
        HR_UNROLL for (int p = 0; p < WIDTH; p++) acc[m][p] = everywhere(0.0f);
    if (resume)
        HR_UNROLL for (int m = 0; m < M; m++)
            HR_UNROLL for (int p = 0; p < WIDTH; p++) acc[m][p] = read(sums + kRows * P * m + FLOATS * p);
    const uint8_t *data = w.data, *const end = data + (size_t)kStepBytes<L> * w.steps;
    const uint8_t *const turn = end - data > AHEAD ? end - AHEAD : data;
    for (ptrdiff_t ahead = AHEAD; data < end; ahead += w.onward)
        for (const uint8_t *const stop = data < turn ? turn : end; data < stop; data += kStepBytes<L>, a.x += kStepWords<L>) {
            HR_UNROLL for (int p = 0; p < P; p++) {
                const uint8_t *const soon = data + ahead + w.stride * p;
                if constexpr (Near) fetch_near(soon);
                else fetch_far(soon);
            }
            add_step<L, M, P, Keeps>(data, w.stride, a, acc, kept);
            if constexpr (Keeps) kept += kRows;
        }
    HR_UNROLL for (int m = 0; m < M; m++)
        HR_UNROLL for (int p = 0; p < WIDTH; p++) write(sums + kRows * P * m + FLOATS * p, acc[m][p]);
}

template <Layout L, int P, bool Near, bool Keeps, int M = most_rows(P)>
HR_INLINE void tile_of(int m, Weights w, Activations a, float *sums, bool resume, float *kept) {
    if (m == M) tile<L, M, P, Near, Keeps>(w, a, sums, resume, kept);
    else if constexpr (M > 1) tile_of<L, P, Near, Keeps, M - 1>(m, w, a, sums, resume, kept);
}

template <int P> HR_INLINE void write_panels(const MatmulArgs &a, int panel, int row, int rows, const float *sums) {
    for (int i = 0; i < rows; i++)
        for (int p = 0; p < P; p++) write_out(a, panel + p, (size_t)(row + i), sums + kRows * (P * i + p));
}

// Some steps of P panels from `panel` on.
template <Layout L, int P> HR_INLINE Weights weights_of(const MatmulArgs &a, int panel, int first, int steps) {
    const size_t stride = a.w->panel_bytes;
    const bool last = first + steps == a.w->k / kStepColumns<L>;
    const uint8_t *const data = a.w->data + stride * (size_t)panel + (size_t)kStepBytes<L> * first;
    return {data, stride, steps, last ? (P - 1) * (ptrdiff_t)stride : 0};
}

// From a row and a step on.
template <Layout L> HR_INLINE Activations activations_of(const MatmulArgs &a, int row, int step) {
    const bool pairs = L == Layout::BF16Pairs;
    const size_t ld = pairs ? rounded_stride(a.w->k) : a.ldx;
    return {(pairs ? a.qx->rounded : a.x) + (size_t)row * ld + kStepWords<L> * step, ld};
}

// All rows, at most one tile, and the panels from `panel` on, P at a time; what is left goes to smaller P.
template <Layout L, int P> void multiply_few(const MatmulArgs &a, int panel) {
    alignas(64) float sums[most_rows(P) * P * kRows];
    const int rows = a.row_end - a.row_begin, steps = a.w->k / kStepColumns<L>;
    const Activations x = activations_of<L>(a, a.row_begin, 0);
    for (; panel + P <= a.panel_end; panel += P) {
        tile_of<L, P, false, false>(rows, weights_of<L, P>(a, panel, 0, steps), x, sums, false, nullptr);
        write_panels<P>(a, panel, a.row_begin, rows, sums);
    }
    if constexpr (P > 1)
        if (panel < a.panel_end) multiply_few<L, P / 2>(a, panel);
}

template <Layout L> constexpr bool kKeeps = kStepBytes<L> == 32;    // a pair is two floats at once: that costs little

// sums[end - begin][P * 16] (+)= rows [begin, end) of a piece of K that starts at a step. kept: room for its floats.
template <Layout L, int P>
void add_piece(const MatmulArgs &a, int begin, int end, int step, Weights piece, float *sums, float *kept) {
    constexpr Layout AGAIN = kKeeps<L> ? Layout::F32 : L;
    Weights again = {piece.data, piece.stride, piece.steps, -(ptrdiff_t)kStepBytes<AGAIN> * piece.steps};   // from the start
    if constexpr (kKeeps<L>) again.data = (const uint8_t *)kept, again.stride = sizeof(float) * kRows * kPiece;
    for (int row = begin; row < end;) {
        const int left = end - row, m = left > 2 * most_rows(P) ? most_rows(P) : next_tile(left, most_rows(P));
        const Activations x = activations_of<L>(a, row, step);
        float *const to = sums + kRows * P * (row - begin);
        if (row == begin) tile_of<L, P, false, kKeeps<L>>(m, piece, x, to, step > 0, kept);
        else tile_of<AGAIN, P, true, false>(m, again, x, to, step > 0, nullptr);
        row += m;
    }
}

// Rows [begin, end), at most kBlockRows, and the panels from `panel` on.
template <Layout L, int P> void multiply_block(const MatmulArgs &a, int begin, int end, int panel) {
    alignas(64) float sums[kBlockRows * P * kRows], kept[kKeeps<L> ? P * kPiece * kRows : 1];
    const int all = a.w->k / kStepColumns<L>;
    for (; panel + P <= a.panel_end; panel += P) {
        for (int step = 0; step < all;) {
            const int steps = next_tile(all - step, kPiece);
            add_piece<L, P>(a, begin, end, step, weights_of<L, P>(a, panel, step, steps), sums, kept);
            step += steps;
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
    for (int row = a.row_begin; row < a.row_end;) {
        const int equal = next_tile(a.row_end - row, kBlockRows), whole = (equal + kTileRows - 1) / kTileRows * kTileRows;
        const int end = least(a.row_end, row + whole);
        multiply_block<L, kBlockPanels>(a, row, end, a.panel_begin);
        row = end;
    }
}

}  // namespace

void matmul_float(const MatmulArgs *args) {
    switch (args->w->layout) {
        case Layout::F32: multiply_float<Layout::F32>(*args); break;
        case Layout::F16: multiply_float<Layout::F16>(*args); break;
        case Layout::BF16: multiply_float<Layout::BF16>(*args); break;
        case Layout::BF16Pairs: multiply_float<Layout::BF16Pairs>(*args); break;
        default: break;
    }
}

void matmul(const MatmulArgs *args) {
    if (args->w->layout <= Layout::BF16 || args->w->layout == Layout::BF16Pairs) matmul_float(args);
#if defined(HR_SIMD_AVX512BF16)
    else avx512::matmul_quant(args);
#else
    else matmul_quant(args);
#endif
}

}  // namespace HR_ISA
}  // namespace headrace
