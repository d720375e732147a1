// See machine_limits.h.
#include "machine_limits.h"

#include "headrace/kernels.h"

#include <algorithm>
#include <chrono>
#include <cstring>

namespace headrace {
namespace {

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
#if defined(HEADRACE_HAS_AVX512AMX)
// Two sets of tile registers in turn, as the kernel does it; `rounds` products of 16 rows x 32 columns x 16 columns.
void dot_tiles(int64_t rounds, uint32_t) {
    struct alignas(64) { uint8_t palette, start, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } config = {};
    config.palette = 1;
    for (int i = 0; i < 2; i++) {
        config.bytes[i] = config.bytes[4 + i] = 64, config.bytes[2 + i] = 32;
        config.rows[i] = config.rows[2 + i] = 16, config.rows[4 + i] = 8;
    }
    alignas(64) uint8_t memory[2048] = {};
    __asm__ volatile("ldtilecfg (%3)\n\t1:\n\t"
                     "tilezero %%tmm0\n\ttileloadd (%1,%4,1), %%tmm2\n\ttileloadd (%1,%5,1), %%tmm4\n\t"
                     "tdpbssd %%tmm4, %%tmm2, %%tmm0\n\ttilestored %%tmm0, (%2,%5,1)\n\t"
                     "tilezero %%tmm1\n\ttileloadd (%1,%4,1), %%tmm3\n\ttileloadd (%1,%5,1), %%tmm5\n\t"
                     "tdpbssd %%tmm5, %%tmm3, %%tmm1\n\ttilestored %%tmm1, (%2,%5,1)\n\t"
                     "sub $2, %0\n\tjg 1b\n\ttilerelease\n\t"
                     : "+&r"(rounds) : "r"(memory), "r"(memory + 1024), "r"(&config), "r"((size_t)32), "r"((size_t)64) : "cc", "memory");
}
#endif
constexpr int kSums = 10;
constexpr uint32_t kOne = 0x3f800000, kOnes = 0x01010101;
#else
// Independent sums that the compiler keeps in vector registers.
void fma_plain(int64_t rounds, float *sums) {
    float sum[64];
    std::memcpy(sum, sums, sizeof sum);
    for (int64_t i = 0; i < rounds; i++)
        for (float &s : sum) s = s * 0.999f + 0.5f;
    std::memcpy(sums, sum, sizeof sum);
}
#endif

}  // namespace

#if defined(__x86_64__)
Rates measure_rates(ThreadPool &pool, int64_t rounds, int repetitions) {
    // Operations a second of all threads; `products` of each instruction.
    const auto rate = [&](void (*loop)(int64_t, uint32_t), uint32_t factor, int products) {
        const double seconds = best_seconds(repetitions, [&] { pool.run([&](int, int) { loop(rounds, factor); }); });
        return 2.0 * products * kSums * (double)rounds * pool.size() / seconds;
    };
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return {0, 0, 0, 0};
    const bool wide = __builtin_cpu_supports("avx512bw"), dots = __builtin_cpu_supports("avx512vnni");
    Rates found = {rate(fma_ymm, kOne, 8), 0, 0, rate(madd_ymm, kOnes, 32)};
    if (wide) found.fma = std::max(found.fma, rate(fma_zmm, kOne, 16));
    if (wide) found.maddubs = std::max(found.maddubs, rate(madd_zmm, kOnes, 64));
    if (dots) found.dot = rate(dot_zmm, kOnes, 64);
#if defined(HEADRACE_HAS_AVX512AMX)
    if (tiles_run_here()) found.tiles = rate(dot_tiles, 0, 16 * 16 * 32) / kSums;
#endif
    return found;
}
#else
Rates measure_rates(ThreadPool &pool, int64_t rounds, int repetitions) {
    const double seconds = best_seconds(repetitions, [&] {
        pool.run([&](int, int) {
            float sums[64] = {0};
            fma_plain(rounds, sums);
            volatile float sink = sums[0];
            (void)sink;
        });
    });
    return {2.0 * 64 * (double)rounds * pool.size() / seconds, 0, 0, 0};
}
#endif

double measure_read(ThreadPool &pool, const uint8_t *memory, size_t bytes, int repetitions) {
    const size_t share = bytes / pool.size() / 128 * 128;
    const double seconds = best_seconds(repetitions, [&] {
        pool.run([&](int thread, int) {
            volatile uint64_t sink = sum_of(memory + share * thread, share);
            (void)sink;
        });
    });
    return (double)(share * pool.size()) / seconds;
}

}  // namespace headrace
