// What the machine can do at most, measured in a fraction of a second.
#include <cstdlib>
#include <cstring>

#include "arrays.h"
#include "machine_limits.h"

namespace headrace::bind {
namespace {

constexpr size_t kPage = (size_t)2 << 20;

nb::dict machine_limits(int threads, size_t bytes) {
    if (threads < 1 || threads > kMaxThreads) fail("threads must be in [1, " + std::to_string(kMaxThreads) + "]");
    if (bytes < kPage || bytes > (size_t)1 << 32 || bytes % kPage) fail("bytes to read must be whole units of 2 MiB, at most 4 GiB");
    Rates rates{};
    double read = 0;
    {
        nb::gil_scoped_release release;
        std::unique_ptr<uint8_t, decltype(&std::free)> memory(static_cast<uint8_t *>(std::aligned_alloc(kPage, bytes)), &std::free);
        if (!memory) throw std::bad_alloc();
        ThreadPool pool(threads);
        pool.run([&](int thread, int count) { std::memset(memory.get() + bytes / count * thread, 1, bytes / count); });
        read = measure_read(pool, memory.get(), bytes / threads * threads, 5);
        rates = measure_rates(pool, 1000000, 3);
    }
    nb::dict found;
    found["read_bytes_s"] = read;
    found["fma_ops_s"] = rates.fma;
    found["dot_ops_s"] = rates.dot;
    found["tile_ops_s"] = rates.tiles;
    found["maddubs_ops_s"] = rates.maddubs;
    return found;
}

}  // namespace

void bind_limits(nb::module_ &module) {
    module.def("machine_limits", &machine_limits, nb::arg("threads"), nb::arg("read_bytes"));
}

}  // namespace headrace::bind
