// Pack rows of a checkpoint's matrix into panels of 16 output rows, without loss: codes, scales and minima are moved, never
// computed. Padding rows of the last panel are zero bytes (scale 0).
#ifndef HR_ISA
#define HR_ISA portable   // scalar code, built once
#endif
#include "headrace/kernels.h"
#include "kernels/layout.h"
#include "pack/blocks.h"

namespace headrace {

using namespace HR_ISA;

namespace {

// What a packing call reads, besides the format.
struct Source {
    const uint8_t *data;
    size_t row_bytes;
    const int32_t *order;
    int32_t k;

    const uint8_t *row(int32_t i) const { return data + row_bytes * (size_t)(order ? order[i] : i); }
};

template <class F> void put_header(const pack::Block &b, int row, uint8_t *header) {
    std::memcpy(header + 2 * row, &b.d, 2);
    if constexpr (F::MIN) std::memcpy(header + 2 * kRows + 2 * row, &b.dmin, 2);
    if constexpr (F::SUPER) {
        uint8_t *subs = header + F::SUPER_BYTES;
        for (int g = 0; g < F::GROUPS * F::STEPS; g++) {
            if constexpr (F::NIBBLE_PAIR) {
                subs[kRows * g + row] = (uint8_t)(b.sub[g] | b.sub_min[g] << 4);
            } else {
                subs[kRows * g + row] = b.sub[g];
                if constexpr (F::MIN) subs[F::SUBS + kRows * g + row] = b.sub_min[g];
            }
        }
    }
}

// One panel: `rows` (<= 16) rows from `first` on.
template <class Q, Layout L> void pack_panel(const Source &source, int32_t first, int rows, uint8_t *dst) {
    using F = Format<L>;
    static_assert(Q::COLUMNS == F::BLOCK_COLUMNS, "a source block becomes one block of the panel");
    std::memset(dst, 0, panel_bytes(L, source.k));
    for (int row = 0; row < rows; row++) {
        const uint8_t *src = source.row(first + row);
        uint8_t *block = dst;
        for (int at = 0; at < source.k; at += Q::COLUMNS, src += Q::BYTES, block += F::BLOCK_BYTES) {
            pack::Block b;
            Q::read(src, &b);
            put_header<F>(b, row, block);
            for (int i = 0; i < Q::COLUMNS; i++)
                put_code<F>(block + F::HEADER_BYTES + F::CODE_BYTES * (i / kStep), row, i % kStep, b.code[i]);
        }
    }
}

// Float panels are [K][16]: `Bytes` per value.
template <int Bytes> void pack_float_panel(const Source &source, int32_t first, int rows, uint8_t *dst, size_t size) {
    std::memset(dst, 0, size);
    for (int row = 0; row < rows; row++) {
        const uint8_t *src = source.row(first + row);
        for (int32_t k = 0; k < source.k; k++) std::memcpy(dst + Bytes * ((size_t)kRows * k + row), src + (size_t)Bytes * k, Bytes);
    }
}

using PackPanel = void (*)(const Source &, int32_t, int, uint8_t *);

// One line per source type.
struct SourceType {
    int32_t type;
    Layout layout;
    int32_t columns, bytes;     // of a block
    PackPanel pack;
};

template <class Q, Layout L> constexpr SourceType block_type(int32_t type) {
    return {type, L, Q::COLUMNS, Q::BYTES, pack_panel<Q, L>};
}
template <Layout L, int Bytes> constexpr SourceType float_type(int32_t type) {
    return {type, L, 1, Bytes, [](const Source &s, int32_t first, int rows, uint8_t *dst) {
                pack_float_panel<Bytes>(s, first, rows, dst, panel_bytes(L, s.k));
            }};
}

const SourceType kSources[] = {
    float_type<Layout::F32, 4>(0),
    float_type<Layout::F16, 2>(1),
    block_type<pack::Q4_0, Layout::Q4>(2),
    block_type<pack::Q4_1, Layout::Q4M>(3),
    block_type<pack::Q5_0, Layout::Q5>(6),
    block_type<pack::Q5_1, Layout::Q5M>(7),
    block_type<pack::Q8_0, Layout::Q8>(8),
    block_type<pack::Q2_K, Layout::Q2K>(10),
    block_type<pack::Q3_K, Layout::Q3K>(11),
    block_type<pack::Q4_K, Layout::Q4K>(12),
    block_type<pack::Q5_K, Layout::Q5K>(13),
    block_type<pack::Q6_K, Layout::Q6K>(14),
    float_type<Layout::BF16, 2>(30),
};

const SourceType *find_source(int32_t type) {
    for (const SourceType &s : kSources)
        if (s.type == type) return &s;
    return nullptr;
}

}  // namespace

// 0 for a column count that the layout cannot hold.
size_t panel_bytes(Layout layout, int32_t k) {
    if (k <= 0) return 0;
    size_t bytes = 0;
    const bool quantized = with_format(layout, [&](auto format) {
        using F = decltype(format);
        if (k % F::BLOCK_COLUMNS == 0) bytes = (size_t)(k / F::BLOCK_COLUMNS) * F::BLOCK_BYTES;
    });
    if (!quantized) bytes = (size_t)kRows * k * (layout == Layout::F32 ? 4 : 2);
    return round_up(bytes, 64);   // every panel starts on a cache line
}

bool layout_of_source(int32_t source_type, Layout *layout) {
    const SourceType *source = find_source(source_type);
    if (source) *layout = source->layout;
    return source != nullptr;
}

bool pack_rows(int32_t source_type, const uint8_t *source, size_t row_bytes, const int32_t *order, int32_t n, int32_t k,
               int32_t row_begin, int32_t row_end, uint8_t *dst) {
    const SourceType *type = find_source(source_type);
    if (!type || n <= 0 || k <= 0 || k % type->columns != 0) return false;
    if (row_bytes < (size_t)(k / type->columns) * type->bytes) return false;
    if (row_begin < 0 || row_begin % kRows != 0 || row_end < row_begin || row_end > n) return false;
    if (row_end % kRows != 0 && row_end != n) return false;
    const Source rows = {source, row_bytes, order, k};
    const size_t stride = panel_bytes(type->layout, k);
    for (int32_t row = row_begin; row < row_end; row += kRows)
        type->pack(rows, row, least(kRows, row_end - row), dst + stride * (size_t)(row / kRows));
    return true;
}

}  // namespace headrace
