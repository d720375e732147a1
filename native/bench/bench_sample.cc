// bench_sample [isa]: time of drawing one token from a row of 151,936 logits on one thread, and of its log-probabilities.
//
// Logits are normal numbers: deviation 1 is flat (nearly every token has to be looked at), 3 is like a language model's.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "headrace/kernels.h"

namespace {

using namespace headrace;

constexpr int32_t kVocab = 151936, kRepetitions = 60;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<float> normals(float deviation) {
    std::vector<float> v(kVocab);
    uint32_t state = 1;
    for (float &x : v) {
        for (int i = 0; i < 12; i++) x += (float)((state = state * 1664525u + 1013904223u) >> 8) * 0x1p-24f;
        x = (x - 6) * deviation;
    }
    return v;
}

struct Row {
    std::vector<float> logits, maxima, scratch = std::vector<float>(kVocab + 16384), top_logprobs = std::vector<float>(32);
    std::vector<int32_t> top_ids = std::vector<int32_t>(32), seen_ids, seen_counts;
    std::vector<uint32_t> allowed = std::vector<uint32_t>(kVocab / 32, 0xfffffffeu);
    SampleArgs args = {};

    explicit Row(float deviation) : logits(normals(deviation)) {
        for (int32_t i = 0; i < 2000; i++) seen_ids.push_back(i * 61), seen_counts.push_back(i % 3);
        args.logits = logits.data();
        args.vocab = kVocab;
        args.scratch = scratch.data();
        args.temperature = args.top_p = args.repetition = 1;
        args.num_logprobs = -1;
        args.top_ids = top_ids.data();
        args.top_logprobs = top_logprobs.data();
    }
    void know_maxima() {
        const int32_t groups = (kVocab + kMaximaGroup - 1) / kMaximaGroup;
        maxima.resize((size_t)groups);
        portable_kernels()->group_maxima(logits.data(), 0, kVocab, 0, 1, 0, groups, maxima.data(), 0);
        args.maxima = maxima.data();
    }
    void penalize() {
        args.repetition = 1.1f;
        args.seen_ids = seen_ids.data();
        args.seen_counts = seen_counts.data();
        args.num_seen = (int32_t)seen_ids.size();
    }
};

void bench(const Kernels &kernels, const char *name, Row &row) {
    std::vector<double> times;
    for (int i = 0; i < kRepetitions; i++) {
        row.args.position = i;
        const double begin = now_s();
        kernels.sample(&row.args);
        times.push_back(now_s() - begin);
    }
    std::sort(times.begin(), times.end());
    std::printf("  %-52s %7.1f / %7.1f us\n", name, times[0] * 1e6, times[kRepetitions / 2] * 1e6);
}

// Every case begins with a row of its own: none inherits what an earlier one set.
template <class Set> void bench_case(const Kernels &kernels, float deviation, const char *name, Set set) {
    Row row(deviation);
    set(row.args, row);
    bench(kernels, name, row);
}

void bench_deviation(const Kernels &kernels, float deviation) {
    std::printf("deviation %g (best / median of %d)\n", deviation, kRepetitions);
    const auto run = [&](const char *name, auto set) { bench_case(kernels, deviation, name, set); };
    run("greedy", [](SampleArgs &a, Row &) { a.temperature = 0; });
    run("greedy, maxima known", [](SampleArgs &a, Row &r) { a.temperature = 0, r.know_maxima(); });
    run("temperature 0.8", [](SampleArgs &a, Row &) { a.temperature = 0.8f; });
    run("temperature 0.8, 20 logprobs", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.num_logprobs = 20; });
    run("min_p 0.05", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.min_p = 0.05f; });
    run("top_k 50", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_k = 50; });
    run("top_k 20000", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_k = 20000; });
    run("top_k 20000, top_p 0.95", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_k = 20000, a.top_p = 0.95f; });
    run("top_k 50, top_p 0.95", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_k = 50, a.top_p = 0.95f; });
    run("top_p 0.95", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_p = 0.95f; });
    run("top_p 0.95, 20 logprobs", [](SampleArgs &a, Row &) { a.temperature = 0.8f, a.top_p = 0.95f, a.num_logprobs = 20; });
    run("top_p 0.95, penalties", [](SampleArgs &a, Row &r) { a.temperature = 0.8f, a.top_p = 0.95f, r.penalize(); });
    run("top_p 0.95, 20 logprobs, penalties, mask", [](SampleArgs &a, Row &r) {
        a.temperature = 0.8f, a.top_p = 0.95f, a.num_logprobs = 20, a.allowed = r.allowed.data(), r.penalize();
    });
    run("the same, maxima known", [](SampleArgs &a, Row &r) {
        a.temperature = 0.8f, a.top_p = 0.95f, a.num_logprobs = 20, a.allowed = r.allowed.data(), r.penalize(), r.know_maxima();
    });
    run("top_p 0.95 at temperature 1", [](SampleArgs &a, Row &) { a.top_p = 0.95f; });
}

}  // namespace

int main(int argc, char **argv) {
    const Kernels *kernels = argc > 1 ? find_kernels(argv[1]) : best_kernels();
    if (!kernels) {
        std::fprintf(stderr, "usage: bench_sample [portable|avx2|avx512|neon]\n");
        return 2;
    }
    std::printf("%s, %d tokens, one thread\n", kernels->name, kVocab);
    for (float deviation : {1.0f, 3.0f}) bench_deviation(*kernels, deviation);
    return 0;
}
