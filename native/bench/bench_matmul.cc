// bench_matmul [isa] [layout] [threads]: speed of the matrix product at the shapes of SmolLM2-135M and Qwen2.5-0.5B/1.5B.
// avx512_plain: without AVX512_BF16 and AMX.
//
// Weights are cold: copies of the matrix that fill 96 MB are used in turn. One row is reported in GB/s of packed weights
// next to the machine's read bandwidth, measured here; more rows in Gop/s (2 per weight and row). Best of the repetitions,
// then the median.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#if defined(__unix__)
#include <sys/mman.h>
#endif

#include "headrace/kernels.h"

namespace {

using namespace headrace;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Threads that spin between jobs, so that starting them costs nothing next to a matrix product.
class Crew {
  public:
    explicit Crew(int size) : size_(size) {
        for (int i = 1; i < size; i++) threads_.emplace_back([this, i] { serve(i); });
    }
    ~Crew() {
        stop_ = true;
        epoch_++;
        for (std::thread &t : threads_) t.join();
    }
    void run(const std::function<void(int)> &job) {
        job_ = &job;
        done_ = 0;
        epoch_++;
        job(0);
        while (done_ != size_ - 1) {
        }
    }

  private:
    void serve(int index) {
        for (int seen = 0;; seen++) {
            while (epoch_ == seen) {
            }
            if (stop_) return;
            (*job_)(index);
            done_++;
        }
    }
    int size_;
    std::atomic<int> epoch_{0}, done_{0};
    std::atomic<bool> stop_{false};
    const std::function<void(int)> *job_ = nullptr;
    std::vector<std::thread> threads_;
};

constexpr size_t kHugePage = (size_t)2 << 20;

struct Memory {
    std::unique_ptr<uint8_t, decltype(&std::free)> data;
    size_t bytes;
    explicit Memory(size_t n) : data(nullptr, &std::free), bytes(n) {
        const size_t whole = (n + kHugePage - 1) / kHugePage * kHugePage;
        data.reset((uint8_t *)std::aligned_alloc(kHugePage, whole));
#if defined(MADV_HUGEPAGE)
        madvise(data.get(), whole, MADV_HUGEPAGE);   // as the program's memory
#endif
        std::memset(data.get(), 0, n);
    }
};

struct Times { double best, median; };

Times measure(int repetitions, const std::function<void()> &f) {
    std::vector<double> t;
    for (int i = 0; i < repetitions; i++) {
        const double begin = now_s();
        f();
        t.push_back(now_s() - begin);
    }
    std::sort(t.begin(), t.end());
    return {t[0], t[t.size() / 2]};
}

double read_bandwidth(Crew &crew, int threads, const Memory &memory) {
    std::atomic<uint64_t> sink{0};
    const Times t = measure(9, [&] {
        crew.run([&](int i) {
            const uint64_t *p = (const uint64_t *)memory.data.get();
            const size_t n = memory.bytes / 8, begin = n * i / threads, end = n * (i + 1) / threads;
            uint64_t sum[8] = {0};
            for (size_t j = begin; j + 8 <= end; j += 8)
                for (int l = 0; l < 8; l++) sum[l] += p[j + l];
            for (uint64_t s : sum) sink += s;
        });
    });
    return memory.bytes / t.best / 1e9;
}

struct Bench {
    const Kernels *kernels;
    Layout layout;
    int threads;
    Memory weights{(size_t)96 << 20}, x{(size_t)512 * 9216 * 4}, y{(size_t)512 * 20480 * 4};
    Memory q{(size_t)512 * 9216}, scale{(size_t)512 * 288 * 4}, sum{(size_t)512 * 288 * 4}, sum16{(size_t)512 * 576 * 4},
        start{(size_t)512 * 288 * 4}, start16{(size_t)512 * 576 * 4}, rounded{(size_t)512 * 9232 * 4};

    void fill() {
        uint32_t s = 1;
        for (size_t i = 0; i < weights.bytes; i++) weights.data.get()[i] = (uint8_t)((s = s * 1664525 + 1013904223) >> 24) & 0xb7;
        float *f = (float *)x.data.get();   // codes and scales are random halves with a small exponent: finite
        for (size_t i = 0; i < x.bytes / 4; i++) f[i] = (float)((s = s * 1664525 + 1013904223) >> 8) * 0x1p-24f - 0.5f;
    }

    void shape(Crew &crew, int n, int k) {
        const size_t stride = panel_bytes(layout, k), bytes = stride * (size_t)((n + 15) / 16);
        if (stride == 0 || bytes > weights.bytes) return;
        const int copies = (int)(weights.bytes / bytes), panels = (n + 15) / 16;
        std::printf("%6d x %-5d", n, k);
        int turn = 0;
        for (int m : {1, 4, 16, 64, 512}) {
            if ((size_t)n * m * 4 > y.bytes) continue;
            const QuantRows rows = {m, k, (int8_t *)q.data.get(), (float *)scale.data.get(), (float *)sum.data.get(),
                                    (float *)sum16.data.get(), (int32_t *)start.data.get(), (int32_t *)start16.data.get(),
                                    layout == Layout::BF16Pairs ? (float *)rounded.data.get() : nullptr};
            kernels->quantize_rows((const float *)x.data.get(), k, &rows, 0, m);
            const int inner = m <= 16 ? std::max(1, (int)(((size_t)24 << 20) / bytes)) : 1;
            const Times t = measure(m > 16 ? 5 : 9, [&] {
                for (int i = 0; i < inner; i++, turn++) {
                    const Matrix w = {layout, n, k, weights.data.get() + bytes * (size_t)(turn % copies), stride};
                    crew.run([&](int thread) {
                        const MatmulArgs args = {&w, (const float *)x.data.get(), (size_t)k, &rows, nullptr, (float *)y.data.get(),
                                                 (size_t)n, 0, m, panels * thread / threads, panels * (thread + 1) / threads, 0};
                        kernels->matmul(&args);
                    });
                }
            });
            const double work = m == 1 ? (double)bytes : 2.0 * n * k * m;
            std::printf(m == 1 ? "  %5.1f /%5.1f GB/s" : "  %6.1f /%6.1f", work * inner / t.best / 1e9, work * inner / t.median / 1e9);
        }
        std::printf("\n");
    }
};

}  // namespace

int main(int argc, char **argv) {
    const char *const names[] = {"F32", "F16", "BF16", "Q8", "Q4", "Q4M", "Q5", "Q5M", "Q6K", "Q4K", "Q5K", "Q3K", "Q2K", "BF16Pairs"};
    const std::string wanted = argc > 2 ? argv[2] : "Q4M";
    const int threads = argc > 3 ? std::max(1, std::atoi(argv[3])) : 2;
    const std::string isa = argc > 1 ? argv[1] : best_kernels()->name;
    const Kernels *kernels = isa == "avx512_plain" ? avx512_plain_kernels() : find_kernels(isa.c_str());
    const auto *name = std::find(std::begin(names), std::end(names), wanted);
    if (!kernels || name == std::end(names)) {
        std::fprintf(stderr, "usage: bench_matmul [portable|avx2|avx512|avx512_plain|neon] [F32|F16|BF16|Q8|Q4|...|Q2K|BF16Pairs] [threads]\n");
        return 2;
    }
    Bench bench{kernels, (Layout)(name - names), threads};
    bench.fill();
    Crew crew(threads);
    std::printf("%s %s, %d threads; read bandwidth %.1f GB/s; columns: rows 1, then Gop/s at 4, 16, 64, 512 (best / median)\n",
                isa.c_str(), wanted.c_str(), threads, read_bandwidth(crew, threads, bench.weights));
    const int shapes[][2] = {{576, 576}, {192, 576}, {1536, 576}, {576, 1536}, {49152, 576}, {896, 896}, {128, 896}, {4864, 896},
                             {896, 4864}, {1536, 1536}, {256, 1536}, {8960, 1536}, {1536, 8960}, {17920, 1536}};
    for (const auto &s : shapes) bench.shape(crew, s[0], s[1]);
    return 0;
}
