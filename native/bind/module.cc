// The Python module `headrace._native`. Everything that enters is checked; kernels never see unchecked sizes.
#include "arrays.h"

namespace headrace::bind {

static std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2", "neondot", "neon", "portable"})
        if (find_kernels(name)) names.emplace_back(name);
    return names;
}

static bool multiplies_pairs(const std::string &isa) {
    const Kernels *kernels = find_kernels(isa.c_str());
    return kernels && kernels->rounded_words == 1;
}

static bool multiplies_tiles(const std::string &isa) { return isa == "avx512" && find_kernels("avx512") && tiles_run_here(); }

}  // namespace headrace::bind

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);     // a script may end without closing its engine
    module.doc() = "Native kernels, threads and step programs";
    module.def("isas", &headrace::bind::isas, "Instruction sets that are built in and run here, best first.");
    module.def("multiplies_pairs", &headrace::bind::multiplies_pairs,
               "Whether the kernels of an instruction set multiply pairs of bfloat16 in one instruction here.");
    module.def("multiplies_tiles", &headrace::bind::multiplies_tiles,
               "Whether the kernels of an instruction set multiply many rows with tile registers (AMX) here.");
    headrace::bind::bind_limits(module);
    headrace::bind::bind_runtime(module);
    headrace::bind::bind_texts(module);
    headrace::bind::bind_program(module);
}
