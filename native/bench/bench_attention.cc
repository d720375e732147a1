// Speed of attention (decode over cold KV, decode of rows with a common prefix, prefill).
// Usage: bench_attention [set] [threads] [f16 | f32 | int8 | int16] [shared | decode | prefill]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "headrace/kernels.h"

using namespace headrace;

namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Threads that spin between calls.
class Spinners {
  public:
    explicit Spinners(int n) : n_(n) {
        for (int i = 1; i < n; i++) workers_.emplace_back([this, i] { loop(i); });
    }
    ~Spinners() {
        args_ = nullptr;
        call_++;
        for (auto &w : workers_) w.join();
    }
    void attend(const Kernels &k, const AttentionArgs &a) {
        kernels_ = &k;
        args_ = &a;
        done_ = 0;
        ++call_;
        kernels_->attention(args_, 0, n_);
        while (done_ != n_ - 1) {}
    }

  private:
    void loop(int thread) {
        for (int seen = 0;;) {
            while (call_ == seen) {}
            seen++;
            if (args_ == nullptr) return;
            kernels_->attention(args_, thread, n_);
            done_++;
        }
    }
    int n_;
    std::atomic<int> call_{0}, done_{0};
    std::atomic<const AttentionArgs *> args_{nullptr};
    const Kernels *kernels_ = nullptr;
    std::vector<std::thread> workers_;
};

// Memory in huge pages, as the engine's KV memory is.
struct Pages {
    explicit Pages(size_t bytes) : size((bytes + kHuge) / kHuge * kHuge) {
        base = std::aligned_alloc(kHuge, size);
        data = static_cast<uint16_t *>(base);
#if defined(MADV_HUGEPAGE)
        madvise(base, size, MADV_HUGEPAGE);
#endif
    }
    ~Pages() { std::free(base); }
    Pages(const Pages &) = delete;

    static constexpr size_t kHuge = size_t(2) << 20;
    size_t size;
    void *base;
    uint16_t *data;
};

struct Case { int heads, kv_heads, head_size, depth, tokens; };

void bench(const Kernels &kernels, const Case &c, int threads, KVType type) {
    const int length = c.depth + c.tokens, blocks = (length + 15) / 16, ld = c.heads * c.head_size;
    const size_t block_bytes = kv_unit(type, 16, c.head_size).bytes * c.kv_heads, layer_bytes = block_bytes * blocks;
    const int layers = c.tokens > 1 ? 1 : std::max(2, (int)(110e6 / layer_bytes));      // cold: beyond the last cache
    Pages pages(layer_bytes * layers);
    uint16_t *pool = pages.data;
    for (size_t i = 0; i < layer_bytes * layers / 2; i++) pool[i] = (uint16_t)(0x2c00 + (i * 37 & 0x83ff));
    std::vector<int32_t> table(blocks), positions, row_of(c.tokens, 0), ids(c.tokens, 0);
    for (int i = 0; i < blocks; i++) table[i] = i;
    for (int i = blocks - 1; i > 0; i--) std::swap(table[i], table[(unsigned)(i * 2654435761u) % (i + 1)]);
    for (int i = 0; i < c.tokens; i++) positions.push_back(c.depth + i);
    const int32_t starts[2] = {0, c.tokens}, lens[1] = {length};
    const Batch batch = {1, c.tokens, ids.data(), positions.data(), row_of.data(), starts, lens, table.data(), blocks};
    std::vector<float> q((size_t)c.tokens * ld, 0.02f), out(q.size());
    std::vector<float> scratch(attention_scratch_floats(c.tokens, 1, c.heads, c.head_size, length));
    uint32_t arrivals[kAttentionShares] = {};
    Spinners pool_of_threads(threads);
    std::vector<double> times;
    const int repeats = c.tokens > 1 ? 9 : layers * 5;
    for (int i = 0; i < repeats; i++) {
        const KVLayer kv = {type, 16, c.kv_heads, c.head_size, (uint8_t *)pool + layer_bytes * (i % layers)};
        const AttentionArgs args = {&batch, &kv, q.data(), (size_t)ld, out.data(), (size_t)ld, c.heads,
                                    1 / std::sqrt((float)c.head_size), 0, 0, scratch.data(), arrivals};
        const double start = now();
        pool_of_threads.attend(kernels, args);
        times.push_back(now() - start);
    }
    std::sort(times.begin(), times.end());
    double flops = 0;
    for (int i = 0; i < c.tokens; i++) flops += 4.0 * ld * (c.depth + i + 1);
    const double best = times[0], median = times[times.size() / 2];
    if (c.tokens == 1)
        std::printf("decode  %2d/%d x %3d, context %4d, %d threads: %8.1f us best %8.1f median, %5.1f / %5.1f GB/s\n", c.heads,
                    c.kv_heads, c.head_size, length, threads, best * 1e6, median * 1e6, layer_bytes / best / 1e9,
                    layer_bytes / median / 1e9);
    else
        std::printf("prefill %2d/%d x %3d, %d at depth %4d, %d threads: %8.1f us best, %5.1f / %5.1f GFLOP/s\n", c.heads, c.kv_heads,
                    c.head_size, c.tokens, c.depth, threads, best * 1e6, flops / best / 1e9, flops / median / 1e9);
    std::fflush(stdout);
}

// 16 rows that decode behind a prefix of 1024 tokens, 64 tokens of their own each; with and without sharing, in turns.
void bench_shared(const Kernels &kernels, const Case &c, int threads, KVType type) {
    const int rows = 16, common = c.depth / 16, own = 4, width = common + own, blocks = common + rows * own;
    const int ld = c.heads * c.head_size, length = 16 * width;
    const size_t layer_bytes = kv_unit(type, 16, c.head_size).bytes * c.kv_heads * blocks;
    const int layers = std::max(2, (int)(110e6 / layer_bytes));
    Pages pages(layer_bytes * layers);
    for (size_t i = 0; i < layer_bytes * layers / 2; i++) pages.data[i] = (uint16_t)(0x2c00 + (i * 37 & 0x83ff));
    std::vector<int32_t> tables, ids(rows, 0), positions(rows, length - 1), row_of, starts{0}, lens(rows, length);
    for (int r = 0; r < rows; r++) {
        row_of.push_back(r);
        starts.push_back(r + 1);
        for (int i = 0; i < width; i++) tables.push_back(i < common ? i : common + r * own + i - common);
    }
    std::vector<int32_t> shared_rows(rows), shared_keys(rows);
    std::vector<uint8_t> listed(rows);
    Batch batch = {rows, rows, ids.data(), positions.data(), row_of.data(), starts.data(), lens.data(), tables.data(), width};
    double search = 1;
    SharedPrefixes shared;
    for (int i = 0; i < 50; i++) {
        const double start = now();
        shared = share_prefixes(batch, 16, shared_rows.data(), shared_keys.data(), listed.data());
        search = std::min(search, now() - start);
    }
    std::vector<float> q((size_t)rows * ld, 0.02f), out(q.size());
    std::vector<float> scratch(attention_scratch_floats(rows, rows, c.heads, c.head_size, length));
    uint32_t arrivals[kAttentionShares] = {};
    Spinners pool_of_threads(threads);
    std::vector<double> times[2];
    for (int i = 0; i < layers * 10; i++) {
        batch.shared = i / layers % 2 ? shared : SharedPrefixes{};
        const KVLayer kv = {type, 16, c.kv_heads, c.head_size, (uint8_t *)pages.data + layer_bytes * (i % layers)};
        const AttentionArgs args = {&batch, &kv, q.data(), (size_t)ld, out.data(), (size_t)ld, c.heads,
                                    1 / std::sqrt((float)c.head_size), 0, 0, scratch.data(), arrivals};
        const double start = now();
        pool_of_threads.attend(kernels, args);
        times[i / layers % 2].push_back(now() - start);
    }
    for (auto &t : times) std::sort(t.begin(), t.end());
    std::printf("shared  %2d/%d x %3d, 16 rows, %d + 64 tokens, %d threads: alone %7.1f us best %7.1f median, shared %7.1f %7.1f; "
                "found in %.1f us\n", c.heads, c.kv_heads, c.head_size, c.depth, threads, times[0][0] * 1e6,
                times[0][times[0].size() / 2] * 1e6, times[1][0] * 1e6, times[1][times[1].size() / 2] * 1e6, search * 1e6);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv) {
    const Kernels *kernels = argc > 1 ? find_kernels(argv[1]) : best_kernels();
    if (kernels == nullptr) return std::fprintf(stderr, "no such kernels here: %s\n", argv[1]), 1;
    const std::string kv = argc > 3 ? argv[3] : "f16";
    const KVType type = kv == "f32" ? KVType::F32 : kv == "int8" ? KVType::I8 : kv == "int16" ? KVType::I16 : KVType::F16;
    std::printf("kernels: %s, KV in %s\n", kernels->name, type == KVType::F16 ? "f16" : kv.c_str());
    const std::string only = argc > 4 ? argv[4] : "";
    const auto wanted = [&](const char *part) { return only.empty() || only == part; };
    const int shapes[3][3] = {{9, 3, 64}, {14, 2, 64}, {12, 2, 128}};
    for (int threads = 1; threads <= (argc > 2 ? std::atoi(argv[2]) : 2); threads++)
        for (const auto &s : shapes) {
            for (int depth : {1024, 4096})
                if (wanted("shared")) bench_shared(*kernels, {s[0], s[1], s[2], depth, 1}, threads, type);
            for (int length : {128, 2048, 2080, 6000})
                if (wanted("decode")) bench(*kernels, {s[0], s[1], s[2], length - 1, 1}, threads, type);
            for (int depth : {0, 2048})
                if (wanted("prefill")) bench(*kernels, {s[0], s[1], s[2], depth, 512}, threads, type);
        }
    return 0;
}
