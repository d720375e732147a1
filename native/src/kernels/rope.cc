// Rotary position embedding, pairs half a rotation apart: (a, b) = (x[i], x[i + half]) -> (a c - b s, b c + a s).
#include "kernels/decl.h"
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {
namespace {

struct Pair { F8 a, b; };

HR_INLINE Pair rotate(F8 a, F8 b, F8 c, F8 s) { return {fnma(b, s, a * c), fma(a, s, b * c)}; }

void rotate_head(float *x, const float *cosines, const float *sines, int32_t half) {
    int32_t i = 0;
    for (; i + 8 <= half; i += 8) {
        const Pair p = rotate(load(x + i), load(x + half + i), load(cosines + i), load(sines + i));
        store(x + i, p.a);
        store(x + half + i, p.b);
    }
    const int32_t n = half - i;
    if (n > 0) {
        const Pair p = rotate(load_part(x + i, n), load_part(x + half + i, n), load_part(cosines + i, n),
                              load_part(sines + i, n));
        store_part(x + i, p.a, n);
        store_part(x + half + i, p.b, n);
    }
}

}  // namespace

void rope(float *x, size_t ldx, const float *cosines, const float *sines, const int32_t *positions, int32_t heads,
          int32_t head_size, int32_t half, int32_t row_begin, int32_t row_end) {
    for (int32_t r = row_begin; r < row_end; r++) {
        const size_t angle = (size_t)positions[r] * half;
        for (int32_t h = 0; h < heads; h++)
            rotate_head(x + r * ldx + (size_t)h * head_size, cosines + angle, sines + angle, half);
    }
}

}  // namespace HR_ISA
}  // namespace headrace
