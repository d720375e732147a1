// Pack rows of a checkpoint's matrix into panels of 16 output rows, without loss: codes, scales and minima are moved, never
// computed (but for BF16Pairs). Padding rows of the last panel are zero bytes (scale 0).
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

template <class F> void put_header(const pack::Header &h, int row, uint8_t *header) {
    std::memcpy(header + 2 * row, &h.d, 2);
    if constexpr (F::MIN) std::memcpy(header + 2 * kRows + 2 * row, &h.dmin, 2);
    if constexpr (F::SUPER) {
        uint8_t *subs = header + F::SUPER_BYTES;
        for (int g = 0; g < F::GROUPS * F::STEPS; g++) {
            if constexpr (F::NIBBLE_PAIR) {
                subs[kRows * g + row] = (uint8_t)(h.sub[g] | h.sub_min[g] << 4);
            } else {
                subs[kRows * g + row] = h.sub[g];
                if constexpr (F::MIN) subs[F::SUBS + kRows * g + row] = h.sub_min[g];
            }
        }
    }
}

// The word of one row in a plane of 64 bytes.
inline void put_word(uint8_t *plane, int row, uint32_t word) { std::memcpy(plane + 4 * row, &word, 4); }

// The codes of one row and step, as layout.h draws them: what it says of a byte is done to four at once.
template <class Q, class F> HR_INLINE void put_step(const uint8_t *src, int step, int row, uint8_t *codes) {
    uint32_t quad[8];
    for (int q = 0; q < 8; q++) quad[q] = Q::quad(src, step, q);
    if constexpr (F::BITS == 8) {
        for (int q = 0; q < 8; q++) put_word(codes + 64 * q, row, quad[q]);
        return;
    }
    for (int j = 0; j < F::LOW_BYTES / 64; j++) {
        if constexpr (F::BITS >= 4) {
            put_word(codes + 64 * j, row, (quad[j] & pack::kNibbles) | (quad[j + 4] & pack::kNibbles) << 4);
        } else {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++) word |= (quad[2 * i + j] & pack::kPairs) << (2 * i);
            put_word(codes + 64 * j, row, word);
        }
    }
    uint8_t *high = codes + F::LOW_BYTES;
    if constexpr (F::BITS == 5 || F::BITS == 3) {
        uint32_t word = 0;
        for (int q = 0; q < 8; q++) word |= (quad[q] >> (F::BITS - 1) & pack::kOnes) << q;
        put_word(high, row, word);
    }
    if constexpr (F::BITS == 6) {
        for (int j = 0; j < 2; j++) {
            uint32_t word = 0;
            for (int i = 0; i < 4; i++) word |= (quad[4 * j + i] >> 4 & pack::kPairs) << (2 * i);
            put_word(high + 64 * j, row, word);
        }
    }
}

// Zero what packing will not write: padding rows, and the bytes that round a panel up.
void clear_panel(uint8_t *dst, int rows, size_t used, size_t size) {
    if (rows < kRows) std::memset(dst, 0, size);
    else if (used < size) std::memset(dst + used, 0, size - used);
}

// One panel: `rows` (<= 16) rows from `first` on. All rows of a block before the next block: it is written once.
template <class Q, Layout L> void pack_panel(const Source &source, int32_t first, int rows, uint8_t *dst) {
    using F = Format<L>;
    static_assert(Q::COLUMNS == F::BLOCK_COLUMNS, "a source block becomes one block of the panel");
    const size_t blocks = (size_t)source.k / Q::COLUMNS;
    clear_panel(dst, rows, blocks * F::BLOCK_BYTES, panel_bytes(L, source.k));
    const uint8_t *src[kRows] = {};
    for (int row = 0; row < rows; row++) src[row] = source.row(first + row);
    for (size_t block = 0; block < blocks; block++, dst += F::BLOCK_BYTES) {
        for (int row = 0; row < rows; row++) {
            const uint8_t *p = src[row] + block * Q::BYTES;
            pack::Header header;
            Q::header(p, &header);
            put_header<F>(header, row, dst);
            for (int step = 0; step < F::STEPS; step++)
                put_step<Q, F>(p, step, row, dst + F::HEADER_BYTES + F::CODE_BYTES * step);
        }
    }
}

// `Count` rows of a float panel, columns [begin, end): a column of them is written as one piece.
template <class T, int Count> HR_INLINE void move_rows(const Source &source, int32_t first, int32_t begin, int32_t end, uint8_t *dst) {
    const uint8_t *src[Count];
    for (int i = 0; i < Count; i++) src[i] = source.row(first + i);
    for (int32_t k = begin; k < end; k++) {
        T piece[Count];
        for (int i = 0; i < Count; i++) std::memcpy(&piece[i], src[i] + sizeof(T) * k, sizeof(T));
        std::memcpy(dst + sizeof(T) * kRows * k, piece, sizeof piece);
    }
}

// Float panels are [K][16]: `T` is an unsigned word of a value's size. Tiles of 64 columns stay in the first cache until all
// their rows are there.
template <class T> void pack_float_panel(const Source &source, int32_t first, int rows, uint8_t *dst, size_t size) {
    constexpr int32_t kTile = 64;
    clear_panel(dst, rows, sizeof(T) * (size_t)kRows * (size_t)source.k, size);
    for (int32_t begin = 0; begin < source.k; begin += kTile) {
        const int32_t end = least(begin + kTile, source.k);
        int row = 0;
        for (; row + 8 <= rows; row += 8) move_rows<T, 8>(source, first + row, begin, end, dst + sizeof(T) * row);
        for (; row < rows; row++) move_rows<T, 1>(source, first + row, begin, end, dst + sizeof(T) * row);
    }
}

// BF16Pairs: [K / 2][16][2]. Numbers that count as zero become zero.
void pack_pairs_panel(const Source &source, int32_t first, int rows, uint8_t *dst) {
    clear_panel(dst, rows, 2 * (size_t)kRows * (size_t)source.k, panel_bytes(Layout::BF16Pairs, source.k));
    for (int row = 0; row < rows; row++) {
        const uint8_t *src = source.row(first + row);
        for (int32_t k = 0; k < source.k; k++) {
            const uint16_t bits = load_u16(src + 2 * (size_t)k);
            const uint16_t kept = (uint32_t)(bits & 0x7fff) << 16 < float_bits(kLeastBfloat) ? 0 : bits;
            std::memcpy(dst + 64 * (size_t)(k / 2) + 4 * row + 2 * (k % 2), &kept, 2);
        }
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
template <Layout L, class T> constexpr SourceType float_type(int32_t type) {
    return {type, L, 1, sizeof(T), [](const Source &s, int32_t first, int rows, uint8_t *dst) {
                pack_float_panel<T>(s, first, rows, dst, panel_bytes(L, s.k));
            }};
}

const SourceType kSources[] = {
    float_type<Layout::F32, uint32_t>(0),
    float_type<Layout::F16, uint16_t>(1),
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
    float_type<Layout::BF16, uint16_t>(30),
    {kBfloatPairs, Layout::BF16Pairs, 32, 64, pack_pairs_panel},
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
    if (layout == Layout::BF16Pairs && k % kStep) return 0;     // its activations are rows of whole groups
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
