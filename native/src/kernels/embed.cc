// Rows of a packed matrix as floats: the token embedding. y[i] = row ids[i] times `scale`.
//
// A weight is d * (code - zero), then + m, each rounded once, as the checkpoint's own definition; then * scale.
#include "kernels/decl.h"
#include "kernels/layout.h"

namespace headrace {
namespace HR_ISA {

namespace {

template <class F> void embed_row(const uint8_t *block, int row, int k, float scale, float *y) {
    for (int at = 0; at < k; at += F::BLOCK_COLUMNS, block += F::BLOCK_BYTES)
        for (int t = 0; t < F::STEPS; t++) {
            const uint8_t *codes = block + F::HEADER_BYTES + F::CODE_BYTES * t;
            for (int g = 0; g < F::GROUPS; g++) {
                const float d = get_scale<F>(block, F::GROUPS * t + g, row);
                float m = 0.0f;
                if constexpr (F::MIN) m = get_minimum<F>(block, F::GROUPS * t + g, row);
                for (int i = F::GROUP * g; i < F::GROUP * (g + 1); i++) {
                    float value = d * (float)(get_code<F>(codes, row, i) - F::ZERO);
                    if constexpr (F::MIN) value = value + m;
                    y[at + kStep * t + i] = value * scale;
                }
            }
        }
}

void embed_float_row(Layout layout, const uint8_t *panel, int row, int k, float scale, float *y) {
    for (int i = 0; i < k; i++) {
        const size_t at = layout == Layout::BF16Pairs ? 2 * ((size_t)kRows * (i / 2) + row) + i % 2 : (size_t)kRows * i + row;
        float value;
        if (layout == Layout::F32) std::memcpy(&value, panel + 4 * at, 4);
        else if (layout == Layout::F16) value = half_to_float(load_u16(panel + 2 * at));
        else value = bfloat_to_float(load_u16(panel + 2 * at));
        y[i] = value * scale;
    }
}

}  // namespace

void embed(const Matrix *table, const int32_t *ids, int32_t begin, int32_t end, float scale, float *y, size_t ldy) {
    for (int32_t i = begin; i < end; i++) {
        const uint8_t *panel = table->data + table->panel_bytes * (size_t)(ids[i] / kRows);
        const int row = ids[i] % kRows;
        float *out = y + (size_t)i * ldy;
        const bool quantized = with_format(table->layout, [&](auto format) {
            embed_row<decltype(format)>(panel, row, table->k, scale, out);
        });
        if (!quantized) embed_float_row(table->layout, panel, row, table->k, scale, out);
    }
}

}  // namespace HR_ISA
}  // namespace headrace
