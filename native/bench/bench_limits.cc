// bench_limits [threads]: what this machine can do at most, as one JSON object; every figure of a benchmark is read against it.
//
//   read_gb_s        memory read by all threads: "512" MB lies in memory, "96" MB is the size of a small model, which a large
//                    last-level cache holds in part
//   fma_gflop_s      float32 fused multiply-add out of registers, 2 operations each
//   int8_gop_s       8-bit products added up out of registers, 2 operations each: "vpdpbusd" (32-bit sums), "tiles" (AMX, groups
//                    of 32, from and into the first-level cache), "maddubs" (vpmaddubsw and vpaddw, 16-bit sums: what a CPU without VNNI can do at most)
//
// Best of the repetitions: a limit is what is possible. Kinds that the CPU lacks are left out. The engine measures its own
// limits by the same code (native/src/machine_limits.cc), with fewer repetitions.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>

#include "headrace/threads.h"
#include "machine_limits.h"

using headrace::ThreadPool;

constexpr size_t kMegabyte = 1000000, kAlign = (size_t)2 << 20;

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
    const double large = headrace::measure_read(pool, memory.get(), most, 9);
    const double small = headrace::measure_read(pool, memory.get(), 96 * kMegabyte, 40);
    std::printf("{\"threads\": %d, \"read_gb_s\": {\"512\": %.2f, \"96\": %.2f}", threads, large / 1e9, small / 1e9);
    const headrace::Rates rates = headrace::measure_rates(pool, 4000000, 5);
    if (rates.maddubs > 0) {
        std::printf(", \"fma_gflop_s\": %.1f, \"int8_gop_s\": {\"maddubs\": %.1f", rates.fma / 1e9, rates.maddubs / 1e9);
        if (rates.dot > 0) std::printf(", \"vpdpbusd\": %.1f", rates.dot / 1e9);
        if (rates.tiles > 0) std::printf(", \"tiles\": %.1f", rates.tiles / 1e9);
        std::printf("}");
    }
    std::printf("}\n");
    return 0;
}
