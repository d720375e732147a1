// Arrays at the border: types, shapes and contiguity are checked here; what is wrong raises ValueError with the name.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>

#include "headrace/kernels.h"
#include "headrace/threads.h"
#include "model_memory.h"

namespace nb = nanobind;

namespace headrace::bind {

template <class T, int Dims> using Array = nb::ndarray<const T, nb::ndim<Dims>, nb::c_contig, nb::device::cpu>;

// Kernels, threads and arenas of one backend.
struct Runtime {
    const Kernels *kernels;
    std::shared_ptr<ThreadPool> pool;
    Arena arena;
    size_t adopted_bytes;                           // of matrices that lie in files
    std::mutex scratch_mutex;
    std::unique_ptr<Region> scratch;                // for sampling: one slice per thread
};

[[noreturn]] inline void fail(const std::string &message) { throw std::invalid_argument(message); }

inline int32_t to_int32(const char *what, size_t value) {
    if (value > INT32_MAX) fail(std::string(what) + " is too large: " + std::to_string(value));
    return static_cast<int32_t>(value);
}

// An attribute of a Python value as an array; ValueError names the attribute; AttributeError: there is none.
template <class T, int Dims> Array<T, Dims> array_attribute(nb::handle object, const char *name) {
    Array<T, Dims> result;
    const nb::object found = object.attr(name);  // here and not within the cast, which must not throw
    if (!nb::try_cast(found, result, false))
        fail(std::string(name) + " must be a C-contiguous " + std::to_string(Dims) + "-dimensional array of the documented type");
    return result;
}

// A fresh numpy array that owns its memory.
template <class T> nb::object new_array(T *&data, std::initializer_list<size_t> shape) {
    size_t count = 1;
    for (const size_t n : shape) count *= n;
    data = new T[count ? count : 1]();
    nb::capsule owner(data, [](void *p) noexcept { delete[] static_cast<T *>(p); });
    return nb::cast(nb::ndarray<nb::numpy, T>(data, shape, owner));
}

void bind_limits(nb::module_ &module);
void bind_runtime(nb::module_ &module);
void bind_texts(nb::module_ &module);
void bind_program(nb::module_ &module);
void bind_sampling(nb::module_ &module, nb::class_<Runtime> &runtime);

}  // namespace headrace::bind
