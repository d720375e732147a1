// One row of raw logits to one token.
//
//  1 A NaN or +inf, or nothing but -inf, is error 1.  2 Log-probabilities are those of the raw logits:
//  l - max - log(sum(e^(l - max))).  3 Tokens outside the mask become -inf.  4 Bias is added.  5 Each seen token:
//  l > 0 ? l / repetition : l * repetition; then l -= count * frequency, and l -= presence if count > 0. Nothing but -inf
//  left is error 2.  6 Temperature below 1e-6: the largest l; else l = (l - max) / temperature.  7 min_p drops
//  l < log(min_p).  8 top_k keeps the k first.  9 top_p keeps the shortest run of the first whose share of what is left
//  reaches top_p.  10 The token is the largest l + noise(seed, position, id).
//
// The order is by (value descending, id ascending) everywhere, so steps 7 to 9 each keep a prefix of it. Logits are not
// changed: when steps 3 to 5 change something, they work on a copy in `scratch`. Groups of tokens whose maximum plus the
// largest possible noise cannot beat the best so far are skipped, which is exact.
#include "kernels/decl.h"
#include "kernels/philox.h"
#include "kernels/sample_walk.h"

namespace headrace {
namespace HR_ISA {
namespace {

constexpr float kGreedyBelow = 1e-6f;
constexpr int32_t kErrorNumeric = 1, kErrorNothingLeft = 2;

bool has_edits(const SampleArgs &a) { return a.allowed != nullptr || a.num_bias > 0 || a.num_seen > 0; }

// Step 3: a copy of the logits with -inf outside the mask, and its maxima, which are those of `raw` at first.
void copy_allowed(const SampleArgs &a, const Scores &raw, float *scores, float *maxima) {
    const F8 never = splat(kMinusInfinity);
    for (int32_t g = 0; g < raw.groups; g++) {
        const int32_t first = g * raw.group, end = least(first + raw.group, a.vocab);
        uint32_t every = 0xffffffffu, any = 0;
        for (int32_t w = first / 32; w < (end + 31) / 32; w++) every &= a.allowed[w], any |= a.allowed[w];
        if (every == 0xffffffffu) {
            std::memcpy(scores + first, a.logits + first, (size_t)(end - first) * sizeof(float));
            continue;
        }
        F8 most = never;
        int32_t i = first;
        if (any == 0)
            for (; i + 32 <= end; i += 32) HR_UNROLL for (int32_t j = 0; j < 32; j += 8) store(scores + i + j, never);
        for (; i + 32 <= end; i += 32) {
            F8 v[4] = {load(a.logits + i), load(a.logits + i + 8), load(a.logits + i + 16), load(a.logits + i + 24)};
            keep_bits(a.allowed[i / 32], never, v);
            HR_UNROLL for (int32_t j = 0; j < 4; j++) store(scores + i + 8 * j, v[j]);
            most = max(most, max(max(v[0], v[1]), max(v[2], v[3])));
        }
        maxima[g] = largest_lane(most);
        for (; i < end; i++) {               // at the end of the vocabulary
            scores[i] = a.allowed[i / 32] >> (i % 32) & 1 ? a.logits[i] : kMinusInfinity;
            maxima[g] = greatest(maxima[g], scores[i]);
        }
    }
}

// Steps 4 and 5. Marks the groups whose maximum may be another one afterwards.
void edit_tokens(const SampleArgs &a, const Scores &s, float *scores, uint8_t *marked) {
    const auto set = [&](int32_t id, float value) {
        const int32_t g = id / s.group;
        if (scores[id] >= s.maxima[g] || !(value <= s.maxima[g])) marked[g] = 1;     // a NaN too
        scores[id] = value;
    };
    for (int32_t i = 0; i < a.num_bias; i++) set(a.bias_ids[i], scores[a.bias_ids[i]] + a.bias_values[i]);
    for (int32_t i = 0; i < a.num_seen; i++) {
        float l = scores[a.seen_ids[i]];
        const float count = (float)a.seen_counts[i];
        l = l > 0 ? l / a.repetition : l * a.repetition;
        l -= count * a.frequency;
        if (a.seen_counts[i] > 0) l -= a.presence;
        set(a.seen_ids[i], l);
    }
}

// Steps 3 to 5 on a copy of the logits; `top` is the largest then. False if one is NaN or +inf.
bool open_edited(const SampleArgs &a, const Scores &raw, Scores *s, float *top) {
    float *scores = a.scratch;
    uint8_t marked[kMaxGroups];
    s->values = scores;
    s->count = raw.count;
    s->group = raw.group;
    s->groups = raw.groups;
    s->shift = 0.0f;
    s->divisor = 1.0f;
    std::memcpy(s->maxima, raw.maxima, (size_t)raw.groups * sizeof(float));
    std::memset(marked, 0, (size_t)raw.groups);
    if (a.allowed != nullptr) copy_allowed(a, raw, scores, s->maxima);
    else std::memcpy(scores, a.logits, (size_t)a.vocab * sizeof(float));
    edit_tokens(a, *s, scores, marked);
    pad_tail(s);
    for (int32_t g = 0; g < s->groups; g++)
        if (marked[g]) s->maxima[g] = largest_or_infinity(s->group_at(g), s->group);
    *top = largest_of(s->maxima, s->groups);
    return *top < kInfinity;
}

// e^maximum of eight groups, 0.999 of it and 0 where the maximum may lie outside the limit.
F8 known_masses(const Scores &s, int32_t g, Limit limit) {
    const int32_t groups = least(8, s.groups - g);
    const F8 maxima = groups == 8 ? load(s.maxima + g) : load_part(s.maxima + g, groups);
    const M8 counts = less(splat(limit.value), maxima) & greater(splat(groups), lane_index());
    return select(counts, splat(0.999f) * exp_nonpositive(maxima), zero());
}

// Steps 7 to 9: the last place that is kept. `s` is scaled: its first place has value 0.
Limit keep(const SampleArgs &a, const Scores &s) {
    Limit limit = {kMinusInfinity, kAnyId};
    if (a.min_p > 0) limit.value = (float)__builtin_log((double)a.min_p);
    if (a.top_k > 0 && a.top_k < a.vocab) limit = shorter(limit, first_places(s, a.top_k));
    if (a.top_p < 1) {
        // All tokens below `floor` together weigh less than what top_p may leave out of a mass that is at least `known`.
        double known = 0;
        for (int32_t g = 0; g < s.groups; g += 8) known += (double)sum(known_masses(s, g, limit));
        const float floor = (float)__builtin_log((1.0 - (double)a.top_p) * greatest(known, 0.999) / a.vocab) - 1e-3f;
        limit = shorter(limit, walk_to(s, {true, (double)a.top_p, floor, limit}));
    }
    return limit;
}

struct Best {
    float value;
    int32_t id;

    void offer(float v, int32_t i) {
        if (v > value || (v == value && i < id)) value = v, id = i;
    }
};

// Smallest top 23 bits of a word whose noise could reach d, at least 0: 1 - u <= -log(u) = e^-noise <= e^-d <= 2^-floor(d log2 e).
int32_t least_word(float d) {
    if (!(d > 0.5f)) return 0;
    const int32_t halvings = (int32_t)((d - 0.01f) * 1.4426f);
    return halvings > 22 ? (1 << 23) - 2 : greatest((1 << 23) - (1 << (23 - halvings)) - 1, 0);
}

// Whether one of the values of a block is at least `bound`.
HR_INLINE bool is_any_kept(const float *p, float bound) {
    if (bound == kMinusInfinity) return true;
    F8 highest = load(p);
    HR_UNROLL for (int32_t i = 8; i < kNoiseBlock; i += 8) highest = max(highest, load(p + i));
    return bits(less_equal(splat(bound), highest)) != 0;
}

// Step 10, some blocks of ids at a time.
struct Draw {
    const Scores &s;
    const RoundKeys keys;
    const Limit limit;
    const float bound;                       // of raw values that the limit keeps
    Best best = {kMinusInfinity, INT32_MAX};
    int32_t groups[kTogether], places[kTogether], waiting = 0;

    Draw(const Scores &scores, NoiseKey key, Limit last)
        : s(scores), keys(key), limit(last), bound(raw_bound(scores, last.value)) {}

    // Whether the best so far can be beaten in a group.
    bool is_open(int32_t g) const { return s.maxima[g] >= limit.value && s.maxima[g] + kNoiseBound >= best.value; }

    void take_group(int32_t g) {
        for (int32_t at = 0; at < s.group; at += kNoiseBlock) {
            if (s.group > kNoiseBlock && !is_any_kept(s.group_at(g) + at, bound)) continue;
            groups[waiting] = g;
            places[waiting] = at;
            if (++waiting == kTogether) draw_waiting();
        }
    }
    void draw_waiting() {
        if (waiting == 0) return;
        for (; waiting < kTogether; waiting++) groups[waiting] = groups[0], places[waiting] = places[0];   // drawn twice: the same
        NoiseWords words[kTogether];
        for (int32_t i = 0; i < kTogether; i++) words[i].begin(keys, groups[i] * s.group + places[i]);
        run_rounds(keys, words);
        waiting = 0;
        for (int32_t i = 0; i < kTogether; i++)  // a word below the least cannot lift one of the group to the best
            if (words[i].is_any_from(least_word(best.value - s.maxima[groups[i]]))) offer_block(words[i], groups[i], places[i]);
    }
    HR_NOINLINE void offer_block(const NoiseWords &words, int32_t g, int32_t at) {
        const float *p = s.group_at(g) + at;
        int32_t by_id[kNoiseBlock];
        words.store_by_id(by_id);
        for (int32_t i = 0; i < kNoiseBlock; i += 8) {
            const int32_t first = g * s.group + at + i;
            const F8 v = s.scaled(p + i);
            const F8 noisy = select(inside(v, first, limit), v, splat(kMinusInfinity)) + gumbel(load(by_id + i));
            if (largest_lane(noisy) < best.value) continue;
            float lanes[8];
            store(lanes, noisy);
            for (int32_t j = 0; j < 8; j++)
                if (first + j < s.count) best.offer(lanes[j], first + j);
        }
    }
};

// The group of the largest value goes first, so that most others need not be looked at.
int32_t draw(const Scores &s, NoiseKey key, Limit limit) {
    Draw d(s, key, limit);
    int32_t start = 0;
    while (start < s.groups - 1 && s.maxima[start] != 0.0f) start++;
    d.take_group(start);
    d.draw_waiting();
    for (int32_t g = 0; g < s.groups; g++)
        if (g != start && d.is_open(g)) d.take_group(g);
    d.draw_waiting();
    return d.best.id;
}

// How many of the values of a run `counts` tells to count, by lane and negative; it gets the place of each eight in the run.
template <class Counts> HR_INLINE I8 count_run(Counts counts) {
    I8 held = splat((int32_t)0);
    HR_UNROLL for (int32_t i = 0; i < kRun; i += 16) held = held + (as_int(counts(i)) + as_int(counts(i + 8)));
    return held;
}

// Values of a run that come before a token in the order, by lane and negative. `side` tells whether the run lies before the
// token's group (-1), in it or after it.
HR_INLINE I8 count_before(const float *p, int32_t first, int32_t side, float value, int32_t token) {
    const F8 wanted = splat(value);
    if (side < 0) return count_run([&](int32_t i) { return less_equal(wanted, load(p + i)); });
    if (side > 0) return count_run([&](int32_t i) { return less(wanted, load(p + i)); });
    return count_run([&](int32_t i) { return inside(load(p + i), first + i, {value, token - 1}); });
}

// The sum of e^(l - max) of a run of raw scores.
HR_INLINE F8 mass_of_run(const Power &power, const float *p, float top) {
    F8 lanes = zero();
    HR_UNROLL for (int32_t i = 0; i < kRun; i += 8 * kSide) {
        F8 d[kSide], e[kSide];
        HR_UNROLL for (int32_t j = 0; j < kSide; j++) d[j] = load(p + i + 8 * j) - splat(top);
        power.raise(d, e);
        lanes = lanes + ((e[0] + e[1]) + (e[2] + e[3]));
    }
    return lanes;
}

struct Standing {
    float log_mass;                          // log(sum(e^(l - max)))
    int32_t rank;                            // place of a token in the order, counted from 1
};

// In one pass over the raw scores, but for groups that hold neither mass nor tokens that come before.
Standing standing_of(const Scores &raw, float top, int32_t token) {
    const Power power(1.0f);
    const float value = raw.values[token];
    const int32_t own = token / raw.group;
    double total = 0;
    I8 before = splat((int32_t)0);
    for (int32_t g = 0; g < raw.groups; g++) {
        const bool weighs = raw.maxima[g] - top >= -87.0f, is_before = raw.maxima[g] >= value;
        const int32_t side = g < own ? -1 : g > own;
        for (int32_t at = 0; at < raw.group; at += kRun) {
            const float *p = raw.group_at(g) + at;
            if (weighs) total += (double)sum(mass_of_run(power, p, top));
            if (is_before) before = before + count_before(p, g * raw.group + at, side, value, token);
        }
    }
    int32_t lanes[8], rank = 1;
    store(lanes, before);
    for (int32_t n : lanes) rank -= n;
    return {(float)__builtin_log(total), rank};
}

struct InOrder {
    const float *values;
    HR_INLINE bool operator()(int32_t a, int32_t b) const {
        return values[a] > values[b] || (values[a] == values[b] && a < b);
    }
};

// Heap sort: in place, no allocation, n log n at worst.
void sort_ids(int32_t *ids, int32_t n, InOrder before) {
    const auto sift = [&](int32_t root, int32_t end) {
        for (int32_t child; (child = 2 * root + 1) < end; root = child) {
            if (child + 1 < end && before(ids[child], ids[child + 1])) child++;
            if (!before(ids[root], ids[child])) return;
            const int32_t id = ids[root];
            ids[root] = ids[child];
            ids[child] = id;
        }
    };
    for (int32_t i = n / 2; i-- > 0;) sift(i, n);
    for (int32_t end = n - 1; end > 0; end--) {
        const int32_t id = ids[0];
        ids[0] = ids[end];
        ids[end] = id;
        sift(0, end);
    }
}

// The k first tokens in order.
void list_best(const Scores &raw, int32_t k, int32_t *ids) {
    const Limit last = first_places(raw, k);
    int32_t found = 0;
    for (int32_t g = 0; g < raw.groups && found < k; g++) {
        if (raw.maxima[g] < last.value) continue;
        const float *p = raw.group_at(g);
        for (int32_t i = 0; i < raw.group; i += 8) {
            const int32_t first = g * raw.group + i;
            uint32_t lanes = bits(inside(load(p + i), first, last));
            for (; lanes != 0 && found < k; lanes &= lanes - 1) ids[found++] = first + __builtin_ctz(lanes);
        }
    }
    sort_ids(ids, found, {raw.values});
}

// Step 2 for one token and the k best.
void report(const Scores &raw, float top, int32_t token, int32_t k, float *logprob, int32_t *rank, int32_t *top_ids,
            float *top_logprobs) {
    const Standing standing = standing_of(raw, top, token);
    const float norm = standing.log_mass;
    *logprob = (raw.values[token] - top) - norm;
    *rank = standing.rank;
    k = least(k, raw.count);
    if (k <= 0) return;
    list_best(raw, k, top_ids);
    for (int32_t i = 0; i < k; i++) top_logprobs[i] = (raw.values[top_ids[i]] - top) - norm;
}

// Whether the token is the largest raw logit and nothing else is asked for, while the maxima of its groups are known.
bool is_argmax(const SampleArgs &a) {
    return a.maxima != nullptr && a.vocab > 0 && a.temperature < kGreedyBelow && a.num_logprobs < 0 && !has_edits(a);
}

// The first largest logit, found by the maxima; -1: one is NaN or +inf, or there is nothing but -inf.
int32_t argmax(const SampleArgs &a) {
    const int32_t groups = (a.vocab - 1) / kMaximaGroup + 1;
    const float top = largest_of(a.maxima, groups);
    if (!(top < kInfinity) || top == kMinusInfinity) return -1;
    int32_t g = 0;
    while (g < groups - 1 && a.maxima[g] != top) g++;
    for (int32_t i = g * kMaximaGroup; i < least(a.vocab, (g + 1) * kMaximaGroup); i++)
        if (a.logits[i] == top) return i;
    return -1;
}

// Steps 3 to 10; returns the token or sets an error. `raw` holds the open logits.
int32_t choose(SampleArgs &a, const Scores &raw, float top) {
    if (!has_edits(a) && a.temperature < kGreedyBelow) return first_of(raw, top);
    Scores s;
    if (has_edits(a)) {
        if (!open_edited(a, raw, &s, &top)) return a.error = kErrorNumeric, -1;
        if (top == kMinusInfinity) return a.error = kErrorNothingLeft, -1;
        if (a.temperature < kGreedyBelow) return first_of(s, top);
    } else {
        s = raw;
    }
    scale_scores(&s, top, a.temperature);
    return draw(s, {a.seed, a.position}, keep(a, s));
}

}  // namespace

void group_maxima(const float *x, size_t ldx, int32_t width, int32_t row_begin, int32_t row_end, int32_t group_begin,
                  int32_t group_end, float *maxima, size_t ldm) {
    const int32_t whole = width / kMaximaGroup, rest = width % kMaximaGroup;
    for (int32_t row = row_begin; row < row_end; row++) {
        float *out = maxima + row * ldm;
        for (int32_t g = group_begin; g < group_end; g++) {
            const float *p = x + row * ldx + (size_t)g * kMaximaGroup;
            float tail[kMaximaGroup];
            if (g == whole) {
                for (int32_t i = 0; i < kMaximaGroup; i++) tail[i] = i < rest ? p[i] : kMinusInfinity;
                p = tail;
            }
            out[g] = largest_or_infinity(p, kMaximaGroup);
        }
    }
}

void sample(SampleArgs *args) {
    SampleArgs &a = *args;
    a.token = -1;
    a.logprob = 0.0f;
    a.rank = 0;
    a.error = 0;
    if (is_argmax(a)) {
        a.token = argmax(a);
        if (a.token < 0) a.error = kErrorNumeric;
        return;
    }
    Scores scores;
    float top;
    if (!open_scores(a.logits, a.vocab, a.maxima, &scores, &top) || top == kMinusInfinity) {
        a.error = kErrorNumeric;
        return;
    }
    a.token = choose(a, scores, top);
    if (a.error != 0 || a.num_logprobs < 0) return;
    report(scores, top, a.token, a.num_logprobs, &a.logprob, &a.rank, a.top_ids, a.top_logprobs);
}

// A row with a NaN or +inf, or nothing but -inf: rank 0, NaN log-probability, no best tokens.
void logprobs(const float *logits, int32_t vocab, int32_t token, int32_t k, float *logprob, int32_t *rank,
              int32_t *top_ids, float *top_logprobs) {
    Scores scores;
    float top;
    if (open_scores(logits, vocab, nullptr, &scores, &top) && top > kMinusInfinity) {
        report(scores, top, token, k, logprob, rank, top_ids, top_logprobs);
        return;
    }
    *logprob = __builtin_nanf("");
    *rank = 0;
    for (int32_t i = 0; i < k; i++) top_ids[i] = -1, top_logprobs[i] = __builtin_nanf("");
}

}  // namespace HR_ISA
}  // namespace headrace
