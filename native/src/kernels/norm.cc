// Root-mean-square norms: y = x / sqrt(mean(x^2) + eps) * weight.
//
// The sum of squares runs over eight lanes in ascending order (lane i takes x[i], x[i + 8], ...) and ends in the fixed
// tree of `sum`; a tail is padded with zeros.
#include "kernels/decl.h"
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {
namespace {

float inverse_rms(const float *x, int32_t width, float eps) {
    F8 squares = zero();
    int32_t i = 0;
    for (; i + 8 <= width; i += 8) {
        const F8 v = load(x + i);
        squares = fma(v, v, squares);
    }
    if (i < width) {
        const F8 v = load_part(x + i, width - i);
        squares = fma(v, v, squares);
    }
    return 1.0f / __builtin_sqrtf(sum(squares) / (float)width + eps);
}

void norm_row(const float *x, const float *weight, float eps, int32_t width, float *y) {
    const F8 scale = splat(inverse_rms(x, width, eps));
    int32_t i = 0;
    for (; i + 8 <= width; i += 8) store(y + i, load(x + i) * scale * load(weight + i));
    if (i < width)
        store_part(y + i, load_part(x + i, width - i) * scale * load_part(weight + i, width - i), width - i);
}

}  // namespace

void rms_norm(const float *x, size_t ldx, const float *weight, float eps, int32_t width, int32_t row_begin,
              int32_t row_end, float *y, size_t ldy) {
    for (int32_t r = row_begin; r < row_end; r++) norm_row(x + r * ldx, weight, eps, width, y + r * ldy);
}

void head_norm(float *x, size_t ldx, const float *weight, float eps, int32_t heads, int32_t head_size,
               int32_t row_begin, int32_t row_end) {
    for (int32_t r = row_begin; r < row_end; r++)
        for (int32_t h = 0; h < heads; h++) {
            float *head = x + r * ldx + (size_t)h * head_size;
            norm_row(head, weight, eps, head_size, head);
        }
}

}  // namespace HR_ISA
}  // namespace headrace
