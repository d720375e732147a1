// One step of the online softmax for a tile of rows: scores of a chunk become weights.
//
// Every stage is done for all rows before the next begins, so that the latencies of one row hide behind the others. Per
// row the arithmetic is that of the row alone: a maximum (order does not matter), 2^x per element, and a sum over eight
// lanes, ascending in tokens, with one fixed tree at the end. Tokens that a row may not see weigh exactly +0.
#pragma once
#include "kernels/attention_plan.h"
#include "kernels/attention_word.h"

namespace headrace {
namespace HR_ISA {

constexpr float kNone = -1e30f;       // maximum of no scores, and the score of a key that is not visible

// Visible tokens of each row of a tile within the chunk; words [word_begin, word_end) hold scores.
struct Visible {
    int32_t first[8], last[8];
    int32_t word_begin, word_end;
};

HR_INLINE Word visible_score(const float *scores, int32_t token, int32_t begin, int32_t end, float cap) {
    Word x = load_as<Word>(scores + token);
    if (cap != 0.0f) x = splat_as<Word>(cap) * tanh(x);
    return begin <= token && token + kLanes <= end ? x : between(x, token, begin, end, kNone);
}

// sums[dims] *= factor
HR_INLINE void rescale(float *sums, float factor, int32_t dims) {
    for (int32_t d = 0; d < dims; d += 8) store(sums + d, splat(factor) * load(sums + d));
}

// maximum, weight: eight floats; those beyond R are rewritten with their own values, which walks over shared keys rely on. cap: soft cap in base 2 units, 0 = none.
template <int R>
void softmax_rows(float *scores, const Visible &seen, float cap, float *maximum, float *weight, float *sums, int32_t dims) {
    alignas(32) float top[8], added[8], factor[8];
    store(top, splat(kNone));
    store(added, zero());
    HR_UNROLL for (int r = 0; r < R; r++) {
        float *row = scores + r * kChunk;
        Word most = splat_as<Word>(kNone);
        for (int32_t i = seen.word_begin; i < seen.word_end; i++) {
            const Word x = visible_score(row, kLanes * i, seen.first[r], seen.last[r], cap);
            store(row + kLanes * i, x);
            most = max(x, most);
        }
        top[r] = max_lanes(fold_max(most));
    }
    const F8 before = load(maximum), largest = max(load(top), before), scale = exp2_nonpositive(before - largest);
    store(maximum, largest);
    store(factor, scale);
    HR_UNROLL for (int r = 0; r < R; r++) {
        if (seen.first[r] >= seen.last[r]) continue;         // its maximum may still be kNone: 2^0 would count
        float *row = scores + r * kChunk;
        const Word shift = splat_as<Word>(maximum[r]);
        F8 total = zero();
        for (int32_t i = seen.word_begin; i < seen.word_end; i++) {
            const Word p = exp2_nonpositive(load_as<Word>(row + kLanes * i) - shift);
            total = add_lanes(total, p);
            store(row + kLanes * i, p);
        }
        added[r] = sum_lanes(total);
    }
    store(weight, load(weight) * scale + load(added));
    for (int r = 0; r < R; r++)
        if (factor[r] != 1.0f) rescale(sums + r * dims, factor[r], dims);    // a factor of 1 changes nothing
}

}  // namespace HR_ISA
}  // namespace headrace
