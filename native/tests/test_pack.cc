// Packing is lossless: what `embed` reads back from packed panels equals, bit for bit, what the `gguf` package makes of the
// same blocks (hashes of its output are kept below; gguf_hashes.py prints them), in any row order and any share of rows.
#include "matmul_test.h"

using namespace matmul_test;
using kernel_test::check;

namespace {

constexpr int kRowCount = 21, kColumns = 512;   // 21: the last panel is short

struct Known { int32_t type; uint64_t hash; };
constexpr Known kKnown[] = {
    {2, 0x3c9c9d29b3662325},   // Q4_0
    {3, 0xed3b9d7b2eb7a235},   // Q4_1
    {6, 0xda78dfcf09da0b25},   // Q5_0
    {7, 0x98aad54acebe82a7},   // Q5_1
    {8, 0x6bd3bc3677561165},   // Q8_0
    {10, 0xf5aac4ccfd0a0d4b},  // Q2_K
    {11, 0x24fc0d060d604ee5},  // Q3_K
    {12, 0x9aa7715f379e06d6},  // Q4_K
    {13, 0x9c25564d7df998c6},  // Q5_K
    {14, 0x934322dd7ca0ed21},  // Q6_K
    {1, 0xace6091669ad2b25},   // F16
    {30, 0x99719394f2546b25},  // BF16
};

struct BlockShape { int32_t type; int columns, bytes, half0, half1; };
constexpr BlockShape kShapes[] = {
    {2, 32, 18, 0, 0},     {3, 32, 20, 0, 2},     {6, 32, 22, 0, 0},   {7, 32, 24, 0, 2},   {8, 32, 34, 0, 0},  {10, 256, 84, 80, 82},
    {11, 256, 110, 108, 108}, {12, 256, 144, 0, 2}, {13, 256, 176, 0, 2}, {14, 256, 210, 208, 208}, {1, 1, 2, 0, 0}, {30, 1, 2, 0, 0},
};

BlockShape shape_of(int32_t type) {
    for (const BlockShape &s : kShapes)
        if (s.type == type) return s;
    return {0, 1, 4, 0, 0};
}

std::vector<uint8_t> source_of(int32_t type) {
    const BlockShape shape = shape_of(type);
    std::vector<uint8_t> bytes((size_t)kRowCount * kColumns / shape.columns * shape.bytes);
    Random r((uint64_t)type);
    for (uint8_t &b : bytes) b = (uint8_t)r.next();
    for (size_t at = 0; at < bytes.size(); at += (size_t)shape.bytes)
        for (int half : {shape.half0, shape.half1}) bytes[at + half + 1] &= 0xbf;
    return bytes;
}

uint64_t hash_of(const std::vector<float> &values) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (float v : values) hash = (hash ^ float_bits(v)) * 0x100000001b3ull;
    return hash;
}

// Packed panels in aligned memory.
struct Panels {
    std::vector<uint8_t> memory;
    Matrix matrix;
    Panels(Layout layout, int n, int k) : memory(panel_bytes(layout, k) * (size_t)((n + 15) / 16) + 64, 0xcc) {
        matrix = {layout, n, k, data(), panel_bytes(layout, k)};
    }
    Panels(const Panels &) = delete;
    uint8_t *data() { return memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64; }
};

std::vector<float> read_back(const Kernels &kernels, const Matrix &matrix, float scale) {
    std::vector<int32_t> ids((size_t)matrix.n);
    for (int i = 0; i < matrix.n; i++) ids[(size_t)i] = i;
    std::vector<float> values((size_t)matrix.n * matrix.k);
    kernels.embed(&matrix, ids.data(), 0, 9, scale, values.data(), (size_t)matrix.k);
    kernels.embed(&matrix, ids.data(), 9, matrix.n, scale, values.data(), (size_t)matrix.k);
    return values;
}

void test_type(const Known &known) {
    const std::vector<uint8_t> source = source_of(known.type);
    const size_t row_bytes = source.size() / kRowCount;
    Layout layout;
    check(layout_of_source(known.type, &layout), "type %d has a layout", known.type);
    Panels panels(layout, kRowCount, kColumns);
    check(pack_rows(known.type, source.data(), row_bytes, nullptr, kRowCount, kColumns, 0, 16, panels.data()), "pack %d", known.type);
    check(pack_rows(known.type, source.data(), row_bytes, nullptr, kRowCount, kColumns, 16, 21, panels.data()), "pack %d", known.type);
    std::vector<float> plain;
    for (const Kernels *kernels : kernel_test::kernel_sets()) {
        plain = read_back(*kernels, panels.matrix, 1.0f);
        check(hash_of(plain) == known.hash, "%s type %d: hash %016llx of the values", kernels->name, known.type,
              (unsigned long long)hash_of(plain));
        std::vector<float> scaled = read_back(*kernels, panels.matrix, 0.7f), expected = plain;
        for (float &v : expected) v = v * 0.7f;
        check(kernel_test::same_bits(scaled, expected), "%s type %d: scaled rows", kernels->name, known.type);
    }
    Matrix padded = panels.matrix;   // rows past n of the last panel are zero
    padded.n = 32;
    const std::vector<float> all = read_back(*kernel_test::kernel_sets()[0], padded, 1.0f);
    for (size_t i = plain.size(); i < all.size(); i++) check(all[i] == 0.0f, "type %d: padding row", known.type);

    std::vector<int32_t> order(kRowCount);   // 8 is coprime to 21
    for (int i = 0; i < kRowCount; i++) order[(size_t)i] = (8 * i + 3) % kRowCount;
    Panels shuffled(layout, kRowCount, kColumns);
    check(pack_rows(known.type, source.data(), row_bytes, order.data(), kRowCount, kColumns, 0, kRowCount, shuffled.data()),
          "pack %d in another order", known.type);
    const std::vector<float> moved = read_back(*kernel_test::kernel_sets()[0], shuffled.matrix, 1.0f);
    for (int i = 0; i < kRowCount; i++)
        check(std::memcmp(&moved[(size_t)i * kColumns], &plain[(size_t)order[(size_t)i] * kColumns], 4 * kColumns) == 0,
              "type %d: row %d of another order", known.type, i);
}

// F32 rows come back as they were, whatever k is.
void test_f32() {
    Random r(3);
    for (int k : {1, 7, 64, 300}) {
        const std::vector<float> x = r.normals((size_t)kRowCount * k);
        Panels panels(Layout::F32, kRowCount, k);
        check(pack_rows(0, (const uint8_t *)x.data(), 4 * (size_t)k, nullptr, kRowCount, k, 0, kRowCount, panels.data()), "pack F32");
        for (const Kernels *kernels : kernel_test::kernel_sets())
            check(kernel_test::same_bits(read_back(*kernels, panels.matrix, 1.0f), x), "%s F32 k %d", kernels->name, k);
    }
}

// bfloat16 in pairs holds the values that it holds in columns, but for those that count as zero; in any order of rows.
void test_pairs() {
    std::vector<uint8_t> source = source_of(30);
    const size_t row_bytes = source.size() / kRowCount;
    const uint16_t small[] = {0x0001, 0x8001, 0x237f, 0xa37f, 0x2380, 0xa380, 0x7f80, 0xff7f};     // 2^-56 is 0x2380
    for (size_t i = 0; i < 8; i++) std::memcpy(source.data() + 6 * i, &small[i], 2);
    Panels columns(Layout::BF16, kRowCount, kColumns), pairs(Layout::BF16Pairs, kRowCount, kColumns);
    int32_t order[kRowCount];
    for (int i = 0; i < kRowCount; i++) order[i] = (8 * i + 3) % kRowCount;
    check(pack_rows(30, source.data(), row_bytes, order, kRowCount, kColumns, 0, kRowCount, columns.data()), "pack BF16");
    for (int begin : {0, 16}) check(pack_rows(kBfloatPairs, source.data(), row_bytes, order, kRowCount, kColumns, begin, begin ? kRowCount : 16, pairs.data()), "pack pairs");
    std::vector<float> expected = read_back(*kernel_test::kernel_sets()[0], columns.matrix, 0.7f);
    int zeros = 0;
    for (float &v : expected)
        if (v != 0 && std::fabs(v) < 0.7f * 0x1p-56f) v = 0, zeros++;
    check(zeros >= 4, "the test needs numbers that become zero");
    for (const Kernels *kernels : kernel_test::kernel_sets()) {
        const std::vector<float> got = read_back(*kernels, pairs.matrix, 0.7f);
        for (size_t i = 0; i < got.size(); i++) check(got[i] == expected[i], "%s pairs: value %zu is %a, not %a", kernels->name, i, got[i], expected[i]);
    }
    const std::vector<float> padding = read_back(*kernel_test::kernel_sets()[0], {Layout::BF16Pairs, 32, kColumns, pairs.data(), pairs.matrix.panel_bytes}, 1.0f);
    for (size_t i = expected.size(); i < padding.size(); i++) check(padding[i] == 0.0f, "pairs: padding row");
    Layout layout;
    check(layout_of_source(kBfloatPairs, &layout) && layout == Layout::BF16Pairs, "pairs have a layout");
    check(panel_bytes(Layout::BF16Pairs, 48) == 0, "pairs of half a group");
    check(!pack_rows(kBfloatPairs, source.data(), 96, nullptr, 16, 48, 0, 16, pairs.data()), "half a group of pairs");
}

// What cannot be packed is refused, and nothing is written.
void test_refusals() {
    Layout layout;
    for (int32_t type : {-1, 4, 5, 9, 15, 16, 24, 29, 31, 1000}) check(!layout_of_source(type, &layout), "type %d is unknown", type);
    const std::vector<uint8_t> source(1 << 16);
    std::vector<uint8_t> dst(1 << 16, 7);
    auto refused = [&](int32_t type, size_t row_bytes, int n, int k, int begin, int end) {
        return !pack_rows(type, source.data(), row_bytes, nullptr, n, k, begin, end, dst.data());
    };
    check(refused(99, 1 << 10, 16, 32, 0, 16), "unknown type");
    check(refused(2, 1 << 10, 16, 48, 0, 16), "k is no multiple of the block");
    check(refused(12, 1 << 10, 16, 32, 0, 16), "k is no multiple of 256");
    check(refused(2, 17, 16, 32, 0, 16), "rows too short");
    check(refused(2, 18, 0, 32, 0, 0), "no rows");
    check(refused(2, 18, 16, -32, 0, 16), "negative k");
    check(refused(2, 18, 40, 32, 8, 24), "begins inside a panel");
    check(refused(2, 18, 40, 32, 0, 24), "ends inside a panel");
    check(refused(2, 18, 40, 32, 32, 48), "past the end");
    check(refused(2, 18, 40, 32, -16, 16), "before the start");
    check(panel_bytes(Layout::Q4K, 128) == 0 && panel_bytes(Layout::Q4, 0) == 0 && panel_bytes(Layout::Q8, 31) == 0, "no such panel");
    for (uint8_t b : dst) check(b == 7, "a refused call wrote");
}

// Bits per weight of each layout, so that a change of format is noticed.
void test_sizes() {
    const struct { Layout layout; double bits; } sizes[] = {
        {Layout::F32, 32}, {Layout::F16, 16}, {Layout::BF16, 16}, {Layout::Q8, 8.5}, {Layout::Q4, 4.5}, {Layout::Q4M, 5}, {Layout::Q5, 5.5},
        {Layout::Q5M, 6}, {Layout::Q6K, 6.5625}, {Layout::Q4K, 4.625}, {Layout::Q5K, 5.625}, {Layout::Q3K, 3.5625}, {Layout::Q2K, 2.625}, {Layout::BF16Pairs, 16}};
    for (const auto &s : sizes)
        check((double)panel_bytes(s.layout, 2048) * 8 / (16 * 2048) == s.bits, "layout %d: bits per weight", (int)s.layout);
}

}  // namespace

int main() {
    for (const Known &known : kKnown) test_type(known);
    test_f32();
    test_pairs();
    test_refusals();
    test_sizes();
    std::printf("12 block types equal the gguf package bit for bit, in order and permuted; F32, refusals, sizes\n");
    return kernel_test::report("test_pack");
}
