// The gates on sixteen lanes, with the operations of `elementwise_math.h`: the same bits.
#pragma once
#include "kernels/attention_word.h"

#if defined(HR_SIMD_AVX512)
namespace headrace {
namespace HR_ISA {

HR_INLINE Wide operator+(Wide a, Wide b) { return {_mm512_add_ps(a.v, b.v)}; }
HR_INLINE Wide fnma(Wide a, Wide b, Wide c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }

HR_INLINE Wide exp_nonpositive(Wide x) {
    const __mmask16 tiny = _mm512_cmp_ps_mask(x.v, _mm512_set1_ps(-87.0f), _CMP_LT_OQ);
    const Wide n = {_mm512_roundscale_ps((x * splat_as<Wide>(kLog2E)).v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
    const Wide r = fnma(n, splat_as<Wide>(0x1.7f7d1cp-20f), fnma(n, splat_as<Wide>(0x1.62e400p-1f), x));
    const Wide f = r * splat_as<Wide>(kLog2E);
    const __m512i scaled = _mm512_add_epi32(_mm512_castps_si512(exp2_series(f).v), _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23));
    return {_mm512_castsi512_ps(_mm512_maskz_mov_epi32((__mmask16)~tiny, scaled))};
}

HR_INLINE Wide sigmoid(Wide x) {
    const Wide e = exp_nonpositive({_mm512_or_ps(x.v, _mm512_set1_ps(-0.0f))});      // of -|x|
    const Wide one = splat_as<Wide>(1.0f);
    const __mmask16 negative = _mm512_cmp_ps_mask(x.v, _mm512_setzero_ps(), _CMP_LT_OQ);
    return {_mm512_div_ps(_mm512_mask_mov_ps(one.v, negative, e.v), (e + one).v)};
}

}  // namespace HR_ISA
}  // namespace headrace
#endif
