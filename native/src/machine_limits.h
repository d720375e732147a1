// What this machine can do at most: the roofs of the roofline.
#pragma once
#include <cstddef>
#include <cstdint>

#include "headrace/threads.h"

namespace headrace {

// Operations a second of all threads together, 2 for each product that is added up, out of registers; 0: the CPU lacks the kind.
struct Rates {
    double fma;        // float32 fused multiply-add
    double dot;        // vpdpbusd: 8-bit products in 32-bit sums
    double tiles;      // tdpbssd (AMX) by groups of 32 columns, operands and sums in the first-level cache: sums leave tile
                       // registers through memory only, and weights have a scale per 32 columns
    double maddubs;    // vpmaddubsw and vpaddw, 16-bit sums: what a CPU without VNNI can do at most
};

// Best of the repetitions, as a limit is what is possible; `rounds` instructions of each kind per repetition and sum.
Rates measure_rates(ThreadPool &pool, int64_t rounds, int repetitions);

// Bytes a second that all threads read together from `memory`, which has been written; best of the repetitions.
double measure_read(ThreadPool &pool, const uint8_t *memory, size_t bytes, int repetitions);

}  // namespace headrace
