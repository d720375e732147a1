// A row of scores seen in groups with known maxima, and the selections that sampling needs on it.
//
// Scores are read as (value - shift) / divisor: raw logits with shift 0 and divisor 1 (exact), or scaled ones. Tokens are
// ordered by (value descending, id ascending); every filter keeps a prefix of that order, described by its last place
// (`Limit`). A prefix is found by radix selection over order-preserving 32-bit keys, 11 + 11 + 10 bits, in which only
// groups whose maximum reaches a known floor are read. All sums run in ascending id: eight lanes inside a group of ids,
// double across groups.
#pragma once
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

constexpr uint32_t kBestKey = 0x007fffffu, kWorstKey = 0xff800000u;   // keys of the two infinities

HR_INLINE float value_of_key(uint32_t key) { return bits_float(key >> 31 ? key : 0x7fffffffu - key); }

struct Scores {
    const float *values;
    int32_t count, group, groups;            // group: a multiple of 64
    float shift, divisor;
    float maxima[kMaxGroups];                // of the scaled values of each group
    float tail[kMaxTail];                    // the last group, padded with -inf

    const float *group_at(int32_t g) const { return g + 1 == groups ? tail : values + (size_t)g * group; }
    HR_INLINE F8 scaled(const float *p) const { return (load(p) - splat(shift)) / splat(divisor); }
};

// Group maxima of raw values; `top` is the largest. Returns false if a value is NaN or +inf, or the row is too long.
inline bool open_scores(const float *values, int32_t count, Scores *s, float *top) {
    if (count <= 0 || count > kMaxGroups * kMaxTail) return false;
    s->values = values;
    s->count = count;
    s->shift = 0.0f;
    s->divisor = 1.0f;
    s->group = 64;
    while ((count - 1) / s->group >= kMaxGroups) s->group *= 2;
    s->groups = (count - 1) / s->group + 1;
    const int32_t whole = (s->groups - 1) * s->group;
    for (int32_t i = 0; i < s->group; i++) s->tail[i] = whole + i < count ? values[whole + i] : kMinusInfinity;
    M8 good = equal(splat((int32_t)0), splat((int32_t)0));
    const F8 infinity = splat(kInfinity);
    *top = kMinusInfinity;
    for (int32_t g = 0; g < s->groups; g++) {
        const float *p = s->group_at(g);
        F8 a = load(p), b = load(p + 8);
        good = good & less(a, infinity) & less(b, infinity);
        for (int32_t i = 16; i < s->group; i += 16) {
            const F8 c = load(p + i), d = load(p + i + 8);
            good = good & less(c, infinity) & less(d, infinity);
            a = max(a, c);
            b = max(b, d);
        }
        s->maxima[g] = largest_lane(max(a, b));
        *top = greatest(*top, s->maxima[g]);
    }
    return bits(good) == 0xff;
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

// Sum of e^value over the prefix; values are scaled, none above 0.
inline double mass_of(const Scores &s, Limit limit) {
    double total = 0;
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < limit.value) continue;
        const float *p = s.group_at(g);
        F8 lanes = zero();
        for (int32_t i = 0; i < s.group; i += 8) {
            const F8 v = s.scaled(p + i);
            lanes = lanes + select(inside(v, g * s.group + i, limit), exp_nonpositive(v), zero());
        }
        total += (double)sum(lanes);
    }
    return total;
}

// What a prefix must reach: a number of tokens, or a mass (sum of e^value).
struct Goal {
    bool by_mass;
    double needed;
    float floor;                             // no value below takes part
    Limit limit;                             // nor any place after this one
};

// Calls visit(id, key, weight) in ascending id for the values inside goal whose key lies in [low, high].
template <class Visit>
HR_INLINE void each_between(const Scores &s, const Goal &goal, uint32_t low, uint32_t high, Visit visit) {
    low = greatest(low, kBestKey);
    high = least(high, kWorstKey);
    const float least_value = greatest(greatest(goal.floor, goal.limit.value), value_of_key(high));
    const F8 worst = splat(least_value), best = splat(value_of_key(low));
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < least_value) continue;
        const float *p = s.group_at(g);
        for (int32_t i = 0; i < s.group; i += 8) {
            const F8 v = s.scaled(p + i);
            const int32_t first = g * s.group + i;
            uint32_t lanes = bits(inside(v, first, goal.limit) & less_equal(worst, v) & less_equal(v, best));
            if (lanes == 0) continue;
            int32_t keys[8];
            float weights[8];
            store(keys, order_key(v));
            store(weights, goal.by_mass ? exp_nonpositive(v) : splat(1.0f));
            for (; lanes != 0; lanes &= lanes - 1) {
                const int lane = __builtin_ctz(lanes);
                const uint32_t key = (uint32_t)keys[lane];    // +0 and -0 are one value but may lie in two ranges
                if (key >= low && key <= high && first + lane < s.count) visit(first + lane, key, (double)weights[lane]);
            }
        }
    }
}

// The last place of the shortest prefix inside goal.limit that reaches the goal; all of it if none does.
inline Limit select_prefix(const Scores &s, const Goal &goal) {
    double bins[2048], before = 0;
    uint32_t low = 0, high = kWorstKey;
    for (int32_t shift = 21;; shift = shift == 21 ? 10 : 0) {
        const int32_t width = shift == 0 ? 10 : 11;
        for (int32_t i = 0; i < 2048; i++) bins[i] = 0;
        each_between(s, goal, low, high, [&](int32_t, uint32_t key, double weight) {
            bins[(key >> shift) & ((1u << width) - 1)] += weight;
        });
        int32_t chosen = -1;
        double reached = 0;
        for (int32_t i = 0; i < 1 << width; i++) {
            if (bins[i] == 0) continue;
            reached = chosen < 0 ? 0 : reached + bins[chosen];
            chosen = i;
            if (before + reached + bins[i] >= goal.needed) break;
        }
        if (chosen < 0) return goal.limit;
        before += reached;
        low = low + ((uint32_t)chosen << shift);
        high = least(high, low + (1u << shift) - 1);
        if (shift == 0) break;
    }
    Limit last = {value_of_key(low), -1};    // ties: as many of the lowest ids as are needed
    double reached = before;
    each_between(s, goal, low, low, [&](int32_t id, uint32_t, double weight) {
        if (last.id >= 0 && reached >= goal.needed) return;
        reached += weight;
        last.id = id;
    });
    return last;
}

// The k-th largest of n values.
inline float kth_largest(const float *values, int32_t n, int32_t k) {
    uint32_t low = 0, width = 11;
    int32_t bins[2048];
    for (uint32_t shift = 21;; shift = shift == 21 ? 10 : 0, width = shift == 0 ? 10 : 11) {
        for (int32_t i = 0; i < 2048; i++) bins[i] = 0;
        for (int32_t i = 0; i < n; i++) {
            const uint32_t b = float_bits(values[i] + 0.0f), key = b >> 31 ? b : 0x7fffffffu - b;
            if (((uint64_t)(key ^ low) >> (shift + width)) == 0) bins[(key >> shift) & ((1u << width) - 1)]++;
        }
        uint32_t i = 0;
        while (k > bins[i]) k -= bins[i++];
        low += i << shift;
        if (shift == 0) return value_of_key(low);
    }
}

// The k first places, k > 0. If there are k groups, the k-th largest of their maxima is a floor: k values reach it.
inline Limit first_places(const Scores &s, int32_t k) {
    const float floor = k <= s.groups ? kth_largest(s.maxima, s.groups, k) : kMinusInfinity;
    return select_prefix(s, {false, (double)k, floor, {kMinusInfinity, kAnyId}});
}

}  // namespace HR_ISA
}  // namespace headrace
