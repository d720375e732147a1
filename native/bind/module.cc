// The Python module `headrace._native`. Everything that enters is checked; kernels never see unchecked sizes.
#include "arrays.h"

namespace headrace::bind {

static std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (const char *name : {"avx512", "avx2", "neondot", "neon", "portable"})
        if (find_kernels(name)) names.emplace_back(name);
    return names;
}

}  // namespace headrace::bind

NB_MODULE(_native, module) {
    nanobind::set_leak_warnings(false);     // a script may end without closing its engine
    module.doc() = "Native kernels, threads and step programs";
    module.def("isas", &headrace::bind::isas, "Instruction sets that are built in and run here, best first.");
    headrace::bind::bind_limits(module);
    headrace::bind::bind_runtime(module);
    headrace::bind::bind_texts(module);
    headrace::bind::bind_program(module);
}
