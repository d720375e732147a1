// y = x W^T (+ y) (+ bias) for quantized weights and activations: exact integers inside a group, fp32 across groups.
//
// The contract, for each output element, whatever the number of rows, the tile, the thread's share or instruction set:
//
//     s = 0
//     for each group of 32 (or 16) columns, ascending:
//         I = sum (code - zero) * a                   exact integer
//         s = fma(float(I), d_w * d_a, s)
//         s = fma(m_w, d_a * S, s)                    layouts with a minimum; S = sum a, d_a * S made by the quantizer
//     s = s + bias;  y = y_old + s
//
// One file per way of doing it; each defines `multiply<F>(args)`.
#include "kernels/decl.h"
#include "kernels/matmul_quant.h"

namespace headrace {
namespace HR_ISA {

#if defined(HR_SIMD_AVX512)
#include "kernels/matmul_quant_avx512.inc"
#elif defined(HR_SIMD_AVX2)
#include "kernels/matmul_quant_avx2.inc"
#elif defined(HR_SIMD_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "kernels/matmul_quant_neondot.inc"
#else
#include "kernels/matmul_quant_generic.inc"
#endif

void matmul_quant(const MatmulArgs *args) {
    with_format(args->w->layout, [args](auto format) { multiply<decltype(format)>(*args); });
}

}  // namespace HR_ISA
}  // namespace headrace
