// New keys and values into KV memory: K dim-major (scattered), V token-major; halves round to nearest even.
#include "kernels/decl.h"
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {
namespace {

// One token's place in one KV head: K values lie `stride` apart.
struct Place {
    uint8_t *keys, *values;
    int32_t stride;
};

Place place_of(const Batch &b, const KVLayer &kv, int32_t token, int32_t head) {
    const int32_t size = kv.type == KVType::F16 ? 2 : 4, position = b.positions[token];
    const int32_t per_unit = kv.block_size % 16 == 0 ? 16 : kv.block_size, units = kv.block_size / per_unit;
    const size_t block = (size_t)b.tables[(size_t)b.row_of[token] * b.table_width + position / kv.block_size];
    const int32_t unit = position % kv.block_size / per_unit, inside = position % per_unit;
    const size_t half = (size_t)per_unit * kv.head_size * size;
    uint8_t *base = kv.data + ((block * kv.kv_heads + head) * units + unit) * 2 * half;
    return {base + (size_t)inside * size, base + half + (size_t)inside * kv.head_size * size, per_unit * size};
}

void write_half(const Place &place, const float *k, const float *v, int32_t dims) {
    for (int32_t d = 0; d < dims; d += 8) {
        uint16_t h[8];
        store_half(h, load(k + d));
        for (int32_t i = 0; i < 8; i++) std::memcpy(place.keys + (size_t)(d + i) * place.stride, h + i, 2);
        store_half(place.values + (size_t)d * 2, load(v + d));
    }
}

void write_single(const Place &place, const float *k, const float *v, int32_t dims) {
    for (int32_t d = 0; d < dims; d++) std::memcpy(place.keys + (size_t)d * place.stride, k + d, 4);
    std::memcpy(place.values, v, (size_t)dims * 4);
}

}  // namespace

void kv_write(const Batch *batch, const KVLayer *kv, const float *k, size_t ldk, const float *v, size_t ldv,
              int32_t thread, int32_t threads) {
    const int64_t items = (int64_t)batch->num_tokens * kv->kv_heads;
    const int32_t dims = kv->head_size;
    for (int64_t i = items * thread / threads; i < items * (thread + 1) / threads; i++) {
        const int32_t token = (int32_t)(i / kv->kv_heads), head = (int32_t)(i % kv->kv_heads);
        const Place place = place_of(*batch, *kv, token, head);
        const float *key = k + token * ldk + (size_t)head * dims, *value = v + token * ldv + (size_t)head * dims;
        if (kv->type == KVType::F16) write_half(place, key, value, dims);
        else write_single(place, key, value, dims);
    }
}

}  // namespace HR_ISA
}  // namespace headrace
