// bench_limits [threads]: what this machine can do at most, as one JSON object; every figure of a benchmark is read against it.
//
//   read_gb_s        memory read by all threads: "512" MB lies in memory, "96" MB is the size of a small model, which a large
//                    last-level cache holds in part
//   fma_gflop_s      float32 fused multiply-add out of registers, 2 operations each
//   int8_gop_s       8-bit products added up out of registers, 2 operations each: "vpdpbusd" (32-bit sums), "maddubs" (vpmaddubsw
//                    and vpaddw, 16-bit sums: what a CPU without VNNI can do at most)
//
// Best of the repetitions: a limit is what is possible. Kinds that the CPU lacks are left out.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "headrace/threads.h"

namespace {

using headrace::ThreadPool;

constexpr size_t kMegabyte = 1000000, kAlign = (size_t)2 << 20;

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

template <class F> double best_seconds(int repetitions, F &&f) {
    double best = 1e30;
    for (int i = 0; i < repetitions; i++) {
        const double begin = now_s();
        f();
        best = std::min(best, now_s() - begin);
    }
    return best;
}

// Sum of `bytes` (a multiple of 128) at p. Plain C++ is read-bound on every CPU once it is out of the nearest cache.
uint64_t sum_of(const uint8_t *p, size_t bytes) {
    uint64_t sum[16] = {0};
    for (size_t i = 0; i < bytes; i += 128) {
        uint64_t v[16];
        std::memcpy(v, p + i, 128);
        for (int lane = 0; lane < 16; lane++) sum[lane] += v[lane];
    }
    uint64_t total = 0;
    for (uint64_t s : sum) total += s;
    return total;
}

double read_gb_s(ThreadPool &pool, const uint8_t *memory, size_t bytes, int repetitions) {
    const double seconds = best_seconds(repetitions, [&] {
        pool.run([&](int thread, int threads) {
            const size_t share = bytes / threads / 128 * 128;
            volatile uint64_t sink = sum_of(memory + share * thread, share);
            (void)sink;
        });
    });
    return (double)(bytes / pool.size() / 128 * 128 * pool.size()) / seconds / 1e9;
}

#if defined(__x86_64__)
// Ten independent sums in registers 0 to 9 hide the latency (4 cycles, two units); 14 and 15 hold the factors. Written in
// assembly so that no compiler may shorten the work.
#define HR_EACH(OP) OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9)
#define HR_CLOBBER "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm14", "xmm15"
#define HR_ZERO(N) "vpxor %%xmm" #N ", %%xmm" #N ", %%xmm" #N "\n\t"
#define HR_LOOP(NAME, FILL, BODY)                                                                              \
    void NAME(int64_t rounds, uint32_t factor) {                                                               \
        __asm__ volatile("vmovd %k1, %%xmm14\n\t" FILL HR_EACH(HR_ZERO) "1:\n\t" BODY BODY                     \
                         "sub $2, %0\n\tjg 1b\n\tvzeroupper\n\t"                                               \
                         : "+r"(rounds) : "r"(factor) : "cc", HR_CLOBBER);                                     \
    }
#define HR_FILL_YMM "vpbroadcastd %%xmm14, %%ymm14\n\tvmovdqa %%ymm14, %%ymm15\n\t"
#define HR_FILL_ZMM "vpbroadcastd %%xmm14, %%zmm14\n\tvmovdqa64 %%zmm14, %%zmm15\n\t"
#define HR_FMA_YMM(N) "vfmadd231ps %%ymm14, %%ymm15, %%ymm" #N "\n\t"
#define HR_FMA_ZMM(N) "vfmadd231ps %%zmm14, %%zmm15, %%zmm" #N "\n\t"
#define HR_DOT_ZMM(N) "vpdpbusd %%zmm14, %%zmm15, %%zmm" #N "\n\t"
#define HR_MADD_YMM(N) "vpmaddubsw %%ymm14, %%ymm15, %%ymm10\n\tvpaddw %%ymm10, %%ymm" #N ", %%ymm" #N "\n\t"
#define HR_MADD_ZMM(N) "vpmaddubsw %%zmm14, %%zmm15, %%zmm10\n\tvpaddw %%zmm10, %%zmm" #N ", %%zmm" #N "\n\t"
HR_LOOP(fma_ymm, HR_FILL_YMM, HR_EACH(HR_FMA_YMM))
HR_LOOP(fma_zmm, HR_FILL_ZMM, HR_EACH(HR_FMA_ZMM))
HR_LOOP(dot_zmm, HR_FILL_ZMM, HR_EACH(HR_DOT_ZMM))
HR_LOOP(madd_ymm, HR_FILL_YMM, HR_EACH(HR_MADD_YMM))
HR_LOOP(madd_zmm, HR_FILL_ZMM, HR_EACH(HR_MADD_ZMM))
constexpr int kSums = 10;
constexpr uint32_t kOne = 0x3f800000, kOnes = 0x01010101;

// Giga-operations a second of all threads together; `products` of each instruction.
double rate(ThreadPool &pool, void (*loop)(int64_t, uint32_t), uint32_t factor, int products) {
    const int64_t rounds = 4000000;
    const double seconds = best_seconds(5, [&] { pool.run([&](int, int) { loop(rounds, factor); }); });
    return 2.0 * products * kSums * (double)rounds * pool.size() / seconds / 1e9;
}

void print_rates(ThreadPool &pool) {
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return;
    const bool wide = __builtin_cpu_supports("avx512bw"), dots = __builtin_cpu_supports("avx512vnni");
    double fma = rate(pool, fma_ymm, kOne, 8), madd = rate(pool, madd_ymm, kOnes, 32);
    if (wide) fma = std::max(fma, rate(pool, fma_zmm, kOne, 16));
    if (wide) madd = std::max(madd, rate(pool, madd_zmm, kOnes, 64));
    std::printf(", \"fma_gflop_s\": %.1f, \"int8_gop_s\": {\"maddubs\": %.1f", fma, madd);
    if (dots) std::printf(", \"vpdpbusd\": %.1f", rate(pool, dot_zmm, kOnes, 64));
    std::printf("}");
}
#else
void print_rates(ThreadPool &) {}
#endif

}  // namespace

int main(int argc, char **argv) {
    const int cores = (int)std::thread::hardware_concurrency();
    const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : std::max(1, cores);
    const size_t most = 512 * kMegabyte;
    std::unique_ptr<uint8_t, decltype(&std::free)> memory(
        (uint8_t *)std::aligned_alloc(kAlign, (most + kAlign - 1) / kAlign * kAlign), &std::free);
    if (!memory) {
        std::fprintf(stderr, "bench_limits: no memory for %zu bytes\n", most);
        return 1;
    }
    ThreadPool pool(threads);
    pool.run([&](int thread, int count) { std::memset(memory.get() + most / count * thread, 1 + thread, most / count); });
    const double large = read_gb_s(pool, memory.get(), most, 9), small = read_gb_s(pool, memory.get(), 96 * kMegabyte, 40);
    std::printf("{\"threads\": %d, \"read_gb_s\": {\"512\": %.2f, \"96\": %.2f}", threads, large, small);
    print_rates(pool);
    std::printf("}\n");
    return 0;
}
