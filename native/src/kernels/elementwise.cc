// Gated activations, sums and the soft cap of logits: one pass each, every element on its own.
#include "kernels/decl.h"
#include "kernels/elementwise_math.h"
#include "kernels/elementwise_wide.h"

namespace headrace {
namespace HR_ISA {
namespace {

struct Silu {
    template <class V> HR_INLINE V operator()(V x) const { return x * sigmoid(x); }
};

// x/2 (1 + tanh(u)) = x sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3)
struct GeluTanh {
    template <class V> HR_INLINE V operator()(V x) const {
        const V cubic = fma(x * x * x, splat_as<V>(0.044715f), x);
        return x * sigmoid(cubic * splat_as<V>(1.59576912f));
    }
};

template <class Activation>
void gate_row(const float *gate, const float *up, float *y, int32_t begin, int32_t end, Activation activation) {
    int32_t i = begin;
    for (; i + kLanes <= end; i += kLanes) store(y + i, activation(load_as<Word>(gate + i)) * load_as<Word>(up + i));
    for (; i + 8 <= end; i += 8) store(y + i, activation(load(gate + i)) * load(up + i));
    const int32_t n = end - i;
    if (n > 0) store_part(y + i, activation(load_part(gate + i, n)) * load_part(up + i, n), n);
}

}  // namespace

void glu(const float *gate, const float *up, size_t ldx, float *y, size_t ldy, int32_t kind, int32_t row_begin,
         int32_t row_end, int32_t col_begin, int32_t col_end) {
    for (int32_t r = row_begin; r < row_end; r++) {
        const float *g = gate + r * ldx, *u = up + r * ldx;
        if (kind == 0) gate_row(g, u, y + r * ldy, col_begin, col_end, Silu());
        else gate_row(g, u, y + r * ldy, col_begin, col_end, GeluTanh());
    }
}

void add(const float *a, size_t lda, const float *b, size_t ldb, float *y, size_t ldy, int32_t width,
         int32_t row_begin, int32_t row_end) {
    for (int32_t r = row_begin; r < row_end; r++) {
        const float *p = a + r * lda, *q = b + r * ldb;
        float *out = y + r * ldy;
        int32_t i = 0;
        for (; i + 8 <= width; i += 8) store(out + i, load(p + i) + load(q + i));
        for (; i < width; i++) out[i] = p[i] + q[i];
    }
}

void softcap(float *x, size_t ldx, float cap, int32_t width, int32_t row_begin, int32_t row_end) {
    const F8 scale = splat(cap), inverse = splat(1.0f / cap);
    for (int32_t r = row_begin; r < row_end; r++) {
        float *row = x + r * ldx;
        int32_t i = 0;
        for (; i + 8 <= width; i += 8) store(row + i, scale * tanh(load(row + i) * inverse));
        if (i < width) store_part(row + i, scale * tanh(load_part(row + i, width - i) * inverse), width - i);
    }
}

}  // namespace HR_ISA
}  // namespace headrace
