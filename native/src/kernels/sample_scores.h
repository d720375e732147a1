// A row of scores seen in groups with known maxima.
//
// Scores are read as (value - shift) / divisor: raw logits with shift 0 and divisor 1 (exact), or scaled ones. Tokens are
// ordered by (value descending, id ascending); every filter keeps a prefix of that order, described by its last place
// (`Limit`).
#pragma once
#include "headrace/kernels.h"
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kMaxGroups = 4096;
constexpr int32_t kMaxTail = 4096;           // floats of the padded last group: a vocabulary of up to 16 M tokens
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kInfinity = __builtin_inff();

// Last place of a prefix of the order.
struct Limit {
    float value;
    int32_t id;
};

constexpr int32_t kAnyId = INT32_MAX - 1;

HR_INLINE Limit shorter(Limit a, Limit b) {
    return a.value > b.value || (a.value == b.value && a.id < b.id) ? a : b;
}

constexpr int32_t kSide = 4;                 // vectors whose exponentials are computed in turn: each is a chain of 12 instructions

// e^(d / divisor) of distances d <= 0: 2^(d log2(e) / divisor) without a division; exactly 1 at 0, at most 2^-119 below
// -120 ln(2) divisor, -inf included. d rate is not rounded: a multiply-add tells how far it lies from the next integer.
// Degree 5 on [-0.5, 0.5], relative error 1.7e-7 (minimax, own fit), and |d / divisor| 1.25 2^-24 for the rounded rate.
struct Power {
    float rate, least;

    explicit Power(float divisor) : rate(kLog2E / divisor), least(greatest(-120.0f / (kLog2E / divisor), -0x1p127f)) {}

    HR_INLINE void raise(const F8 (&d)[kSide], F8 (&e)[kSide]) const {
        const F8 to_integer = splat(0x1.8p23f);          // adding it leaves the integer in the last bits
        F8 x[kSide], n[kSide], p[kSide];
        HR_UNROLL for (int i = 0; i < kSide; i++) x[i] = max(d[i], splat(least));
        HR_UNROLL for (int i = 0; i < kSide; i++) n[i] = fma(x[i], splat(rate), to_integer);
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = n[i] - to_integer;
        HR_UNROLL for (int i = 0; i < kSide; i++) x[i] = fnma(x[i], splat(rate), p[i]);    // minus the fraction
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = fma(splat(-0x1.5bba14p-10f), x[i], splat(0x1.3cea88p-7f));
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = fma(p[i], x[i], splat(-0x1.c6b752p-5f));
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = fma(p[i], x[i], splat(0x1.ebf9bcp-3f));
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = fma(p[i], x[i], splat(-0x1.62e42ap-1f));
        HR_UNROLL for (int i = 0; i < kSide; i++) p[i] = fma(p[i], x[i], splat(1.0f));
        HR_UNROLL for (int i = 0; i < kSide; i++) e[i] = as_float(as_int(p[i]) + shift_left<23>(as_int(n[i])));
    }
};

// Maximum of lanes without NaN.
HR_INLINE float largest_lane(F8 a) {
#if defined(HR_SIMD_AVX2)
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
#else
    return max_of(a);
#endif
}

// Keys that ascend in the order of values from large to small; +0 and -0 share one.
HR_INLINE I8 order_key(F8 value) {
    const I8 b = as_int(value + zero());
    // positive: 0x7fffffff - bits; negative: bits as they are
    return as_int(select(greater(splat((int32_t)0), b), as_float(b), as_float(splat((int32_t)0x7fffffff) - b)));
}

struct Scores {
    const float *values;
    int32_t count, group, groups;            // group: a multiple of 64
    float shift, divisor;
    float maxima[kMaxGroups];                // of the scaled values of each group
    float tail[kMaxTail];                    // the last group, padded with -inf

    const float *group_at(int32_t g) const { return g + 1 == groups ? tail : values + (size_t)g * group; }
    HR_INLINE F8 scaled(const float *p) const {
        const F8 x = load(p) - splat(shift);
        return divisor == 1.0f ? x : x / splat(divisor);
    }
    float scaled_of(float raw) const { return divisor == 1.0f ? raw - shift : (raw - shift) / divisor; }
};

// The float of a number that ascends with it, from -infinity to infinity.
HR_INLINE float nth_float(int32_t n) { return bits_float((uint32_t)(n ^ (n >> 31 & 0x7fffffff))); }

// The least raw value whose scaled one is at least `value`. Scaling keeps the order, so comparing raw values with it tells
// the same without scaling them. By bisection, as a long run of raw values may have one scaled value (all tiny ones, say).
inline float raw_bound(const Scores &s, float value) {
    if (!(value > kMinusInfinity && value < kInfinity)) return value;
    int64_t low = -0x7f800001ll, high = 0x7f800000ll;          // the numbers of -infinity and infinity
    while (high - low > 1) {
        const int32_t middle = (int32_t)((low + high) >> 1);
        (s.scaled_of(nth_float(middle)) >= value ? high : low) = middle;
    }
    return nth_float((int32_t)high);
}

// The largest of n values, n a multiple of 16; +inf if one of them is +inf or NaN.
HR_INLINE float largest_or_infinity(const float *p, int32_t n) {
    const F8 infinity = splat(kInfinity);
    const auto finite = [&](const float *at) {
        const F8 v = load(at);
        return select(less(v, infinity), v, infinity);
    };
    F8 a = finite(p), b = finite(p + 8);
    for (int32_t i = 16; i < n; i += 16) {
        a = max(a, finite(p + i));
        b = max(b, finite(p + i + 8));
    }
    return largest_lane(max(a, b));
}

HR_INLINE float largest_of(const float *values, int32_t n) {
    F8 top = splat(kMinusInfinity);
    int32_t i = 0;
    for (; i + 8 <= n; i += 8) top = max(top, load(values + i));
    float rest = largest_lane(top);
    for (; i < n; i++) rest = greatest(rest, values[i]);
    return rest;
}

// The last group with -inf behind it.
inline void pad_tail(Scores *s) {
    const int32_t whole = (s->groups - 1) * s->group;
    for (int32_t i = 0; i < s->group; i++) s->tail[i] = whole + i < s->count ? s->values[whole + i] : kMinusInfinity;
}

// Group maxima of raw values, or those that are known (kernels.h); `top` is the largest. Returns false if a value is NaN
// or +inf, or the row is too long.
inline bool open_scores(const float *values, int32_t count, const float *known, Scores *s, float *top) {
    if (count <= 0 || count > kMaxGroups * kMaxTail) return false;
    s->values = values;
    s->count = count;
    s->shift = 0.0f;
    s->divisor = 1.0f;
    s->group = 64;
    while ((count - 1) / s->group >= kMaxGroups) s->group *= 2;
    s->groups = (count - 1) / s->group + 1;
    pad_tail(s);
    if (known != nullptr && s->group == kMaximaGroup)
        std::memcpy(s->maxima, known, (size_t)s->groups * sizeof(float));
    else if (s->group == kMaximaGroup)      // a constant: the loop inside is unrolled
        for (int32_t g = 0; g < s->groups; g++) s->maxima[g] = largest_or_infinity(s->group_at(g), kMaximaGroup);
    else
        for (int32_t g = 0; g < s->groups; g++) s->maxima[g] = largest_or_infinity(s->group_at(g), s->group);
    *top = largest_of(s->maxima, s->groups);
    return *top < kInfinity;
}

// Makes raw scores scaled ones. Scaling keeps the order, so the maxima scale along.
inline void scale_scores(Scores *s, float shift, float divisor) {
    s->shift = shift;
    s->divisor = divisor;
    for (int32_t g = 0; g < s->groups; g++) s->maxima[g] = (s->maxima[g] - shift) / divisor;
}

// Lowest id whose raw value is `top`.
inline int32_t first_of(const Scores &s, float top) {
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] != top) continue;
        const float *p = s.group_at(g);
        for (int32_t i = 0; i < s.group; i++)
            if (p[i] == top) return g * s.group + i;
    }
    return -1;
}

// Lanes of the eight values v of ids first .. first + 7 that lie in the prefix.
HR_INLINE M8 inside(F8 v, int32_t first, Limit limit) {
    const F8 value = splat(limit.value);
    const M8 low_id = greater(splat(limit.id + 1), lane_index() + splat(first));
    return less(value, v) | (less_equal(value, v) & low_id);
}

}  // namespace HR_ISA
}  // namespace headrace
