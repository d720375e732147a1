// The matrix product and the quantizer: every instruction set against the scalar definition, bit for bit, over random
// shapes and random shares of rows and panels, with codes and activations at both extremes.
#include "matmul_test.h"

using namespace matmul_test;
using kernel_test::check;

namespace {

// Activations: random, with some groups at one extreme or alternating between both.
std::vector<float> activations(int rows, size_t ldx, bool extreme, Random &r) {
    std::vector<float> x = r.normals((size_t)rows * ldx, 2.0f);
    if (!extreme) return x;
    for (size_t i = 0; i < x.size(); i++) {
        const int kind = (int)(i / 32 % 4);
        x[i] = kind == 0 ? 1.0f : kind == 1 ? -1.0f : kind == 2 ? (i % 2 ? 1.0f : -1.0f) : r.next() & 4 ? 3.0f : -3.0f;
    }
    return x;
}

struct Case {
    LayoutName layout;
    int n, k, m;
    Fill fill;
    bool extreme, accumulate, bias;
};

// Runs a kernel over random shares: row ranges x panel ranges, in order.
void run_shares(const Kernels &kernels, MatmulArgs args, int m, int panels, Random &r) {
    for (int row = 0; row < m;) {
        const int row_end = row + 1 + r.below(m - row);
        for (int panel = 0; panel < panels;) {
            const int panel_end = panel + 1 + r.below(panels - panel);
            args.row_begin = row;
            args.row_end = row_end;
            args.panel_begin = panel;
            args.panel_end = panel_end;
            kernels.matmul(&args);
            panel = panel_end;
        }
        row = row_end;
    }
}

void test_case(const Case &c, Random &r, int shares) {
    const size_t ldx = (size_t)c.k + 8 * r.below(3), ldy = (size_t)c.n + r.below(20);
    const PackedWeights weights(c.layout.layout, c.n, c.k, c.fill, r);
    const std::vector<float> x = activations(c.m, ldx, c.extreme, r), bias = r.normals((size_t)c.n), old = r.normals(c.m * ldy);
    QuantMemory pairs(c.m, is_float(c.layout.layout) ? 32 : c.k), wide(c.m, pairs.rows.k);
    if (!is_float(c.layout.layout)) define_quantize(x.data(), ldx, false, pairs);
    if (!is_float(c.layout.layout)) define_quantize(x.data(), ldx, true, wide);
    QuantMemory own(c.m, pairs.rows.k);      // rounded by each set: how they lie is its own business
    const bool rounds = c.layout.layout == Layout::BF16Pairs;
    std::vector<float> expected = old;      // columns past n keep their values
    for (int m = 0; m < c.m; m++) {
        const std::vector<float> sums = define_row(weights.matrix, x.data(), ldx, &pairs.rows, m);
        for (int n = 0; n < c.n; n++) {
            const float s = c.bias ? sums[(size_t)n] + bias[(size_t)n] : sums[(size_t)n];
            expected[m * ldy + n] = c.accumulate ? old[m * ldy + n] + s : s;
        }
    }
    for (const Kernels *kernels : kernel_test::kernel_sets()) {
        const QuantRows &rows = rounds ? own.rows : wide_start(kernels) ? wide.rows : pairs.rows;
        if (rounds) kernels->quantize_rows(x.data(), ldx, &rows, 0, c.m);
        for (int share = 0; share < shares; share++) {
            std::vector<float> y = old;
            const MatmulArgs args = {&weights.matrix, x.data(), ldx, &rows, c.bias ? bias.data() : nullptr,
                                     y.data(), ldy, 0, c.m, 0, (c.n + 15) / 16, c.accumulate};
            if (share == 0) kernels->matmul(&args);
            else run_shares(*kernels, args, c.m, (c.n + 15) / 16, r);
            check(kernel_test::same_bits(y, expected), "%s %s n %d k %d m %d fill %d extreme %d accumulate %d bias %d share %d",
                  kernels->name, c.layout.name, c.n, c.k, c.m, (int)c.fill, c.extreme, c.accumulate, c.bias, share);
        }
    }
}

void test_layout(const LayoutName &layout) {
    Random r(17 + (uint64_t)layout.layout);
    const int unit = block_columns(layout.layout);
    auto columns = [&](int most) { return unit == 1 ? 1 + r.below(most) : unit * (1 + r.below(most / unit)); };
    for (Fill fill : {Fill::Lowest, Fill::Highest, Fill::Mixed}) {
        test_case({layout, 24, columns(768), 7, fill, true, false, false}, r, 2);
        test_case({layout, 16, columns(768), 19, fill, true, false, false}, r, 2);
        test_case({layout, 16, columns(768), 47, fill, true, false, false}, r, 2);
    }
    for (int trial = 0; trial < 14; trial++)
        test_case({layout, 1 + r.below(70), columns(trial % 5 == 0 ? 2048 : 640), 1 + r.below(40), Fill::Random, trial % 2 == 1,
                   trial % 3 == 0, trial % 4 < 2}, r, 4);
    for (int m = 1; m <= 13; m++) test_case({layout, 33, columns(320), m, Fill::Random, false, m % 2 == 0, m % 3 == 0}, r, 2);
    test_case({layout, 20, unit == 1 ? 300 : 256, 140, Fill::Random, false, true, true}, r, 3);    // more than a block of rows
    test_case({layout, 17, 5120, 45, Fill::Random, false, false, true}, r, 3);                     // several K blocks
    test_case({layout, 18, columns(512), 229, Fill::Random, false, true, false}, r, 2);            // more than a block of tiles
    test_case({layout, 7, 20480, 67, Fill::Random, false, false, false}, r, 1);                    // blocks of few tiles
    test_case({layout, 5, 20480, 57, Fill::Random, false, true, false}, r, 1);                     // and one that is short
    test_case({layout, 18, 1024 + (unit == 256 ? 256 : 32), 43, Fill::Random, false, true, true}, r, 2);   // a short piece of K
    test_case({layout, 1, 32768, 40, Fill::Random, false, true, false}, r, 1);                     // as long as tiles take it
    test_case({layout, 1, 65792, 32, Fill::Random, false, true, false}, r, 1);                     // and longer
    if (is_float(layout.layout)) test_case({layout, 33, 1303, 115, Fill::Random, false, true, false}, r, 3);   // both, an odd panel
}

bool same_quant(const QuantMemory &a, const QuantMemory &b) {
    return a.q == b.q && kernel_test::same_bits(a.scale, b.scale) && kernel_test::same_bits(a.sum, b.sum) &&
           kernel_test::same_bits(a.sum16, b.sum16) && a.start == b.start && a.start16 == b.start16;
}

void test_quantize() {
    Random r(5);
    const float odd[] = {0.0f, -0.0f, 1e-45f, 1e-38f, 0x1p-101f, 0x1p-100f, 3e38f, -3.4028235e38f, 127.0f, 63.5f, 0.5f, 1.5f, 2.5f};
    for (int trial = 0; trial < 200; trial++) {
        const int m = 1 + r.below(6), k = 32 * (1 + r.below(20));
        const size_t ldx = (size_t)k + r.below(9);
        std::vector<float> x = r.normals(m * ldx, trial % 7 == 0 ? 1e-37f : 3.0f);
        if (trial % 3 == 0)
            for (float &v : x) v = r.next() % 3 ? v : odd[r.below((int)(sizeof odd / sizeof *odd))];
        if (trial % 5 == 0) std::fill(x.begin(), x.begin() + 32, odd[trial / 5 % 13]);
        for (const Kernels *kernels : kernel_test::kernel_sets()) {
            QuantMemory expected(m, k), got(m, k);
            define_quantize(x.data(), ldx, wide_start(kernels), expected);
            const int cut = r.below(m + 1);
            kernels->quantize_rows(x.data(), ldx, &got.rows, 0, cut);
            kernels->quantize_rows(x.data(), ldx, &got.rows, cut, m);
            check(same_quant(got, expected), "%s quantize m %d k %d trial %d", kernels->name, m, k, trial);
            for (int8_t q : got.q) check(q != -128, "%s quantizer made -128", kernels->name);
        }
    }
}

// A NaN or infinity makes every output of its own row NaN and leaves the other rows alone. Activations rounded to bfloat16 stay
// what they are: with an infinity outputs are not finite.
void test_not_finite() {
    Random r(9);
    for (const int rows : {5, 37}) for (const LayoutName &layout : kLayouts) {
        const int n = 20, k = 256;
        if (is_float(layout.layout)) continue;
        const bool pairs = layout.layout == Layout::BF16Pairs;
        const PackedWeights weights(layout.layout, n, k, Fill::Random, r);
        std::vector<float> x = r.normals(rows * k);
        for (const Kernels *kernels : kernel_test::kernel_sets())
            for (float bad : {(float)NAN, (float)INFINITY, -(float)INFINITY}) {
                std::vector<float> clean((size_t)rows * n), y(clean), broken = x;
                broken[2 * k + 77] = bad;
                QuantMemory quant(rows, k);
                MatmulArgs args = {&weights.matrix, nullptr, 0, &quant.rows, nullptr, clean.data(), (size_t)n, 0, rows, 0, 2, 0};
                kernels->quantize_rows(x.data(), k, &quant.rows, 0, rows);
                kernels->matmul(&args);
                kernels->quantize_rows(broken.data(), k, &quant.rows, 0, rows);
                if (!pairs) check(std::isnan(quant.scale[2 * (k / 32) + 77 / 32]), "%s scale of a group with %g", kernels->name, bad);
                args.y = y.data();
                kernels->matmul(&args);
                const auto fits = [&](float got) { return pairs && std::isinf(bad) ? !std::isfinite(got) : std::isnan(got); };
                for (int i = 0; i < rows * n; i++)
                    check(i / n == 2 ? fits(y[(size_t)i]) : std::memcmp(&y[(size_t)i], &clean[(size_t)i], 4) == 0,
                          "%s %s with %g: output %d of row %d", kernels->name, layout.name, bad, i % n, i / n);
            }
    }
}

// Numbers of every size: what is too small for a sum that is not subnormal, sums that overflow, infinities and NaN. The bits
// are the definition's on every set, whether its instructions flush subnormal numbers or not.
void test_pairs_of_any_size() {
    Random r(31);
    const float odd[] = {0.0f,      -0.0f,     1e-45f,    -1e-40f,  0x1p-126f, 0x1.fep-57f,   0x1p-56f,         -0x1.02p-56f,   0x1.01p-56f,  0x1.03p-56f,
                         0x1p-55f,  0x1.ffp0f, 0x1.01p0f, -0x1.03p0f, 1e30f,   0x1.fep127f,   0x1.fffffep127f,  0x1.fefffep127f, (float)INFINITY, (float)NAN};
    for (int trial = 0; trial < 60; trial++) {
        const int n = 1 + r.below(40), k = 32 * (1 + r.below(6)), m = 1 + r.below(18), low = trial % 3 == 0 ? 71 : 1;
        const auto any = [&](int highest) {     // a float of random digits with an exponent in [low, highest)
            if (trial % 3 == 2 && r.below(40) == 0) return odd[r.below((int)(sizeof odd / sizeof *odd))];
            return bits_float(r.next() << 31 | (uint32_t)(low + r.below(highest - low)) << 23 | (r.next() & 0x7fffff));
        };
        std::vector<uint16_t> source((size_t)n * k);
        for (uint16_t &w : source) w = (uint16_t)(float_bits(any(trial % 3 == 0 ? 80 : 254)) >> 16);
        std::vector<float> x((size_t)m * k);
        for (float &v : x) v = any(trial % 3 == 0 ? 80 : 254);
        std::vector<uint8_t> memory(panel_bytes(Layout::BF16Pairs, k) * (size_t)((n + 15) / 16) + 64);
        uint8_t *data = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64;
        check(pack_rows(kBfloatPairs, (const uint8_t *)source.data(), 2 * (size_t)k, nullptr, n, k, 0, n, data), "pack pairs");
        const Matrix w = {Layout::BF16Pairs, n, k, data, panel_bytes(Layout::BF16Pairs, k)};
        for (const Kernels *kernels : kernel_test::kernel_sets()) {
            QuantMemory rows(m, k);
            rows.rows.q = nullptr;
            std::vector<float> y((size_t)m * n);
            kernels->quantize_rows(x.data(), (size_t)k, &rows.rows, 0, m);
            check(rows.q[0] == 99, "%s quantized what nobody wants", kernels->name);
            const MatmulArgs args = {&w, nullptr, 0, &rows.rows, nullptr, y.data(), (size_t)n, 0, m, 0, (n + 15) / 16, 0};
            kernels->matmul(&args);
            for (int row = 0; row < m; row++) {
                const std::vector<float> expected = define_pairs_row(w, x.data() + (size_t)row * k);
                for (int i = 0; i < n; i++) {
                    const float got = y[(size_t)row * n + i], wanted = expected[(size_t)i];
                    check(std::isnan(wanted) ? std::isnan(got) : float_bits(got) == float_bits(wanted),
                          "%s pairs of any size n %d k %d m %d trial %d: %a instead of %a", kernels->name, n, k, m, trial, got, wanted);
                    check(wanted == 0 || std::fabs(wanted) >= 0x1p-126f || std::isnan(wanted), "a subnormal sum %a", wanted);
                }
            }
        }
    }
}

void test_halves() {
    for (const Kernels *kernels : kernel_test::kernel_sets()) {   // all 65536 halves through F16 panels of one column
        std::vector<uint8_t> data(64 + 32);
        for (int base = 0; base < 65536; base += 16) {
            uint8_t *panel = data.data() + (64 - (uintptr_t)data.data() % 64) % 64;
            for (int i = 0; i < 16; i++) std::memcpy(panel + 2 * i, &base, 2), panel[2 * i] = (uint8_t)(base + i);
            const Matrix w = {Layout::F16, 16, 1, panel, 64};
            const float one = 1.0f;
            float y[16];
            const MatmulArgs args = {&w, &one, 1, nullptr, nullptr, y, 16, 0, 1, 0, 1, 0};
            kernels->matmul(&args);
            for (int i = 0; i < 16; i++) {
                const float expected = half_to_float((uint16_t)(base + i));
                check(std::isnan(expected) ? std::isnan(y[i]) : y[i] == expected, "%s half %04x", kernels->name, base + i);
            }
        }
    }
}

}  // namespace

int main() {
    for (const Kernels *kernels : kernel_test::kernel_sets()) std::printf("%s ", kernels->name);
    std::printf("against the scalar definition, by memcmp:\n");
    for (const LayoutName &layout : kLayouts) {
        const int before = kernel_test::failures, checks = kernel_test::checks;
        test_layout(layout);
        std::printf("  %-4s %5d products, %d differ\n", layout.name, kernel_test::checks - checks, kernel_test::failures - before);
    }
    test_quantize();
    test_not_finite();
    test_pairs_of_any_size();
    test_halves();
    return kernel_test::report("test_matmul");
}
