// Parts of the quantized matrix product that all instruction sets share: the end of a sum, and the cut into tiles.
#pragma once
#include "kernels/layout.h"

namespace headrace {
namespace HR_ISA {

// y = (accumulate ? y : 0) + (sums + bias) for one row and one panel; columns past n are left alone.
HR_INLINE void write_out(const MatmulArgs &a, int32_t panel, size_t row, const float *sums) {
    const int32_t columns = least(kRows, a.w->n - kRows * panel);
    float *y = a.y + row * a.ldy + (size_t)kRows * panel;
    const float *bias = a.bias ? a.bias + (size_t)kRows * panel : nullptr;
    if (columns == kRows) {
        HR_UNROLL for (int h = 0; h < 2; h++) {
            F8 s = load(sums + 8 * h);
            if (bias) s = s + load(bias + 8 * h);
            if (a.accumulate) s = load(y + 8 * h) + s;
            store(y + 8 * h, s);
        }
        return;
    }
    for (int32_t i = 0; i < columns; i++) {
        float s = sums[i];
        if (bias) s = s + bias[i];
        y[i] = a.accumulate ? y[i] + s : s;
    }
}

// Rows of the next tile when `left` rows remain: equal tiles of at most `most` rows (13 = 7 + 6, not 8 + 5).
HR_INLINE int next_tile(int left, int most) {
    const int tiles = (left + most - 1) / most;
    return (left + tiles - 1) / tiles;
}

// Rows that are taken together through all panels: their activations (k bytes each) should stay in the L2 cache.
HR_INLINE int rows_per_block(int k, int most, int tile) {
    const int rows = least(most, (384 << 10) / k) / tile * tile;
    return greatest(rows, tile);
}

}  // namespace HR_ISA
}  // namespace headrace
