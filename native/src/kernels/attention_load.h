// How attention reads a stored key or value: one struct per KV type.
//
//   kBytes     bytes of one stored value
//   load(p)    eight consecutive values at p as floats, exact
#pragma once
#include "simd/simd.h"

namespace headrace {
namespace HR_ISA {

struct Half {
    static constexpr int32_t kBytes = 2;
    static HR_INLINE F8 load(const uint8_t *p) { return load_half(p); }
};
struct Single {
    static constexpr int32_t kBytes = 4;
    static HR_INLINE F8 load(const uint8_t *p) { return HR_ISA::load((const float *)p); }
};

}  // namespace HR_ISA
}  // namespace headrace
