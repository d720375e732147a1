// Every function of the `Kernels` table, declared in the namespace of one instruction set.
//
// No include guard on purpose: the dispatcher includes this file once per instruction set,
//
//     #define HR_ISA avx2
//     #include "kernels/decl.h"
//     #undef HR_ISA
//
// (avx512bf16 has only `matmul` and `quantize_rows`, avx512amx only `matmul`; their other parts are avx512's)
//
// and a kernel source includes it with the HR_ISA that the build passes on the command line.
#ifndef HR_ISA
#error "define HR_ISA (portable, avx2, avx512, avx512bf16, avx512amx, neon or neondot) before including kernels/decl.h"
#endif
#include "headrace/kernels.h"

namespace headrace {
namespace HR_ISA {

void quantize_rows(const float *x, size_t ldx, const QuantRows *out, int32_t row_begin, int32_t row_end);
void matmul(const MatmulArgs *args);
void embed(const Matrix *table, const int32_t *ids, int32_t begin, int32_t end, float scale, float *y, size_t ldy);
void rms_norm(const float *x, size_t ldx, const float *weight, float eps, int32_t width, int32_t row_begin,
              int32_t row_end, float *y, size_t ldy);
void head_norm(float *x, size_t ldx, const float *weight, float eps, int32_t heads, int32_t head_size,
               int32_t row_begin, int32_t row_end);
void rope(float *x, size_t ldx, const float *cosines, const float *sines, const int32_t *positions, int32_t heads,
          int32_t head_size, int32_t half, int32_t row_begin, int32_t row_end);
void kv_write(const Batch *batch, const KVLayer *kv, const float *k, size_t ldk, const float *v, size_t ldv,
              int32_t token_begin, int32_t token_end, int32_t head_begin, int32_t head_end);
void attention(const AttentionArgs *args, int32_t thread, int32_t threads);
void glu(const float *gate, const float *up, size_t ldx, float *y, size_t ldy, int32_t kind, int32_t row_begin,
         int32_t row_end, int32_t col_begin, int32_t col_end);
void add(const float *a, size_t lda, const float *b, size_t ldb, float *y, size_t ldy, int32_t width,
         int32_t row_begin, int32_t row_end);
void softcap(float *x, size_t ldx, float cap, int32_t width, int32_t row_begin, int32_t row_end);
void group_maxima(const float *x, size_t ldx, int32_t width, int32_t row_begin, int32_t row_end, int32_t group_begin,
                  int32_t group_end, float *maxima, size_t ldm);
void sample(SampleArgs *args);
void logprobs(const float *logits, int32_t vocab, int32_t token, int32_t k, float *logprob, int32_t *rank,
              int32_t *top_ids, float *top_logprobs);

// Parts of `matmul`: the layouts with float weights (BF16Pairs included) and those with quantized weights.
void matmul_float(const MatmulArgs *args);
void matmul_quant(const MatmulArgs *args);

}  // namespace HR_ISA
}  // namespace headrace
