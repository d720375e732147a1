// Random packed matrices and quantized rows, and the scalar definition of the product that every kernel must equal bit for bit.
#pragma once
#define HR_ISA portable
#include "kernels/layout.h"
#include "kernel_test.h"

namespace matmul_test {

using namespace headrace;
using namespace headrace::portable;
using kernel_test::Random;

struct LayoutName { Layout layout; const char *name; };
constexpr LayoutName kLayouts[] = {
    {Layout::F32, "F32"}, {Layout::F16, "F16"}, {Layout::BF16, "BF16"}, {Layout::Q8, "Q8"},   {Layout::Q4, "Q4"},
    {Layout::Q4M, "Q4M"}, {Layout::Q5, "Q5"},   {Layout::Q5M, "Q5M"},   {Layout::Q6K, "Q6K"}, {Layout::Q4K, "Q4K"},
    {Layout::Q5K, "Q5K"}, {Layout::Q3K, "Q3K"}, {Layout::Q2K, "Q2K"}, {Layout::BF16Pairs, "BF16Pairs"},
};

inline bool is_float(Layout layout) { return layout <= Layout::BF16; }
inline int block_columns(Layout layout) {
    return is_float(layout) ? 1 : layout >= Layout::Q6K && layout <= Layout::Q2K ? 256 : 32;
}

enum class Fill { Random, Lowest, Highest, Mixed };   // of the codes

// A packed matrix in aligned memory of its own, with scales in a sane range.
struct PackedWeights {
    std::vector<uint8_t> memory;
    Matrix matrix;

    PackedWeights(const PackedWeights &) = delete;
    PackedWeights(Layout layout, int n, int k, Fill fill, Random &r) {
        const size_t stride = panel_bytes(layout, k), bytes = stride * (size_t)((n + 15) / 16);
        memory.resize(bytes + 64);
        uint8_t *data = memory.data() + (64 - (uintptr_t)memory.data() % 64) % 64;
        for (size_t i = 0; i < bytes; i++) {
            const uint8_t low = layout == Layout::Q8 ? 0x80 : 0, high = layout == Layout::Q8 ? 0x7f : 0xff;
            const uint8_t any = (uint8_t)r.next();
            data[i] = fill == Fill::Random ? any : fill == Fill::Lowest ? low : fill == Fill::Highest ? high : any & 1 ? low : high;
        }
        for (size_t p = 0; p < bytes; p += stride) fill_headers(layout, k, data + p, r);
        matrix = {layout, n, k, data, stride};
    }

  private:
    static void put_half(uint8_t *p, float x) {
        const uint16_t h = float_to_half(x);
        std::memcpy(p, &h, 2);
    }
    static void fill_headers(Layout layout, int k, uint8_t *panel, Random &r) {
        const bool quantized = with_format(layout, [&](auto format) {
            using F = decltype(format);
            for (int at = 0; at < k; at += F::BLOCK_COLUMNS, panel += F::BLOCK_BYTES) {
                for (int i = 0; i < F::SUPER_BYTES; i += 2) put_half(panel + i, 0.02f * r.normal());
                for (int i = F::SUPER_BYTES; i < F::HEADER_BYTES; i++) panel[i] = (uint8_t)r.next();
            }
        });
        if (quantized) return;
        for (int i = 0; i < 16 * k; i++) {
            const float x = r.normal();
            const uint16_t bfloat = (uint16_t)(float_bits(x) >> 16);
            if (layout == Layout::F32) std::memcpy(panel + 4 * (size_t)i, &x, 4);
            else if (layout == Layout::F16) put_half(panel + 2 * (size_t)i, x);
            else std::memcpy(panel + 2 * (size_t)i, &bfloat, 2);
        }
    }
};

// The definition of rounding to bfloat16: nearest, ties to even; what is below 2^-56 is zero.
inline float define_rounded(float x) {
    if (std::isnan(x)) return NAN;
    if (std::fabs(x) < 0x1p-56f) return 0.0f;
    if (std::isinf(x)) return x;
    int exponent;
    const double digits = std::ldexp(std::frexp((double)x, &exponent), 8);      // 8 binary digits before the point
    return (float)std::ldexp(std::nearbyint(digits), exponent - 8);             // too large for a float: an infinity
}

// Memory of QuantRows.
struct QuantMemory {
    std::vector<int8_t> q;
    std::vector<float> scale, sum, sum16;
    std::vector<int32_t> start, start16;
    std::vector<float> rounded;
    QuantRows rows;

    QuantMemory(int m, int k)
        : q((size_t)m * k, 99), scale((size_t)m * k / 32), sum(scale.size()), sum16(2 * scale.size()), start(scale.size()),
          start16(2 * scale.size()), rounded((size_t)m * rounded_stride(k)),
          rows{m, k, q.data(), scale.data(), sum.data(), sum16.data(), start.data(), start16.data(), rounded.data()} {}
    QuantMemory(const QuantMemory &) = delete;
};

inline bool wide_start(const Kernels *kernels) { return std::strcmp(kernels->name, "avx512") == 0; }

// The definition: quantize one row at a time, in the plainest way. `wide`: start values of 32-bit sums, not of pairs.
inline void define_quantize(const float *x, size_t ldx, bool wide, QuantMemory &out) {
    const int k = out.rows.k;
    for (int m = 0; m < out.rows.rows; m++)
        for (int g = 0; g < k / 32; g++) {
            const float *group = x + m * ldx + 32 * g;
            const size_t at = (size_t)m * (k / 32) + g;
            float top = 0.0f;
            bool finite = true;
            for (int i = 0; i < 32; i++) {
                finite = finite && std::isfinite(group[i]);
                top = std::fabs(group[i]) > top ? std::fabs(group[i]) : top;
            }
            int lane[2][2] = {{0, 0}, {0, 0}};
            const bool usable = finite && top >= 0x1p-100f;
            for (int i = 0; i < 32; i++) {
                const int q = usable ? (int)std::nearbyintf(group[i] * (127.0f / top)) : 0;
                out.q[(size_t)m * k + 32 * g + i] = (int8_t)q;
                lane[i / 16][i % 4 / 2] += q;
            }
            const float d = !finite ? NAN : usable ? top / 127.0f : 0.0f;
            auto start = [wide](int low, int high) {
                return wide ? -8 * (low + high) : (int32_t)((uint32_t)(uint16_t)(-8 * high) << 16 | (uint16_t)(-8 * low));
            };
            out.scale[at] = d;
            out.sum[at] = d * (float)(lane[0][0] + lane[0][1] + lane[1][0] + lane[1][1]);
            out.start[at] = start(lane[0][0] + lane[1][0], lane[0][1] + lane[1][1]);
            for (int h = 0; h < 2; h++) {
                out.sum16[2 * at + h] = d * (float)(lane[h][0] + lane[h][1]);
                out.start16[2 * at + h] = start(lane[h][0], lane[h][1]);
            }
        }
}

// The definition of a row's product with quantized weights: sums[n].
template <class F> std::vector<float> define_quant_row(const Matrix &w, const QuantRows &x, int m) {
    std::vector<float> sums((size_t)w.n);
    for (int n = 0; n < w.n; n++) {
        const uint8_t *block = w.data + w.panel_bytes * (size_t)(n / 16);
        float s = 0.0f;
        for (int at = 0; at < w.k; at += F::BLOCK_COLUMNS, block += F::BLOCK_BYTES)
            for (int g = 0; g < F::BLOCK_COLUMNS / F::GROUP; g++) {
                int64_t dot = 0, sum = 0;
                for (int i = F::GROUP * g; i < F::GROUP * (g + 1); i++) {
                    const int a = x.q[(size_t)m * x.k + at + i];
                    dot += (int64_t)(get_code<F>(block + F::HEADER_BYTES + F::CODE_BYTES * (i / 32), n % 16, i % 32) - F::ZERO) * a;
                    sum += a;
                }
                const float d_a = x.scale[(size_t)m * (x.k / 32) + (at + F::GROUP * g) / 32];
                s = std::fma((float)dot, get_scale<F>(block, g, n % 16) * d_a, s);
                if constexpr (F::MIN) s = std::fma(get_minimum<F>(block, g, n % 16), d_a * (float)sum, s);
            }
        sums[(size_t)n] = s;
    }
    return sums;
}

inline float float_weight(const Matrix &w, int n, int k) {
    const uint8_t *panel = w.data + w.panel_bytes * (size_t)(n / 16);
    const size_t at = (size_t)16 * k + n % 16;
    float x;
    if (w.layout == Layout::F32) std::memcpy(&x, panel + 4 * at, 4);
    else x = w.layout == Layout::F16 ? half_to_float(load_u16(panel + 2 * at)) : bfloat_to_float(load_u16(panel + 2 * at));
    return x;
}

inline float pair_weight(const Matrix &w, int n, int k) {
    return bfloat_to_float(load_u16(w.data + w.panel_bytes * (size_t)(n / 16) + 64 * (size_t)(k / 2) + 4 * (n % 16) + 2 * (k % 2)));
}

// Of each pair the odd column first.
inline std::vector<float> define_pairs_row(const Matrix &w, const float *x) {
    std::vector<float> sums((size_t)w.n);
    for (int n = 0; n < w.n; n++) {
        float s = 0.0f;
        for (int i = 0; i < w.k; i++) s = std::fma(pair_weight(w, n, i ^ 1), define_rounded(x[i ^ 1]), s);
        sums[(size_t)n] = s;
    }
    return sums;
}

inline std::vector<float> define_float_row(const Matrix &w, const float *x) {
    std::vector<float> sums((size_t)w.n);
    for (int n = 0; n < w.n; n++) {
        float s = 0.0f;
        for (int k = 0; k < w.k; k++) s = std::fma(float_weight(w, n, k), x[k], s);
        sums[(size_t)n] = s;
    }
    return sums;
}

inline std::vector<float> define_row(const Matrix &w, const float *x, size_t ldx, const QuantRows *qx, int m) {
    std::vector<float> sums;
    const bool quantized = with_format(w.layout, [&](auto format) { sums = define_quant_row<decltype(format)>(w, *qx, m); });
    if (quantized) return sums;
    return w.layout == Layout::BF16Pairs ? define_pairs_row(w, x + m * ldx) : define_float_row(w, x + m * ldx);
}

}  // namespace matmul_test
