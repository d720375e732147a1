// Quantized matrix product for many rows, AMX: one instruction multiplies 16 rows by a group of columns of a whole panel.
//
//   for block of rows: for panel: for piece of K: unpack the codes to signed bytes; for tile of 16 rows: for group
//
// tdpbssd sums products of signed bytes in 32 bits, exactly, so the integer sums, and with them every bit of the result,
// are those of the other instruction sets. A plane of a panel (16 rows x 4 columns) is what one row of the right-hand tile
// register holds, so unpacking moves nothing around. What 128 vpdpbusd do in 64 cycles takes 16 (half the unit's speed:
// a group has 32 of the 64 columns it could take; a quarter for groups of 16). Left are the way of the sums through
// memory, there is no other, and the float sums: 3 or 4 vector instructions for each row and group. docs/kernels.md has
// the arithmetic.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"        // g++ 12 warns about _mm512_undefined_ps of its own header
#endif
#include "kernels/decl.h"
#include "kernels/matmul_quant.h"

namespace headrace {
namespace avx512bf16 { void matmul(const MatmulArgs *args); }
namespace HR_ISA {

#include "kernels/matmul_quant_avx512.inc"

namespace {

constexpr int kTileRows = 16;
constexpr int kLeastRows = 32;                  // for fewer, unpacking takes longer than the tiles save
constexpr int kLeastRest = 8;                   // rows that are worth a tile of their own
constexpr int kPieceColumns = 1024;             // unpacked: 16 KB of the first-level cache
constexpr int kPieceSteps = kPieceColumns / kStep;
constexpr int kActivationBytes = 1 << 20;       // rows that are taken together stay in the second-level cache

// What the tile registers hold: C sums [rows][16], A activations [rows][group], B codes [group / 4][16][4].
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes[16] = {};                    // of a row
    uint8_t rows[16] = {};

    explicit TileConfig(int group) {
        for (int i = 0; i < 2; i++) set(i, kTileRows, 64), set(2 + i, kTileRows, group), set(4 + i, group / 4, 64);
    }
    void set(int tile, int row_count, int row_bytes) { rows[tile] = (uint8_t)row_count, bytes[tile] = (uint16_t)row_bytes; }
};

// The compiler's own intrinsics do not tell it what they read from memory, so it may drop the stores before them.
HR_INLINE void configure(const TileConfig &config) { asm volatile("ldtilecfg %0" : : "m"(config)); }
HR_INLINE void release() { asm volatile("tilerelease"); }

// C = A B for one group, into memory; two sets of registers, so that groups overlap.
template <int Set> HR_INLINE void multiply_group(const int8_t *a, size_t lda, const int8_t *b, int32_t *c) {
    if constexpr (Set == 0)
        asm volatile("tilezero %%tmm0\n\ttileloadd (%0,%1,1), %%tmm2\n\ttileloadd (%2,%4,1), %%tmm4\n\t"
                     "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\ttilestored %%tmm0, (%3,%4,1)"
                     : : "r"(a), "r"(lda), "r"(b), "r"(c), "r"((size_t)64) : "memory");
    else
        asm volatile("tilezero %%tmm1\n\ttileloadd (%0,%1,1), %%tmm3\n\ttileloadd (%2,%4,1), %%tmm5\n\t"
                     "tdpbssd %%tmm5, %%tmm3, %%tmm1\n\ttilestored %%tmm1, (%3,%4,1)"
                     : : "r"(a), "r"(lda), "r"(b), "r"(c), "r"((size_t)64) : "memory");
}

// A piece of one panel as the tile registers take it.
template <class F> struct Piece {
    alignas(64) int8_t codes[kPieceColumns * kRows];
    alignas(64) float scale[kPieceSteps * F::GROUPS][kRows];
    alignas(64) float minimum[F::MIN ? kPieceSteps * F::GROUPS : 1][kRows];
};

template <class F, int Q = 0> HR_INLINE void unpack_step(const uint8_t *codes, int8_t *out) {
    if constexpr (F::BITS == 8) {
        _mm512_store_si512(out + 64 * Q, _mm512_loadu_si512(codes + 64 * Q));
    } else {
        Planes p;
        load_low<F, Q>(codes, p);
        load_high<F, Q>(codes, p);
        __m512i v = quad_codes<F, Q>(p);
        if constexpr (F::ZERO != 0) v = _mm512_sub_epi8(v, _mm512_set1_epi8(F::ZERO));
        _mm512_store_si512(out + 64 * Q, v);
    }
    if constexpr (Q < 7) unpack_step<F, Q + 1>(codes, out);
}

// `steps` steps from `block` on, where a block begins.
template <class F> HR_NOINLINE void unpack(const uint8_t *block, int steps, Piece<F> &piece) {
    int8_t *out = piece.codes;
    for (int step = 0, group = 0; step < steps; step += F::STEPS, block += F::BLOCK_BYTES) {
        for (int g = 0; g < F::STEPS * F::GROUPS; g++, group++) {
            _mm512_store_ps(piece.scale[group], scales16<F>(block, g));
            if constexpr (F::MIN) {
                const __m512 m = minima16<F>(block, g);
                _mm512_store_ps(piece.minimum[group], F::SUPER ? _mm512_xor_ps(m, _mm512_set1_ps(-0.0f)) : m);
            }
        }
        const uint8_t *codes = block + F::HEADER_BYTES;
        for (int t = 0; t < F::STEPS; t++, codes += F::CODE_BYTES, out += kStep * kRows) {
            unpack_step<F>(codes, out);
        }
    }
}

// Scales and scaled sums of a block's rows, the 16 rows of a tile next to each other: there is one broadcast of each per row
// and group, and 32 pointers would take more loads than the sums themselves. [tile][group or step][row] On the stack, since
// kernels allocate nothing: 256 KB of the 8 MB that threads have.
constexpr int kFactors = 1 << 16;
struct Factors {
    alignas(64) float values[kFactors];
    size_t tile_scales, tile_sums, sums;        // floats of a tile; where sums begin

    template <class F> static int per_row(int k) { return k / kStep * (1 + (F::MIN ? F::GROUPS : 0)); }

    // For the tiles of rows [begin, end), the last of which may overlap the one before.
    template <class F> void gather(const QuantRows &x, int begin, int end) {
        const size_t steps = (size_t)(x.k / kStep), groups = steps * F::GROUPS;
        const int tiles = (end - begin + kTileRows - 1) / kTileRows;
        tile_scales = kTileRows * steps, tile_sums = kTileRows * groups, sums = tiles * tile_scales;
        for (int tile = 0; tile < tiles; tile++) {
            const size_t first = (size_t)least(begin + kTileRows * tile, end - kTileRows);
            transpose(x.scale + first * steps, steps, values + tile * tile_scales);
            if constexpr (F::MIN)
                transpose((F::GROUP == 32 ? x.scaled_sum : x.scaled_sum16) + first * groups, groups, values + sums + tile * tile_sums);
        }
    }

  private:
    static void transpose(const float *rows, size_t count, float *out) {
        for (size_t i = 0; i < count; i++)
            HR_UNROLL for (size_t m = 0; m < kTileRows; m++) out[kTileRows * i + m] = rows[m * count + i];
    }
};

// acc = fma(I, d_w * d_a, acc); acc = fma(m_w, d_a * S, acc) for group g of the piece.
template <class F> HR_INLINE void add_group(const Piece<F> &piece, const float *scale, const float *sum, int g, const int32_t *c,
                                            __m512 acc[kTileRows]) {
    const __m512 d = _mm512_load_ps(piece.scale[g]);
    scale += kTileRows * (g / F::GROUPS);
    HR_UNROLL for (int m = 0; m < kTileRows; m++) {
        acc[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(c + kRows * m)), _mm512_mul_ps(d, _mm512_set1_ps(scale[m])), acc[m]);
        if constexpr (!F::MIN) HR_PIN(acc[m]);
    }
    if constexpr (F::MIN) {
        const __m512 m_w = _mm512_load_ps(piece.minimum[g]);
        sum += kTileRows * g;
        HR_UNROLL for (int m = 0; m < kTileRows; m++) {
            acc[m] = _mm512_fmadd_ps(m_w, _mm512_set1_ps(sum[m]), acc[m]);
            HR_PIN(acc[m]);
        }
    }
}

// 16 rows times one piece: acc goes on. Sums are read two groups after they are written: loads cannot take them from the
// stores of a tile before these have reached the cache. Meanwhile memory sends what lies at `next`, or nothing if that is null.
template <class F>
HR_INLINE void add_piece(const Piece<F> &piece, int steps, const int8_t *a, size_t lda, const float *scale, const float *sum,
                         const uint8_t *next, __m512 acc[kTileRows]) {
    constexpr int kRing = 4, kLag = 2, B = F::GROUP * kRows, PAIR_BYTES = 2 * F::BLOCK_BYTES / F::STEPS / F::GROUPS;
    alignas(64) int32_t ring[kRing][kTileRows * kRows];
    const int groups = steps * F::GROUPS;
    const int8_t *b = piece.codes;
    int g = 0;
    for (; g + 1 < groups; g += 2, a += 2 * F::GROUP, b += 2 * B) {
        if (next) {
            for (int i = 0; i < PAIR_BYTES; i += 64) prefetch_l2(next + i);
            next += PAIR_BYTES;
        }
        multiply_group<0>(a, lda, b, ring[g % kRing]);
        if (g >= kLag) add_group<F>(piece, scale, sum, g - kLag, ring[(g - kLag) % kRing], acc);
        multiply_group<1>(a + F::GROUP, lda, b + B, ring[(g + 1) % kRing]);
        if (g >= kLag) add_group<F>(piece, scale, sum, g + 1 - kLag, ring[(g + 1 - kLag) % kRing], acc);
    }
    if (g < groups) multiply_group<0>(a, lda, b, ring[g % kRing]);
    for (g = greatest(g - kLag, 0); g < groups; g++) add_group<F>(piece, scale, sum, g, ring[g % kRing], acc);
}

// One panel for rows [begin, end), in tiles of 16; the last may overlap the one before and then writes only its own rows.
template <class F> HR_NOINLINE void multiply_panel(const MatmulArgs &a, int32_t panel, int begin, int end, const Factors &factors) {
    Piece<F> piece;
    alignas(64) float waiting[kBlockRows][kRows];        // sums that go on with the next piece
    const uint8_t *block = a.w->data + a.w->panel_bytes * (size_t)panel;
    const size_t k = (size_t)a.qx->k;
    const int steps = a.w->k / kStep;
    for (int step = 0; step < steps; step += kPieceSteps) {
        const int count = least(kPieceSteps, steps - step);
        unpack<F>(block, count, piece);
        block += count / F::STEPS * F::BLOCK_BYTES;
        for (int row = begin, tile = 0; row < end; row += kTileRows, tile++) {
            const int first = least(row, end - kTileRows);
            __m512 acc[kTileRows];
            HR_UNROLL for (int m = 0; m < kTileRows; m++)
                acc[m] = step ? _mm512_load_ps(waiting[kTileRows * tile + m]) : _mm512_setzero_ps();
            const float *scale = factors.values + tile * factors.tile_scales + kTileRows * step;
            const float *sum = F::MIN ? factors.values + factors.sums + tile * factors.tile_sums + kTileRows * step * F::GROUPS : nullptr;
            add_piece<F>(piece, count, a.qx->q + (size_t)first * k + kStep * step, k, scale, sum, tile ? nullptr : block, acc);
            if (step + count < steps) {
                HR_UNROLL for (int m = 0; m < kTileRows; m++) _mm512_store_ps(waiting[kTileRows * tile + m], acc[m]);
            } else {
                finish<kTileRows>(a, panel, (size_t)first, acc, row - first);
            }
        }
    }
}

// Rows that are taken together, whole tiles. With a long K few fit, or none: then unpacking would serve too few tiles.
template <class F> int block_rows(int k) {
    return least(kBlockRows, least(kActivationBytes / k, kFactors / Factors::per_row<F>(k))) / kTileRows * kTileRows;
}

template <class F> HR_NOINLINE void multiply_blocks(const MatmulArgs &a, int most) {
    const TileConfig config(F::GROUP);
    Factors factors;
    configure(config);
    int left = (a.row_end - a.row_begin + most - 1) / most;      // blocks of nearly equal size
    for (int row = a.row_begin, end; row < a.row_end; row = end, left--) {
        end = row + ((a.row_end - row + left - 1) / left + kTileRows - 1) / kTileRows * kTileRows;
        end = least(a.row_end, end);
        factors.gather<F>(*a.qx, row, end);
        for (int panel = a.panel_begin; panel < a.panel_end; panel++) multiply_panel<F>(a, panel, row, end, factors);
    }
    release();
}

}  // namespace

void matmul(const MatmulArgs *args) {
    const int rows = args->row_end - args->row_begin, rest = rows % kTileRows < kLeastRest ? rows % kTileRows : 0;
    MatmulArgs tiled = *args, others = *args;
    tiled.row_end = others.row_begin = args->row_end - rest;
    bool done = false;
    if (rows >= kLeastRows) with_format(args->w->layout, [&](auto format) {
        const int most = block_rows<decltype(format)>(args->w->k);
        if (most >= kLeastRows) multiply_blocks<decltype(format)>(tiled, most), done = true;
    });
    if (!done) avx512bf16::matmul(args);
    else if (rest) avx512bf16::matmul(&others);
}

}  // namespace HR_ISA
}  // namespace headrace
