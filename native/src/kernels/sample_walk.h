// The last place of a long prefix, without sorting everything into bins.
//
// A sample of the groups guesses a value near the place. One pass over everything gives the exact amount of what lies at
// or above the guess, and of everything. From there a walk, window by window, collects only what lies between the guess
// and the place. The sample only decides where to look: what is found is exact, whatever it says.
#pragma once
#include "kernels/sample_select.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kStride = 32;              // one group in so many is sampled
constexpr int32_t kSteps = 512;              // resolution of the guess
constexpr int32_t kWindow = 6000;            // values that a window should hold at most; kCandidates is the limit
constexpr int32_t kNear = 512;               // values above the guess that are sooner collected than weighed
constexpr int32_t kLeastGroups = 256;        // below, the sample would be too small to be worth it
constexpr float kWeightless = -25.0f;        // e^v of a lower value is below half a quantum: no weight

// A weight in two parts, multiples of 2^-17 up to 1 and of the quantum up to 2^-18: floats hold sums of 128 of either
// exactly. Their sum is what `round_weight` gives: the first part is a multiple of the quantum twice over, so rounding the
// rest to the quantum rounds the whole.
struct Parts {
    F8 high, low;

    HR_INLINE Parts(F8 e, float bound) {
        const F8 c = splat(1.5f * bound);
        high = (e + splat(64.0f)) - splat(64.0f);
        low = ((e - high) + c) - c;
    }
    HR_INLINE Parts(M8 m, const Parts &p) : high(zero_unless(m, p.high)), low(zero_unless(m, p.low)) {}
};

struct ExactSum {
    static constexpr int32_t kMost = 128;    // parts between two flushes
    F8 high = zero(), low = zero();
    double totals[8] = {0, 0, 0, 0, 0, 0, 0, 0};     // below 2^53 quanta: exact, whatever the order

    HR_INLINE void add(const Parts &p) { high = high + p.high, low = low + p.low; }
    void flush() {
        float a[8], b[8];
        store(a, high);
        store(b, low);
        for (int32_t i = 0; i < 8; i++) totals[i] += (double)a[i] + (double)b[i];
        high = low = zero();
    }
    double total() const {
        double all = 0;
        for (double t : totals) all += t;
        return all;
    }
};

// Every kStride-th group, spread over steps downwards from the highest value. The last step takes all that lies below.
struct Sample {
    float high, scale;
    double masses[kSteps][2], total;         // by lane, even or odd: neighbours wait less for each other
    int32_t counts[kSteps][2];

    double mass(int32_t step) const { return masses[step][0] + masses[step][1]; }
    int32_t count(int32_t step) const { return counts[step][0] + counts[step][1]; }

    // All values of steps before `step` lie at or above it, up to rounding, which costs nothing but a step.
    float edge(int32_t step) const {
        return step <= 0 ? kInfinity : step >= kSteps ? kMinusInfinity : high - ((float)step - 0.5f) / scale;
    }
};

inline void take_sample(const Scores &s, const Goal &goal, float low, Sample *out) {
    const Weights scale(s);
    std::memset(out, 0, sizeof *out);
    out->high = largest(s);
    out->scale = (float)(kSteps - 2) / greatest(out->high - low, 0x1p-60f);
    for (int32_t g = kStride / 2; g < s.groups - 1; g += kStride) {
        if (s.maxima[g] < goal.limit.value) continue;
        for (int32_t i = 0; i < s.group; i += kRun) {
            const float *p = s.group_at(g) + i;
            int32_t steps[kRun];
            float weights[kRun];
            if (goal.by_mass) weigh_run<true, true>(s, scale, goal, p, g * s.group + i, weights);
            else weigh_run<false, true>(s, scale, goal, p, g * s.group + i, weights);
            for (int32_t j = 0; j < kRun; j += 8)
                store(steps + j, to_int(min((splat(out->high) - s.scaled(p + j)) * splat(out->scale), splat((float)(kSteps - 1)))));
            for (int32_t j = 0; j < kRun; j++) {
                const uint32_t step = least((uint32_t)steps[j], (uint32_t)(kSteps - 1));    // a NaN (infinity * 0) is no step
                out->masses[step][j % 2] += (double)weights[j];
                out->counts[step][j % 2]++;
            }
        }
    }
    for (int32_t i = 0; i < kSteps; i++) out->total += out->mass(i);
}

// The smallest finite value of the sample.
inline float smallest_sampled(const Scores &s) {
    F8 low = splat(kInfinity);
    for (int32_t g = kStride / 2; g < s.groups - 1; g += kStride)
        for (int32_t i = 0; i < s.group; i += 8) {
            const F8 v = s.scaled(s.group_at(g) + i);
            low = select(less(splat(kMinusInfinity), v), min(v, low), low);
        }
    return least(-max_of(neg(low)), largest(s));
}

struct Amounts {
    double from, total;                      // of what lies at or above a value, and of everything inside the limit
};

// The weights of 64 values of ids from `id` on; a mixed run may have some that lie below `first`, and some that do not.
template <bool Limited, bool IsMixed>
HR_INLINE void add_run(const Scores &s, const Goal &goal, const Weights &scale, F8 first, const float *p, int32_t id,
                       ExactSum *from, ExactSum *total) {
    HR_UNROLL for (int32_t i = 0; i < kRun; i += 8 * kSide) {
        F8 e[kSide];
        scale.exponentials(p + i, e);
        HR_UNROLL for (int32_t j = 0; j < kSide; j++) {
            const int32_t at = i + 8 * j;
            Parts weight(e[j], scale.bound);
            if constexpr (Limited) weight = Parts(inside(s.scaled(p + at), id + at, goal.limit), weight);
            total->add(weight);
            if constexpr (IsMixed) from->add(Parts(less_equal(first, load(p + at)), weight));
        }
    }
}

template <bool Limited> Amounts masses_from(const Scores &s, const Goal &goal, float low) {
    const F8 first = splat(raw_bound(s, low));
    const Weights scale(s);
    ExactSum from, total;
    int32_t pending = 0;
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < goal.limit.value || s.maxima[g] < kWeightless) continue;
        const bool is_mixed = s.maxima[g] >= low;
        for (int32_t at = 0; at < s.group; at += kRun) {
            const float *p = s.group_at(g) + at;
            const int32_t id = g * s.group + at;
            if (is_mixed) add_run<Limited, true>(s, goal, scale, first, p, id, &from, &total);
            else add_run<Limited, false>(s, goal, scale, first, p, id, &from, &total);
            if ((pending += kRun / 8) < ExactSum::kMost) continue;
            from.flush(), total.flush();
            pending = 0;
        }
    }
    from.flush(), total.flush();
    return {from.total(), total.total()};
}

inline double number_from(const Scores &s, float low) {
    const F8 first = splat(raw_bound(s, low));
    int64_t number = 0;
    for (int32_t g = 0; g < s.groups; g++) {
        if (s.maxima[g] < low) continue;
        const float *p = s.group_at(g);
        for (int32_t i = 0; i < s.group; i += 8) number += __builtin_popcount(bits(less_equal(first, load(p + i))));
    }
    return (double)number;
}

inline Amounts amounts_from(const Scores &s, const Goal &goal, float low) {
    if (!goal.by_mass) return {number_from(s, low), 0};     // numbers are sought among all tokens
    return goal.limit.value > kMinusInfinity ? masses_from<true>(s, goal, low) : masses_from<false>(s, goal, low);
}

inline double weigh_candidates(const Scores &s, const Goal &goal, Candidates *c) {
    double amount = 0;
    weigh_all(s, goal.by_mass, c);
    for (int32_t i = 0; i < c->count; i++) amount += (double)c->weights[i];
    return amount;
}

// As `select_prefix`, for goals that reach deep into many groups.
inline Limit walk_to(const Scores &s, const Goal &goal) {
    if (s.groups < kLeastGroups) return select_prefix(s, goal);
    Sample sample;
    take_sample(s, goal, goal.floor == kMinusInfinity ? smallest_sampled(s) : goal.floor, &sample);
    const double guess = goal.by_mass ? goal.amount * sample.total : goal.amount / kStride;
    int32_t at = 0, number = 0;              // the amount from edge(at) on is known
    for (double passed = 0; at < kSteps - 1 && passed < guess; at++) {
        passed += sample.mass(at);
        number += sample.count(at);
    }
    if (number <= kNear / kStride) at = 0;  // near enough to walk from the top, whose amount is nothing
    const Amounts all = amounts_from(s, goal, sample.edge(at));
    const double needed = goal.by_mass ? goal.amount * all.total : goal.amount;
    for (double amount = all.from;;) {
        const bool up = at > 0 && amount >= needed;
        const double missing = 1.5 * (up ? amount - needed : needed - amount) / kStride;
        int32_t to = at, count = 0;
        for (double passed = 0; up ? to > 0 : to < kSteps;) {
            const int32_t step = up ? to - 1 : to;
            if (to != at && (passed > missing || (count += sample.count(step)) > kWindow / kStride)) break;
            passed += sample.mass(step);
            to = up ? to - 1 : to + 1;
        }
        Candidates c;
        collect_between(s, goal, sample.edge(greatest(at, to)), sample.edge(least(at, to)), &c);
        if (c.count > kCandidates) return select_prefix(s, goal);
        const double mass = weigh_candidates(s, goal, &c), before = up ? amount - mass : amount;
        if (c.count > 0 && (before < needed || to == 0) && before + mass >= needed) return select_among(&c, before, needed);
        if (to == 0 || to == kSteps) return select_prefix(s, goal);
        at = to;
        amount = up ? before : before + mass;
    }
}

// The k first places, k > 0.
inline Limit first_places(const Scores &s, int32_t k) {
    if (k > s.groups) return walk_to(s, {false, (double)k, kMinusInfinity, {kMinusInfinity, kAnyId}});
    return select_prefix(s, {false, (double)k, reached_by(s, k), {kMinusInfinity, kAnyId}});
}

}  // namespace HR_ISA
}  // namespace headrace
