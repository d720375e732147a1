// Step programs without Python: checks of sizes at building and running, where barriers fall, private rows.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

#include "headrace/program.h"
#include "model_memory.h"
#include "program_claims.h"

using namespace headrace;

static void expect(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

template <class F> static void expect_refused(F f, const char *what) {
    try {
        f();
    } catch (const std::exception &) {
        return;
    }
    expect(false, what);
}

constexpr int kWidth = 32, kVocab = 20, kTokens = 8;

struct World {
    explicit World(int threads, const Kernels *kernels)
        : pool(std::make_shared<ThreadPool>(threads)),
          kv(std::make_shared<KVMemory>(KVMemory::Shape{KVType::F16, 1, 4, 1, 16, 5})),
          program(pool, kernels, kv, StepLimits{kTokens, 2, kTokens, 4}, 1 << 16, 1 << 14) {}

    std::shared_ptr<PackedMatrix> matrix(int n, int k) {
        std::vector<float> values(size_t(n) * k);
        for (size_t i = 0; i < values.size(); i++) values[i] = float(int(i * 37 % 101) - 50) / 50;
        auto result = std::make_shared<PackedMatrix>();
        expect(layout_of_source(0, &result->view.layout), "f32 has a layout");
        result->view.n = n;
        result->view.k = k;
        result->view.panel_bytes = panel_bytes(result->view.layout, k);
        result->bytes = result->view.panel_bytes * result->panels();
        result->memory = arena.allocate(result->bytes);
        result->view.data = result->memory.get();
        expect(pack_rows(0, reinterpret_cast<const uint8_t *>(values.data()), 4 * k, nullptr, n, k, 0, n, result->memory.get()), "packing");
        return result;
    }
    std::shared_ptr<FloatVector> ones(int n) {
        auto result = std::make_shared<FloatVector>();
        result->memory = arena.allocate(4 * n);
        result->size = n;
        for (int i = 0; i < n; i++) reinterpret_cast<float *>(result->memory.get())[i] = 1;
        return result;
    }

    Arena arena;
    std::shared_ptr<ThreadPool> pool;
    std::shared_ptr<KVMemory> kv;
    Program program;
};

static Op make(OpKind kind, Ref a, Ref out) {
    Op op;
    op.kind = kind;
    op.a = a;
    op.out = out;
    return op;
}

// embed -> norm (private) -> product -> select
static void build(World &w) {
    Program &p = w.program;
    const int32_t x = p.add_buffer({0, kWidth, Rows::Tokens, kShared});
    const int32_t y = p.add_buffer({4096, kWidth, Rows::Tokens, 0});
    const int32_t z = p.add_buffer({8192, 48, Rows::Tokens, kShared});
    const int32_t out = p.add_buffer({16384, 40, Rows::Logits, kShared});
    Op embed = make(OpKind::Embed, {}, {x, 0, kWidth});
    embed.group = p.add_group({w.matrix(kVocab, kWidth)});
    embed.number = 1;
    p.add(embed, nullptr);
    Op norm = make(OpKind::RmsNorm, {x, 0, kWidth}, {y, 0, kWidth});
    norm.number = 1e-5f;
    p.add(norm, w.ones(kWidth));
    Op product = make(OpKind::Matmul, {y, 0, kWidth}, {z, 0, 40});
    product.group = p.add_group({w.matrix(40, kWidth)});
    p.add(product, nullptr);
    p.add(make(OpKind::Select, {z, 0, 40}, {out, 0, 40}), nullptr);
    p.finish({out, 0, 40});
}

static void step(World &w, int tokens) {
    std::vector<int32_t> ids(tokens), positions(tokens), rows(tokens, 0), starts = {0, tokens}, keys = {tokens}, table = {4, 2, 0, 0};
    for (int i = 0; i < tokens; i++) ids[i] = (i * 7) % kVocab, positions[i] = i;
    const StepInputs inputs = {{1, tokens, ids.data(), positions.data(), rows.data(), starts.data(), keys.data(), table.data(), 4},
                               positions.data(), positions.data(), tokens};
    w.program.check(inputs);
    w.program.run(inputs);
}

static std::vector<float> run(World &w, int tokens) {
    step(w, tokens);
    return std::vector<float>(w.program.output(), w.program.output() + 40 * tokens);
}

static void check_running() {
    std::vector<float> first;
    for (const char *isa : {"portable", "avx2", "avx512", "neon", "neondot"}) {
        if (!find_kernels(isa)) continue;
        for (int threads : {1, 2, 5}) {
            World w(threads, find_kernels(isa));
            build(w);
            expect(w.program.num_barriers(3) <= w.program.num_barriers(0), "few rows need no more barriers");
            const std::vector<float> all = run(w, kTokens), few = run(w, 3);
            if (first.empty()) first = all;
            expect(all == first, "the same bits everywhere");
            expect(std::memcmp(few.data(), first.data(), few.size() * 4) == 0, "private rows give the same bits");
        }
    }
}

static void check_refusals() {
    World w(2, portable_kernels());
    Program &p = w.program;
    expect_refused([&] { p.add_buffer({0, 1 << 20, Rows::Tokens, kShared}); }, "a buffer larger than the arena");
    expect_refused([&] { p.add_buffer({8, 4, Rows::Tokens, kShared}); }, "an unaligned buffer");
    expect_refused([&] { p.add_buffer({0, 4096, Rows::Tokens, 1 << 14}); }, "private rows outside their memory");
    expect_refused([&] { p.add_quant_buffer({0, 33, Rows::Tokens, kShared}); }, "half a group");
    const int32_t x = p.add_buffer({0, kWidth, Rows::Tokens, kShared}), s = p.add_buffer({4096, kWidth, Rows::Logits, kShared});
    expect_refused([&] { p.add(make(OpKind::Copy, {x, 0, kWidth}, {x, 1, kWidth}), nullptr); }, "columns past the buffer");
    expect_refused([&] { p.add(make(OpKind::Copy, {x, 0, kWidth}, {s, 0, kWidth}), nullptr); }, "tokens into logits");
    expect_refused([&] { p.add(make(OpKind::Copy, {7, 0, 1}, {x, 0, 1}), nullptr); }, "an unknown buffer");
    expect_refused([&] { p.add(make(OpKind::RmsNorm, {x, 0, kWidth}, {x, 0, kWidth}), w.ones(5)); }, "a short weight");
    expect_refused([&] { p.add(make(OpKind::Matmul, {x, 0, kWidth}, {x, 0, 8}), nullptr); }, "a product without matrices");
    expect_refused([&] { p.add(make(OpKind::Copy, {x, 0, kWidth}, {7, 0, kWidth}), nullptr); }, "an unknown result");
    const int32_t rows_of_logits = p.add_quant_buffer({8192, kWidth, Rows::Logits, kShared});
    for (const int32_t quant : {rows_of_logits, 7, -2}) {
        Op quantize = make(OpKind::Quantize, {x, 0, kWidth}, {}), norm = make(OpKind::RmsNorm, {x, 0, kWidth}, {x, 0, kWidth});
        quantize.quant = norm.quant = quant;
        expect_refused([&] { p.add(quantize, nullptr); }, "quantized rows of another domain, or unknown ones");
        expect_refused([&] { p.add(norm, w.ones(kWidth)); }, "the same behind a norm");
    }
    expect_refused([&] { p.finish({x, 0, kWidth}); }, "an end that is no logits");
    const StepInputs nothing = {};
    expect_refused([&] { p.check(nothing); }, "running an unfinished program");
    expect_refused([] { KVMemory(KVMemory::Shape{KVType::F32, 1, 0, 1, 1, 1}); }, "a pool without positions");
    expect_refused([] { KVMemory(KVMemory::Shape{KVType::F32, 1 << 30, 1 << 30, 1 << 30, 1 << 30, 1 << 30}); }, "a pool past the address space");
    expect_refused([&] { w.kv->fill(5, 0); }, "a block outside the pool");
}

// embed -> select -> product, whose result is the output: vocabularies that end within a panel and within a group of maxima
static void build_head(World &w, int vocab) {
    Program &p = w.program;
    const int32_t x = p.add_buffer({0, kWidth, Rows::Tokens, kShared}), wanted = p.add_buffer({4096, kWidth, Rows::Logits, kShared});
    const int32_t out = p.add_buffer({8192, vocab, Rows::Logits, kShared});
    Op embed = make(OpKind::Embed, {}, {x, 0, kWidth});
    embed.group = p.add_group({w.matrix(kVocab, kWidth)});
    embed.number = 1;
    p.add(embed, nullptr);
    p.add(make(OpKind::Select, {x, 0, kWidth}, {wanted, 0, kWidth}), nullptr);
    Op head = make(OpKind::Matmul, {wanted, 0, kWidth}, {out, 0, vocab});
    head.group = p.add_group({w.matrix(vocab, kWidth)});
    p.add(head, nullptr);
    p.finish({out, 0, vocab});
}

static void check_maxima() {
    for (const char *isa : {"portable", "avx2", "avx512", "neon", "neondot"}) {
        const Kernels *kernels = find_kernels(isa);
        if (!kernels) continue;
        for (int threads : {1, 2, 5})
            for (int vocab : {1, 17, 64, 130, 1000}) {
                World w(threads, kernels);
                build_head(w, vocab);
                const size_t ld = size_t(w.program.maxima_ld());
                expect(ld == size_t(vocab + 63) / 64 && w.program.maxima(), "a head makes maxima");
                for (int tokens : {1, 3, kTokens}) {
                    step(w, tokens);
                    for (int row = 0; row < tokens; row++)
                        for (size_t g = 0; g < ld; g++) {
                            const float *begin = w.program.output() + size_t(row) * vocab + 64 * g;
                            const float most = *std::max_element(begin, begin + std::min(size_t(64), size_t(vocab) - 64 * g));
                            expect(w.program.maxima()[row * ld + g] == most, "the maxima are those of the output");
                        }
                }
            }
    }
    World w(2, best_kernels());
    build(w);
    expect(!w.program.maxima(), "an output that no product makes has no maxima");
}

// Threads that come late at random: kernels that sleep now and then.
static std::atomic<uint32_t> calls{0};

static void sleep_sometimes() {
    const uint32_t draw = (calls.fetch_add(1) + 1) * 2654435761u >> 24;
    if (draw < 40) std::this_thread::sleep_for(std::chrono::microseconds(10 * draw));
}

static void late_matmul(const MatmulArgs *args) {
    sleep_sometimes();
    best_kernels()->matmul(args);
    sleep_sometimes();
}

static void late_norm(const float *x, size_t ldx, const float *weight, float eps, int32_t width, int32_t begin, int32_t end,
                      float *y, size_t ldy) {
    sleep_sometimes();
    best_kernels()->rms_norm(x, ldx, weight, eps, width, begin, end, y, ldy);
}

static void check_late_threads() {
    Kernels kernels = *best_kernels();
    kernels.matmul = late_matmul;
    kernels.rms_norm = late_norm;
    World alone(1, best_kernels());
    build(alone);
    std::vector<std::vector<float>> expected(kTokens + 1);
    for (int tokens = 1; tokens <= kTokens; tokens++) expected[tokens] = run(alone, tokens);
    for (int threads : {2, 3, 9, kMaxClaimingThreads + 1}) {
        World w(threads, &kernels);
        build(w);
        for (int round = 0; round < 60; round++) {
            const int tokens = 1 + (round * 5 + threads) % kTokens;
            std::memset(const_cast<float *>(w.program.output()), 0xff, 40 * kTokens * sizeof(float));
            expect(run(w, tokens) == expected[tokens], "late threads change no bit");
        }
    }
}

static void check_two_callers() {
    World w(2, best_kernels());
    build(w);
    const std::vector<float> expected = run(w, kTokens);
    std::vector<std::thread> callers;
    for (int i = 0; i < 3; i++)
        callers.emplace_back([&] {
            for (int round = 0; round < 100; round++) step(w, kTokens);
        });
    for (auto &caller : callers) caller.join();
    expect(run(w, kTokens) == expected, "steps of several callers queue");
}

int main() {
    check_late_threads();
    check_two_callers();
    check_running();
    check_maxima();
    check_refusals();
    std::puts("program: all is well");
}
