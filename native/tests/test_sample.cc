// Sampling against a naive scalar version of the definition, on every instruction set; the noise against the published
// answers of Philox; draws against their distribution.
#include <algorithm>
#include <numeric>

#include "kernel_test.h"

using namespace headrace;
using namespace kernel_test;

namespace {

void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p = (uint64_t)c[0] * 0xD2511F53u, q = (uint64_t)c[2] * 0xCD9E8D57u;
        const uint32_t next[4] = {(uint32_t)(q >> 32) ^ c[1] ^ k0, (uint32_t)q, (uint32_t)(p >> 32) ^ c[3] ^ k1, (uint32_t)p};
        std::memcpy(c, next, sizeof next);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

double noise(uint64_t seed, int32_t position, int32_t id) {
    uint32_t c[4] = {(uint32_t)id / 4, (uint32_t)position, 0, 0};
    philox(c, (uint32_t)seed, (uint32_t)(seed >> 32));
    return -std::log(-std::log((double)((c[id % 4] >> 9) + 0.5) * 0x1p-23));
}

// Known answers of Random123 for philox4x32-10.
void check_philox() {
    uint32_t zero[4] = {0, 0, 0, 0};
    philox(zero, 0, 0);
    check(zero[0] == 0x6627e8d5 && zero[1] == 0xe169c58d && zero[2] == 0xbc57ac4c && zero[3] == 0x9b00dbd8, "philox of zeros");
    uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    philox(pi, 0xa4093822, 0x299f31d0);
    check(pi[0] == 0xd16cfe09 && pi[1] == 0x94fdcceb && pi[2] == 0x5001e420 && pi[3] == 0x24126ea1, "philox of pi");
}

// One request: the arrays behind a SampleArgs.
struct Request {
    std::vector<float> logits, bias_values;
    std::vector<int32_t> seen_ids, seen_counts, bias_ids;
    std::vector<uint32_t> allowed;
    float temperature = 1, top_p = 1, min_p = 0, repetition = 1, presence = 0, frequency = 0;
    int32_t top_k = 0, position = 0, num_logprobs = -1;
    uint64_t seed = 0;
};

struct Outcome {
    int32_t token, rank, error;
    float logprob;
    std::vector<int32_t> top_ids;
    std::vector<float> top_logprobs;
};

Outcome run_once(const Kernels &k, Request r, const float *maxima) {
    const std::vector<float> before = r.logits;
    std::vector<float> scratch(r.logits.size() + 16384);
    Outcome o;
    o.top_ids.assign(std::max(r.num_logprobs, 0), -7);
    o.top_logprobs.assign(std::max(r.num_logprobs, 0), 7.0f);
    SampleArgs a = {};
    a.logits = r.logits.data();
    a.vocab = (int32_t)r.logits.size();
    a.maxima = maxima;
    a.temperature = r.temperature;
    a.top_k = r.top_k;
    a.top_p = r.top_p;
    a.min_p = r.min_p;
    a.repetition = r.repetition;
    a.presence = r.presence;
    a.frequency = r.frequency;
    a.seen_ids = r.seen_ids.data();
    a.seen_counts = r.seen_counts.data();
    a.num_seen = (int32_t)r.seen_ids.size();
    a.bias_ids = r.bias_ids.data();
    a.bias_values = r.bias_values.data();
    a.num_bias = (int32_t)r.bias_ids.size();
    a.allowed = r.allowed.empty() ? nullptr : r.allowed.data();
    a.seed = r.seed;
    a.position = r.position;
    a.num_logprobs = r.num_logprobs;
    a.scratch = scratch.data();
    a.top_ids = o.top_ids.data();
    a.top_logprobs = o.top_logprobs.data();
    k.sample(&a);
    check(std::memcmp(before.data(), r.logits.data(), before.size() * sizeof(float)) == 0, "the logits were changed");
    o.token = a.token;
    o.rank = a.rank;
    o.error = a.error;
    o.logprob = a.logprob;
    return o;
}

// The same with and without maxima that were made before.
Outcome run(const Kernels &k, const Request &r) {
    const int32_t vocab = (int32_t)r.logits.size(), groups = (vocab + kMaximaGroup - 1) / kMaximaGroup;
    std::vector<float> maxima((size_t)groups);
    k.group_maxima(r.logits.data(), 0, vocab, 0, 1, 0, groups, maxima.data(), 0);
    const Outcome plain = run_once(k, r, nullptr), known = run_once(k, r, maxima.data());
    check(plain.token == known.token && plain.rank == known.rank && plain.error == known.error && plain.top_ids == known.top_ids,
          "known maxima: token %d (%d), else %d (%d)", known.token, known.error, plain.token, plain.error);
    check(same_bits({plain.logprob}, {known.logprob}) && same_bits(plain.top_logprobs, known.top_logprobs), "known maxima change log-probabilities");
    return plain;
}

std::vector<int32_t> in_order(const std::vector<float> &v) {
    std::vector<int32_t> ids(v.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) { return v[a] > v[b]; });
    return ids;
}

std::vector<float> edited(const Request &r) {
    std::vector<float> l = r.logits;
    for (size_t i = 0; i < l.size(); i++)
        if (!r.allowed.empty() && !(r.allowed[i / 32] >> (i % 32) & 1)) l[i] = -INFINITY;
    for (size_t i = 0; i < r.bias_ids.size(); i++) l[r.bias_ids[i]] += r.bias_values[i];
    for (size_t i = 0; i < r.seen_ids.size(); i++) {
        float &x = l[r.seen_ids[i]];
        x = x > 0 ? x / r.repetition : x * r.repetition;
        x -= (float)r.seen_counts[i] * r.frequency;
        if (r.seen_counts[i] > 0) x -= r.presence;
    }
    return l;
}

struct Naive {
    int32_t token = -1, error = 0;
    bool close = false;                     // a choice hung on a rounding error
};

// How many of the first tokens steps 7 to 9 leave.
size_t kept(const Request &r, const std::vector<float> &l, const std::vector<int32_t> &order, bool *close) {
    size_t n = 0;
    while (n < order.size() && l[order[n]] > -INFINITY) n++;
    if (r.min_p > 0) {
        size_t m = 0;
        for (; m < n && l[order[m]] >= std::log(r.min_p); m++) {}
        for (size_t i = 0; i < n; i++) *close |= std::fabs(l[order[i]] - std::log((double)r.min_p)) < 1e-6;
        n = m;
    }
    if (r.top_k > 0) n = std::min(n, (size_t)r.top_k);
    if (r.top_p >= 1) return n;
    double total = 0, reached = 0;
    for (size_t i = 0; i < n; i++) total += std::exp((double)l[order[i]]);
    for (size_t i = 0; i < n; i++) {
        reached += std::exp((double)l[order[i]]);
        *close |= std::fabs(reached / total - r.top_p) < 1e-6;
        if (reached >= r.top_p * total) return i + 1;
    }
    return n;
}

Naive naive(const Request &r) {
    Naive out;
    float top = -INFINITY;
    for (float x : r.logits) {
        if (std::isnan(x) || x == INFINITY) out.error = 1;
        top = std::max(top, x);
    }
    if (top == -INFINITY) out.error = 1;
    if (out.error) return out;
    std::vector<float> l = edited(r);
    top = *std::max_element(l.begin(), l.end());
    if (top == -INFINITY) return out.error = 2, out;
    if (r.temperature < 1e-6f) return out.token = (int32_t)(std::max_element(l.begin(), l.end()) - l.begin()), out;
    for (float &x : l) x = (x - top) / r.temperature;
    const std::vector<int32_t> order = in_order(l);
    const size_t n = kept(r, l, order, &out.close);
    double best = -INFINITY, second = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        const double v = l[order[i]] + noise(r.seed, r.position, order[i]);
        if (v > best) second = best, best = v, out.token = order[i];
        else second = std::max(second, v);
    }
    out.close |= best - second < 1e-5;
    return out;
}

Request random_request(Random &random, int32_t vocab) {
    Request r;
    const float spread[] = {0.01f, 1, 4, 12};
    r.logits = random.normals(vocab, spread[random.below(4)]);
    if (random.below(4) == 0) for (float &x : r.logits) x = std::round(2 * x) / 2;              // many ties
    if (random.below(4) == 0) for (int i = 0; i < vocab / 2; i++) r.logits[random.below(vocab)] = -INFINITY;
    const float temperatures[] = {0, 0.3f, 1, 1.7f};
    const float top_ps[] = {1, 1, 0.95f, 0.5f, 0.05f, 0}, min_ps[] = {0, 0, 0, 0.05f, 0.5f};
    const int32_t top_ks[] = {0, 0, 1, 2, 50, vocab / 2 + 1, vocab + 5};
    r.temperature = temperatures[random.below(4)];
    r.top_p = top_ps[random.below(6)];
    r.min_p = min_ps[random.below(5)];
    r.top_k = top_ks[random.below(7)];
    r.seed = (uint64_t)random.next() << 32 | random.next();
    r.position = random.below(100000);
    if (random.below(3) == 0) {
        r.repetition = 1.3f, r.presence = 0.5f, r.frequency = 0.25f;
        for (int32_t id = random.below(5); id < vocab; id += 1 + random.below(40))
            r.seen_ids.push_back(id), r.seen_counts.push_back(random.below(3));
    }
    if (random.below(3) == 0)
        for (int i = 0; i < 5; i++) r.bias_ids.push_back(random.below(vocab)), r.bias_values.push_back(i ? 3.0f : -INFINITY);
    if (random.below(3) == 0) {
        r.allowed.assign((vocab + 31) / 32, 0);
        for (uint32_t &w : r.allowed) w = random.next() & random.next();
    }
    r.num_logprobs = random.below(3) - 1;
    if (random.below(6) == 0) r.num_logprobs = std::min(vocab, 70);
    return r;
}

void check_report(const Request &r, const Outcome &o, const char *name) {
    double top = -INFINITY, total = 0;
    for (float x : r.logits) top = std::max(top, (double)x);
    for (float x : r.logits) total += std::exp(x - top);
    const double norm = top + std::log(total);
    const std::vector<int32_t> order = in_order(r.logits);
    check(o.rank >= 1 && order[o.rank - 1] == o.token, "%s: rank %d of token %d", name, o.rank, o.token);
    check(o.logprob == -INFINITY || std::fabs(o.logprob - (r.logits[o.token] - norm)) < 4e-6, "%s: log-probability %g", name,
          o.logprob);
    for (size_t i = 0; i < o.top_ids.size(); i++) {
        check(o.top_ids[i] == order[i], "%s: place %zu is %d, not %d", name, i, o.top_ids[i], order[i]);
        if (o.top_ids[i] == o.token) check(o.top_logprobs[i] == o.logprob, "%s: two values for one token", name);
    }
}

void check_random(int trials, const std::vector<int32_t> &sizes) {
    Random random(11);
    int close = 0;                           // of all draws, whatever part of them is run
    for (int trial = 0; trial < trials; trial++) {
        const Request r = random_request(random, sizes[random.below((int32_t)sizes.size())]);
        const Naive want = naive(r);
        close += want.close;
        if (!in_part()) continue;
        Outcome first;
        for (const Kernels *k : kernel_sets()) {
            const Outcome o = run(*k, r);
            if (std::strcmp(k->name, "portable") == 0) first = o;
            check(o.token == first.token && o.rank == first.rank && o.error == first.error &&
                  std::memcmp(&o.logprob, &first.logprob, 4) == 0 && o.top_ids == first.top_ids &&
                  same_bits(o.top_logprobs, first.top_logprobs), "%s differs from portable", k->name);
            check(o.error == want.error, "%s: error %d, not %d", k->name, o.error, want.error);
            if (!want.close)
                check(o.token == want.token, "%s: token %d, not %d (vocab %zu, T %g, k %d, p %g, min_p %g)", k->name, o.token,
                      want.token, r.logits.size(), r.temperature, r.top_k, r.top_p, r.min_p);
            if (o.error == 0 && r.num_logprobs >= 0) check_report(r, o, k->name);
        }
    }
    check(close * 50 < trials, "%d of %d draws hang on rounding", close, trials);
}

// Large vocabularies: several groups, long candidate lists, pruning.
void check_large() {
    Random random(5);
    for (int trial = 0; trial < 12; trial++) {
        Request r;
        r.logits = random.normals(trial < 10 ? 151936 : 300001, trial % 3 == 0 ? 0.5f : 3.0f);
        r.temperature = trial % 2 ? 0.8f : 1.5f;
        r.top_p = trial % 4 == 1 ? 0.9f : 1.0f;
        r.top_k = trial % 4 == 2 ? (trial == 2 ? 20000 : 40) : 0;
        r.seed = trial * 12345678901ull;
        r.position = trial;
        r.num_logprobs = trial % 5 == 0 ? 5000 : 20;
        if (!in_part()) continue;
        const Naive want = naive(r);
        for (const Kernels *k : kernel_sets()) {
            const Outcome o = run(*k, r);
            check(want.close || o.token == want.token, "%s: large row %d: token %d, not %d", k->name, trial, o.token, want.token);
            check_report(r, o, k->name);
        }
    }
}

// A sample that misleads: nearly all of the mass lies in the groups that it takes, or in none of them.
void check_guesses() {
    Random random(29);
    for (int trial = 0; trial < 84; trial++) {
        Request r;
        r.logits = random.normals(30000, trial % 3 ? 1.0f : 0.01f);
        for (size_t i = 0; i < r.logits.size(); i++)
            if ((i / 64 % 16 == 8) == (trial % 2 == 0)) r.logits[i] += trial % 5 ? 6.0f : 30.0f;
        r.top_p = trial % 4 == 0 ? 0.999f : random.unit();
        r.top_k = trial % 4 == 1 ? 1 + random.below(29999) : 0;
        r.position = trial;
        if (trial % 7 == 0) {                // values that differ until they are scaled
            for (float &x : r.logits) x *= 1e-9f;
            r.logits[17] = 3;
        }
        if (!in_part()) continue;
        const Naive want = naive(r);
        for (const Kernels *k : kernel_sets())
            check(want.close || run(*k, r).token == want.token, "%s: misled row %d", k->name, trial);
    }
}

// 300 of 17,000 nearly equal tokens are kept: all of them are drawn at some time, and no other.
void check_last_place() {
    Random random(31);
    Request r;
    r.logits = random.normals(17000, 1e-5f);
    const std::vector<int32_t> order = in_order(r.logits);
    for (bool by_mass : {false, true})
        for (const Kernels *k : kernel_sets()) {
            if (!in_part()) continue;
            std::vector<int> drawn(r.logits.size(), 0);
            r.top_k = by_mass ? 0 : 300;
            r.top_p = by_mass ? 299.5f / 17000 : 1.0f;
            for (r.position = 0; r.position < 3000; r.position++) drawn[run(*k, r).token]++;
            for (size_t i = 0; i < order.size(); i++)
                check((drawn[order[i]] > 0) == (i < 300), "%s: place %zu was drawn %d times", k->name, i, drawn[order[i]]);
        }
}

// More equal or nearly equal values in one bin than there is room for.
void check_crowded() {
    Random random(23);
    for (int trial = 0; trial < 12; trial++) {
        Request r;
        r.logits = random.normals(trial % 4 == 3 ? 300001 : 151936, trial % 2 ? 1e-4f : 1.0f);
        for (float &x : r.logits) x = trial % 2 ? x - 2 : std::round(2 * x) / 2;
        r.logits[(size_t)random.below(100000)] = 7;
        r.top_k = trial % 3 == 0 ? 20000 : trial % 3 == 1 ? 0 : 100000;
        r.top_p = trial % 3 == 0 ? 1.0f : trial % 3 == 1 ? 0.1f : 0.03f;
        r.temperature = trial % 3 == 0 ? 1.0f : 1.5f;
        for (int position = 0; position < 6; position++) {
            r.position = position;
            if (!in_part()) continue;
            const Naive want = naive(r);
            for (const Kernels *k : kernel_sets())
                check(want.close || run(*k, r).token == want.token, "%s: crowded row %d, position %d", k->name, trial, position);
        }
    }
}

void check_errors() {
    for (const Kernels *k : kernel_sets())
        for (int32_t vocab : {1, 9, 64, 200})
            for (float temperature : {0.0f, 1.0f}) {
                Request r;
                r.temperature = temperature;
                r.logits.assign(vocab, 1.0f);
                for (float bad : {(float)NAN, (float)INFINITY}) {
                    Request broken = r;
                    broken.logits[vocab - 1] = bad;
                    check(run(*k, broken).error == 1, "%s: %g in the logits", k->name, bad);
                }
                Request none = r;
                none.logits.assign(vocab, -INFINITY);
                check(run(*k, none).error == 1, "%s: nothing but -inf", k->name);
                Request banned = r;
                banned.allowed.assign((vocab + 31) / 32, 0);
                check(run(*k, banned).error == 2, "%s: nothing allowed", k->name);
                Request only = r;
                only.logits.assign(vocab, -INFINITY);
                only.logits[vocab / 2] = -5;
                check(run(*k, only).token == vocab / 2, "%s: the only token", k->name);
                std::vector<int32_t> ids(3, 0);
                std::vector<float> values(3, 0.0f);
                float logprob;
                int32_t rank;
                k->logprobs(none.logits.data(), vocab, 0, 1, &logprob, &rank, ids.data(), values.data());
                check(std::isnan(logprob) && rank == 0, "%s: log-probabilities of nothing", k->name);
            }
}

// Log-probabilities of a given token agree with those of a drawn one and do not depend on k.
void check_logprobs() {
    Random random(21);
    for (const Kernels *k : kernel_sets())
        for (int trial = 0; trial < 50; trial++) {
            Request r;
            r.logits = random.normals(1 + random.below(3000), 5.0f);
            if (!in_part()) continue;
            r.seed = trial;
            r.num_logprobs = std::min(5, (int32_t)r.logits.size());
            const Outcome o = run(*k, r);
            for (int32_t n : {0, 1, 5}) {
                n = std::min(n, (int32_t)r.logits.size());
                std::vector<int32_t> ids(5, -1);
                std::vector<float> values(5, 0.0f);
                float logprob;
                int32_t rank;
                k->logprobs(r.logits.data(), (int32_t)r.logits.size(), o.token, n, &logprob, &rank, ids.data(), values.data());
                check(logprob == o.logprob && rank == o.rank, "%s: log-probability depends on k", k->name);
                for (int32_t i = 0; i < n; i++) check(ids[i] == o.top_ids[i] && values[i] == o.top_logprobs[i], "best %d", i);
            }
        }
}

// Chi-square of 40,000 draws from eight tokens, plain and under top_p.
void check_distribution() {
    const Kernels &k = *kernel_sets().back();
    for (float top_p : {1.0f, 0.7f}) {
        if (!in_part()) continue;
        Request r;
        r.top_p = top_p;
        const double weights[8] = {0.02, 0.3, 0.05, 0.25, 0.03, 0.2, 0.05, 0.1};
        for (double w : weights) r.logits.push_back((float)std::log(w) + 3.0f);
        double total = 0, chi = 0;
        int counts[8] = {0};
        for (int i = 0; i < 8; i++) total += top_p == 1 || weights[i] >= 0.2 ? weights[i] : 0;
        for (int i = 0; i < 40000; i++) {
            r.seed = i % 7;
            r.position = i / 7;
            counts[run(k, r).token]++;
        }
        for (int i = 0; i < 8; i++) {
            const double expected = (top_p == 1 || weights[i] >= 0.2 ? weights[i] : 0) / total * 40000;
            if (expected > 0) chi += (counts[i] - expected) * (counts[i] - expected) / expected;
            else check(counts[i] == 0, "token %d lies outside top_p", i);
        }
        check(chi < 26, "chi-square %g (7 degrees of freedom)", chi);   // p = 0.0005
    }
}

// Of any part of the rows and groups: the largest of each group, +inf where one is +inf or NaN, nothing else written.
void check_group_maxima() {
    Random random(11);
    for (const Kernels *k : kernel_sets())
        for (int32_t width : {1, 7, 63, 64, 65, 128, 200, 1000}) {
            const int32_t rows = 3, groups = (width + 63) / 64;
            std::vector<float> x((size_t)rows * width), out((size_t)rows * groups, 77.0f);
            for (float &v : x) v = random.normal();
            for (const float odd : {NAN, INFINITY, -INFINITY, -0.0f}) {
                x[random.below((int32_t)x.size())] = odd;
                for (int32_t begin = 0; begin <= groups; begin++) {
                    std::fill(out.begin(), out.end(), 77.0f);
                    k->group_maxima(x.data(), width, width, 1, rows, begin, groups, out.data(), groups);
                    for (int32_t i = 0; i < rows * groups; i++) {
                        float most = -INFINITY;
                        for (int32_t c = 64 * (i % groups); c < std::min(width, 64 * (i % groups) + 64); c++) {
                            const float v = x[(size_t)(i / groups) * width + c];
                            most = std::isnan(v) ? INFINITY : std::max(most, v);
                        }
                        if (i < groups || i % groups < begin) most = 77.0f;
                        check(out[i] == most, "%s: maximum %d of width %d is %g, not %g", k->name, i, width, out[i], most);
                    }
                }
            }
        }
}

}  // namespace

int main() {
    check_philox();
    check_group_maxima();
    check_random(1500, {1, 2, 7, 31, 64, 65, 100, 1000, 4097});
    check_random(400, {16321, 16385, 20000, 40001});             // long enough to walk from a guess
    check_guesses();
    check_last_place();
    check_large();
    check_crowded();
    check_errors();
    check_logprobs();
    check_distribution();
    return report("sample");
}
