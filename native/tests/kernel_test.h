// Small parts shared by the kernel tests: a counter of failures, random numbers, the kernel sets of this machine.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "headrace/kernels.h"

namespace kernel_test {

inline int failures = 0, checks = 0;

// Counts a check and prints the message of a failed one (the first 20).
inline bool check(bool good, const char *format, ...) {
    checks++;
    if (good) return true;
    if (failures++ < 20) {
        va_list list;
        va_start(list, format);
        std::fprintf(stderr, "FAILED: ");
        std::vfprintf(stderr, format, list);
        std::fprintf(stderr, "\n");
        va_end(list);
    }
    return false;
}

inline int report(const char *name) {
    std::printf("%s: %d checks, %d failed\n", name, checks, failures);
    return failures == 0 && checks > 0 ? 0 : 1;     // a part that holds nothing is no success
}

// HEADRACE_TEST_PART=i/n: of the calls, those whose number leaves the rest i (0 to n - 1). An emulator takes minutes for all.
inline bool in_part() {
    static int calls = 0, part = 0, parts = 0;
    const char *given = std::getenv("HEADRACE_TEST_PART");
    if (parts == 0 && (!given || std::sscanf(given, "%d/%d", &part, &parts) != 2 || parts < 1)) parts = 1, part = 0;
    return calls++ % parts == part;
}

struct Random {
    uint64_t state;
    explicit Random(uint64_t seed) : state(seed * 0x9e3779b97f4a7c15ull + 1) {}
    uint32_t next() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return (uint32_t)(state >> 16);
    }
    int32_t below(int32_t n) { return (int32_t)(next() % (uint32_t)n); }
    float unit() { return (float)(next() >> 8) * 0x1p-24f; }
    float normal() {
        float total = 0;
        for (int i = 0; i < 12; i++) total += unit();
        return total - 6.0f;
    }
    std::vector<float> normals(size_t n, float scale = 1.0f) {
        std::vector<float> v(n);
        for (float &x : v) x = scale * normal();
        return v;
    }
};

// Every kernel set that runs here; portable first.
inline std::vector<const headrace::Kernels *> kernel_sets() {
    std::vector<const headrace::Kernels *> sets;
    for (const char *name : {"portable", "avx2", "avx512", "neon", "neondot"})
        if (const headrace::Kernels *k = headrace::find_kernels(name)) sets.push_back(k);
    const headrace::Kernels *plain = headrace::avx512_plain_kernels();
    if (plain && plain != headrace::find_kernels("avx512")) sets.push_back(plain);     // without AVX512_BF16 and AMX
    return sets;
}

inline bool same_bits(const std::vector<float> &a, const std::vector<float> &b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);   // no null pointers
}

}  // namespace kernel_test
