// The last place of the shortest prefix that holds a number of tokens or a share of the mass.
//
// A first pass spreads the weights over 256 bins of equal width, a second collects the values of the bin in which the goal
// is reached, and a radix selection over the keys of those few finds the place. A bin with more values than there is room
// for is spread again, by keys. Bins are eight apart, one per lane, so that neighbours need not wait for each other.
//
// Weights are multiples of a quantum and all sums stay below 2^53 quanta, so every sum is exact: its order does not matter.
#pragma once
#include "kernels/sample_scores.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kBins = 256, kCandidates = 8192;

// Below this a weight is rounded to a multiple of bound * 2^-23: 2^-35 for up to 2^18 tokens, 2^-29 for up to 2^24.
HR_INLINE float rounding_bound(int32_t count) { return count <= 1 << 18 ? 0x1p-12f : 0x1p-6f; }

// The nearest multiple of the quantum, ties to even.
HR_INLINE F8 round_weight(F8 e, float bound) {
    const F8 c = splat(bound);
    return select(less(e, c), (e + c) - c, e);
}

// e^value of raw values of a row, and the weights that these are after rounding.
struct Weights {
    const Power power;
    const float shift, bound;

    explicit Weights(const Scores &s) : power(s.divisor), shift(s.shift), bound(rounding_bound(s.count)) {}

    HR_INLINE void exponentials(const float *p, F8 (&e)[kSide]) const {
        F8 d[kSide];
        HR_UNROLL for (int32_t i = 0; i < kSide; i++) d[i] = load(p + 8 * i) - splat(shift);
        power.raise(d, e);
    }
    HR_INLINE void weigh(const float *p, F8 (&w)[kSide]) const {
        exponentials(p, w);
        HR_UNROLL for (int32_t i = 0; i < kSide; i++) w[i] = round_weight(w[i], bound);
    }
};

// What a prefix must hold: a number of tokens, or a share of the mass (sum of e^value) inside `limit`.
struct Goal {
    bool by_mass;
    double amount;
    float floor;                             // no value below takes part, though its mass counts
    Limit limit;                             // nor any place after this one
};

// How values are cut into bins: all of them by their distance from the highest, or those in [low, high] by keys from `key`
// on. Bin kBins takes what lies outside. The only difference between the two that matters is that keys always separate.
struct Cut {
    float high, low, scale;
    bool by_key;
    uint32_t key;
    int32_t shift;

    template <bool ByKey> HR_INLINE I8 bin_of(F8 v) const {
        if constexpr (!ByKey)   // a NaN (infinity * 0) goes outside
            return to_int(min((splat(high) - v) * splat(scale), splat((float)kBins)));
        int32_t keys[8];
        store(keys, order_key(v));
        for (int32_t &k : keys) k = (int32_t)least(((uint32_t)k - key) >> shift, (uint32_t)kBins);
        const M8 held = less_equal(splat(low), v) & less_equal(v, splat(high));
        return as_int(select(held, as_float(load(keys)), as_float(splat(kBins))));
    }
};

HR_INLINE uint32_t key_of(float value) {
    const uint32_t b = float_bits(value + 0.0f);
    return b >> 31 ? b : 0x7fffffffu - b;
}

// Shift that brings keys of [low, high] to fewer than kBins bins.
HR_INLINE int32_t shift_for(uint32_t low, uint32_t high) {
    const int32_t width = high == low ? 0 : 32 - __builtin_clz(high - low);
    return greatest(width - 8, 0);
}

struct Bins {
    double lanes[kBins + 1][8];              // the last one: values outside the cut
    double total;                            // of everything inside the limit

    double of(int32_t bin) const {
        const double *b = lanes[bin];
        return ((b[0] + b[1]) + (b[2] + b[3])) + ((b[4] + b[5]) + (b[6] + b[7]));
    }
};

constexpr int32_t kRun = 64;                 // values taken together: their exponentials overlap, then their additions do

// Weights of the values of ids from `first` on, 0 outside the limit; 1 each if the goal is a number.
template <bool ByMass, bool Limited>
HR_INLINE void weigh_run(const Scores &s, const Weights &scale, const Goal &goal, const float *p, int32_t first, float *weights) {
    for (int32_t i = 0; i < kRun; i += 8 * kSide) {
        F8 w[kSide];
        if constexpr (ByMass) scale.weigh(p + i, w);
        else for (F8 &one : w) one = splat(1.0f);
        for (int32_t j = 0; j < kSide; j++) {
            const int32_t at = i + 8 * j;
            if constexpr (Limited) w[j] = zero_unless(inside(s.scaled(p + at), first + at, goal.limit), w[j]);
            store(weights + at, w[j]);
        }
    }
}

template <bool ByMass, bool ByKey, bool Limited>
void spread_group(const Scores &s, const Goal &goal, const Cut &cut, int32_t g, Bins *bins) {
    const Weights scale(s);
    for (int32_t at = 0; at < s.group; at += kRun) {
        const float *p = s.group_at(g) + at;
        int32_t places[kRun];
        float weights[kRun];
        weigh_run<ByMass, Limited>(s, scale, goal, p, g * s.group + at, weights);
        for (int32_t i = 0; i < kRun; i += 8) store(places + i, shift_left<3>(cut.bin_of<ByKey>(s.scaled(p + i))));
        double *const flat = bins->lanes[0];
        for (int32_t i = 0; i < kRun; i += 8) {
            double exact[8], sums[8];        // read all before writing any: a load that may alias a store waits for it
            for (int32_t j = 0; j < 8; j++) exact[j] = (double)weights[i + j];
            HR_UNROLL for (int32_t j = 0; j < 8; j++) sums[j] = flat[(uint32_t)places[i + j] + j] + exact[j];
            HR_UNROLL for (int32_t j = 0; j < 8; j++) flat[(uint32_t)places[i + j] + j] = sums[j];
        }
    }
}

// Adds the mass of a group that lies outside the cut.
inline void add_outside(const Scores &s, const Goal &goal, int32_t g, double *outside) {
    const Weights scale(s);
    for (int32_t i = 0; i < s.group; i += kRun) {
        float weights[kRun];
        weigh_run<true, true>(s, scale, goal, s.group_at(g) + i, g * s.group + i, weights);
        for (int32_t j = 0; j < kRun; j++) outside[j % 8] += (double)weights[j];
    }
}

template <bool ByMass, bool ByKey, bool Limited>
void spread_all(const Scores &s, const Goal &goal, const Cut &cut, Bins *bins) {
    double outside[8] = {0, 0, 0, 0, 0, 0, 0, 0};
    std::memset(bins->lanes, 0, sizeof bins->lanes);
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < goal.limit.value) continue;
        if (s.maxima[g] >= cut.low) spread_group<ByMass, ByKey, Limited>(s, goal, cut, g, bins);
        else if (ByMass) add_outside(s, goal, g, outside);
    }
    bins->total = 0;
    for (int32_t b = 0; b <= kBins; b++) bins->total += bins->of(b);
    for (double o : outside) bins->total += o;
}

inline void spread(const Scores &s, const Goal &goal, const Cut &cut, Bins *bins) {
    const bool limited = goal.limit.value > kMinusInfinity;
    if (cut.by_key) goal.by_mass ? spread_all<true, true, true>(s, goal, cut, bins) : spread_all<false, true, true>(s, goal, cut, bins);
    else if (!goal.by_mass) spread_all<false, false, false>(s, goal, cut, bins);   // numbers are sought among all tokens
    else if (limited) spread_all<true, false, true>(s, goal, cut, bins);
    else spread_all<true, false, false>(s, goal, cut, bins);
}

// Values with their weights and ids, in ascending id.
struct Candidates {
    int32_t count;                           // also of those that found no room
    float high, low;                         // of all of them
    float values[kCandidates];
    float weights[kCandidates];              // the raw values, until they are weighed
    int32_t ids[kCandidates];
};

// Values inside the limit that `holds` tells to take; none of them is below `low`.
template <class Holds> void collect_where(const Scores &s, const Goal &goal, float low_bound, Holds holds, Candidates *c) {
    c->count = 0;
    c->high = kMinusInfinity;
    c->low = kInfinity;
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < goal.limit.value || s.maxima[g] < low_bound) continue;
        for (int32_t at = 0; at < s.group; at += kRun) {
            const float *p = s.group_at(g) + at;
            uint64_t held = 0;               // a run at a time: whether a vector holds one is hard to predict
            HR_UNROLL for (int32_t i = 0; i < kRun; i += 8) held |= (uint64_t)bits(holds(p + i)) << i;
            for (; held != 0; held &= held - 1) {
                const int32_t lane = __builtin_ctzll(held), id = g * s.group + at + lane;
                const float v = s.scaled_of(p[lane]);
                if (v < goal.limit.value || (v == goal.limit.value && id > goal.limit.id)) continue;
                c->high = greatest(c->high, v);
                c->low = least(c->low, v);
                if (c->count < kCandidates) {
                    c->values[c->count] = v;
                    c->weights[c->count] = p[lane];
                    c->ids[c->count] = id;
                }
                c->count++;
            }
        }
    }
}

// Values of one bin inside the limit; bin -1: all from cut.low on.
inline void collect(const Scores &s, const Goal &goal, const Cut &cut, int32_t bin, Candidates *c) {
    collect_where(s, goal, cut.low, [&](const float *p) {
        const F8 v = s.scaled(p);
        if (bin < 0) return less_equal(splat(cut.low), v);
        return equal(cut.by_key ? cut.bin_of<true>(v) : cut.bin_of<false>(v), splat(bin));
    }, c);
}

// Values in [low, high) inside the limit.
inline void collect_between(const Scores &s, const Goal &goal, float low, float high, Candidates *c) {
    const F8 first = splat(raw_bound(s, low)), end = splat(raw_bound(s, high));
    collect_where(s, goal, low, [&](const float *p) { return less_equal(first, load(p)) & less(load(p), end); }, c);
}

inline void weigh_all(const Scores &s, bool by_mass, Candidates *c) {
    const Weights scale(s);
    for (int32_t i = c->count; i < c->count + 8 * kSide && i < kCandidates; i++) c->weights[i] = s.shift;
    for (int32_t i = 0; i < c->count; i += 8 * kSide) {
        F8 w[kSide];
        if (by_mass) scale.weigh(c->weights + i, w);
        else for (F8 &one : w) one = splat(1.0f);
        for (int32_t j = 0; j < kSide; j++) store(c->weights + i + 8 * j, w[j]);
    }
}

// The place among all candidates at which `before` plus their weights, best first, reaches what is needed.
inline Limit select_among(Candidates *c, double before, double needed) {
    uint32_t low = key_of(c->high), high = key_of(c->low);
    while (low < high) {
        const int32_t shift = shift_for(low, high);
        double bins[kBins] = {0};
        for (int32_t i = 0; i < c->count; i++) bins[(key_of(c->values[i]) - low) >> shift] += (double)c->weights[i];
        uint32_t chosen = 0;
        for (uint32_t b = 0; b < kBins; b++) {
            if (bins[b] == 0) continue;
            chosen = b;
            if (before + bins[b] >= needed) break;
            before += bins[b];
        }
        int32_t kept = 0;
        for (int32_t i = 0; i < c->count; i++) {
            if ((key_of(c->values[i]) - low) >> shift != chosen) continue;
            c->values[kept] = c->values[i];
            c->weights[kept] = c->weights[i];
            c->ids[kept++] = c->ids[i];
        }
        c->count = kept;
        low += chosen << shift;
        high = least(high, low + ((1u << shift) - 1));
    }
    int32_t last = 0;                        // ties: as many of the lowest ids as are needed
    for (; last + 1 < c->count && before + (double)c->weights[last] < needed; last++) before += (double)c->weights[last];
    return {c->values[last], c->ids[last]};
}

// The last of the equal values that are needed.
inline Limit select_tie(const Scores &s, const Goal &goal, float value, double missing) {
    const Weights scale(s);
    Limit last = {value, kAnyId};
    const F8 wanted = splat(value);
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < value) continue;
        for (int32_t i = 0; i < s.group; i += kRun) {
            const float *p = s.group_at(g) + i;
            const int32_t first = g * s.group + i;
            float weights[kRun];             // equal values may lie apart before they are scaled
            if (goal.by_mass) weigh_run<true, false>(s, scale, goal, p, first, weights);
            else weigh_run<false, false>(s, scale, goal, p, first, weights);
            for (int32_t at = 0; at < kRun; at += 8) {
                const F8 v = s.scaled(p + at);
                uint32_t lanes = bits(less_equal(wanted, v) & less_equal(v, wanted) & inside(v, first + at, goal.limit));
                for (; lanes != 0; lanes &= lanes - 1) {
                    const int32_t lane = at + __builtin_ctz(lanes);
                    last.id = first + lane;
                    missing -= (double)weights[lane];
                    if (!(missing > 0)) return last;
                }
            }
        }
    }
    return last;
}

// The smallest finite value.
inline float smallest(const Scores &s) {
    F8 low = splat(kInfinity);
    for (int32_t g = 0; g < s.groups; g++)
        for (int32_t i = 0; i < s.group; i += 8) {
            const F8 v = s.scaled(s.group_at(g) + i);
            low = select(less(splat(kMinusInfinity), v), min(v, low), low);
        }
    return -max_of(neg(low));
}

inline float largest(const Scores &s) {
    return largest_of(s.maxima, s.groups);
}

// All of goal.limit if nothing shorter reaches the goal.
inline Limit select_prefix(const Scores &s, const Goal &goal) {
    Candidates c;
    Bins bins;
    double before = 0, needed = goal.amount;
    Cut cut = {largest(s), goal.floor == kMinusInfinity ? smallest(s) : goal.floor, 0, false, 0, 0};
    if (!goal.by_mass && goal.floor > kMinusInfinity) {          // a floor that counts leaves few
        collect(s, goal, cut, -1, &c);
        if (c.count <= kCandidates) {
            weigh_all(s, false, &c);
            return select_among(&c, 0, needed);
        }
    }
    cut.scale = (float)(kBins - 1) / greatest(cut.high - cut.low, 0x1p-100f);
    for (bool first = true;; first = false) {
        spread(s, goal, cut, &bins);
        if (first && goal.by_mass) needed = goal.amount * bins.total;
        int32_t bin = 0;
        for (double mass; bin < kBins && ((mass = bins.of(bin)) == 0 || before + mass < needed); bin++) before += mass;
        if (bin == kBins) return goal.by_mass ? goal.limit : select_tie(s, goal, kMinusInfinity, needed - before);
        collect(s, goal, cut, bin, &c);
        if (c.count <= kCandidates) {
            weigh_all(s, goal.by_mass, &c);
            return select_among(&c, before, needed);
        }
        if (c.low == c.high) return select_tie(s, goal, c.high, needed - before);
        const uint32_t key = key_of(c.high);
        cut = {c.high, c.low, 0, true, key, shift_for(key, key_of(c.low))};
    }
}

// A value that at least k values reach, k <= groups: the k-th largest maximum of at least 8 k runs of groups, or of all groups.
inline float reached_by(const Scores &s, int32_t k) {
    const int32_t run = greatest(s.groups / (8 * k), 1);
    Candidates c;
    c.count = 0;
    c.high = kMinusInfinity;
    c.low = kInfinity;
    for (int32_t g = 0; g < s.groups; c.count++) {
        float top = kMinusInfinity;
        for (const int32_t end = least(g + run, s.groups); g < end; g++) top = greatest(top, s.maxima[g]);
        c.values[c.count] = top;
        c.ids[c.count] = c.count;
        c.high = greatest(c.high, top);
        c.low = least(c.low, top);
    }
    weigh_all(s, false, &c);
    return select_among(&c, 0, (double)k).value;
}

}  // namespace HR_ISA
}  // namespace headrace
