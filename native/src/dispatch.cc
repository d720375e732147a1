// Tables of kernels per instruction set, and the choice by what the processor and the system support. AVX512_BF16 and AMX
// are no sets of their own: what they compute has the same bits, and only two functions and one use them.
#include <cstring>
#include <initializer_list>

#include "headrace/kernels.h"

#define HR_ISA portable
#include "kernels/decl.h"
#undef HR_ISA
#if defined(HEADRACE_HAS_AVX2)
#define HR_ISA avx2
#include "kernels/decl.h"
#undef HR_ISA
#endif
#if defined(HEADRACE_HAS_AVX512)
#define HR_ISA avx512
#include "kernels/decl.h"
#undef HR_ISA
#endif
#if defined(HEADRACE_HAS_AVX512BF16)
#define HR_ISA avx512bf16
#include "kernels/decl.h"
#undef HR_ISA
#endif
#if defined(HEADRACE_HAS_AVX512AMX)
#define HR_ISA avx512amx
#include "kernels/decl.h"
#undef HR_ISA
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(HEADRACE_HAS_NEON)
#define HR_ISA neon
#include "kernels/decl.h"
#undef HR_ISA
#endif
#if defined(HEADRACE_HAS_NEONDOT)
#define HR_ISA neondot
#include "kernels/decl.h"
#undef HR_ISA
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace headrace {
namespace {

#define HEADRACE_TABLE(isa)                                                                                          \
    {#isa, 2, isa::quantize_rows, isa::matmul, isa::embed, isa::rms_norm, isa::head_norm, isa::rope, isa::kv_write,     \
     isa::attention, isa::glu, isa::add, isa::softcap, isa::group_maxima, isa::sample, isa::logprobs}

const Kernels kPortable = HEADRACE_TABLE(portable);
#if defined(HEADRACE_HAS_AVX2)
const Kernels kAvx2 = HEADRACE_TABLE(avx2);
#endif
#if defined(HEADRACE_HAS_AVX512)
const Kernels kAvx512 = HEADRACE_TABLE(avx512);
#endif
#if defined(HEADRACE_HAS_AVX512BF16)
const Kernels kAvx512Bf16 = [] {
    Kernels kernels = kAvx512;
    kernels.rounded_words = 1;
    kernels.quantize_rows = avx512bf16::quantize_rows;
    kernels.matmul = avx512bf16::matmul;
    return kernels;
}();
#endif
#if defined(HEADRACE_HAS_AVX512AMX)
const Kernels kAvx512Amx = [] {
    Kernels kernels = kAvx512Bf16;
    kernels.matmul = avx512amx::matmul;
    return kernels;
}();
#endif
#if defined(HEADRACE_HAS_NEON)
const Kernels kNeon = HEADRACE_TABLE(neon);
#endif
#if defined(HEADRACE_HAS_NEONDOT)
const Kernels kNeonDot = HEADRACE_TABLE(neondot);
#endif

// The builtins check the operating system's support of the registers too (xgetbv).
bool runs_here(const Kernels *kernels) {
    if (kernels == nullptr) return false;
#if defined(__x86_64__) || defined(__i386__)
    __builtin_cpu_init();
    // every processor with AVX2 and FMA has F16C; the builtin for f16c is missing in older compilers
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (std::strcmp(kernels->name, "avx2") == 0) return avx2;
    if (std::strcmp(kernels->name, "avx512") == 0)
        return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    if (std::strcmp(kernels->name, "neondot") == 0) {
#if defined(__APPLE__)
        return true;                        // every Apple silicon has the dot product
#elif defined(__aarch64__) && defined(__linux__)
        return (getauxval(AT_HWCAP) >> 20 & 1) != 0;   // HWCAP_ASIMDDP
#else
        return false;
#endif
    }
    return true;
}

}  // namespace

bool tiles_run_here() {
#if defined(HEADRACE_HAS_AVX512AMX)
    // Linux lets a process use tile registers once it has asked: its threads' saved states grow by 8 KB.
    static const bool allowed = [] {
        constexpr long kRequest = 0x1023, kTileData = 18;     // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        constexpr unsigned kTiles = 1u << 24, kInt8 = 1u << 25;
        __builtin_cpu_init();
        unsigned a, b, c, d;                                  // the builtin knows the names, but says no (g++ 12)
        if (!__builtin_cpu_supports("avx512bf16") || !__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
        return (d & kTiles) && (d & kInt8) && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
    }();
    return allowed;
#else
    return false;
#endif
}

const Kernels *portable_kernels() { return &kPortable; }

const Kernels *avx2_kernels() {
#if defined(HEADRACE_HAS_AVX2)
    return &kAvx2;
#else
    return nullptr;
#endif
}

const Kernels *avx512_kernels() {
#if defined(HEADRACE_HAS_AVX512AMX)
    if (tiles_run_here()) return &kAvx512Amx;
#endif
#if defined(HEADRACE_HAS_AVX512BF16)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512bf16")) return &kAvx512Bf16;
#endif
#if defined(HEADRACE_HAS_AVX512)
    return &kAvx512;
#else
    return nullptr;
#endif
}

const Kernels *avx512_plain_kernels() {
#if defined(HEADRACE_HAS_AVX512)
    return runs_here(&kAvx512) ? &kAvx512 : nullptr;
#else
    return nullptr;
#endif
}

const Kernels *neon_kernels() {
#if defined(HEADRACE_HAS_NEON)
    return &kNeon;
#else
    return nullptr;
#endif
}

const Kernels *neondot_kernels() {
#if defined(HEADRACE_HAS_NEONDOT)
    return &kNeonDot;
#else
    return nullptr;
#endif
}

const Kernels *best_kernels() {
    for (const Kernels *kernels : {avx512_kernels(), avx2_kernels(), neondot_kernels(), neon_kernels()})
        if (runs_here(kernels)) return kernels;
    return &kPortable;
}

const Kernels *find_kernels(const char *name) {
    if (std::strcmp(name, "avx512") == 0) {             // only who wants them asks for tile registers
        const Kernels *kernels = avx512_kernels();
        return runs_here(kernels) ? kernels : nullptr;
    }
    for (const Kernels *kernels : {avx2_kernels(), neondot_kernels(), neon_kernels(), portable_kernels()})
        if (runs_here(kernels) && std::strcmp(kernels->name, name) == 0) return kernels;
    return nullptr;
}

}  // namespace headrace
