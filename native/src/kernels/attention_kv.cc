// New keys and values into KV memory: K dim-major (scattered), V token-major, I16 both in pairs; halves and codes round to nearest even.
#include "kernels/decl.h"
#include "kernels/attention_codes.h"
#include "kernels/attention_load.h"
#include "kernels/attention_plan.h"
#include "kernels/elementwise_math.h"

namespace headrace {
namespace HR_ISA {
namespace {

// One token's place in one KV head: K values lie `stride` bytes apart (I16: pairs of them).
struct Place {
    uint8_t *keys, *values, *key_scale, *value_scale;
    int32_t stride;
};

Place place_of(const Batch &b, const KVLayer &kv, const KVUnit &u, int32_t token, int32_t head) {
    const int32_t position = b.positions[token];
    const size_t block = (size_t)b.tables[(size_t)b.row_of[token] * b.table_width + position / kv.block_size];
    const int32_t unit = position % kv.block_size / u.tokens, inside = position % u.tokens;
    uint8_t *base = kv.data + ((block * kv.kv_heads + head) * u.per_block + unit) * u.bytes;
    const size_t bytes = (size_t)u.value_bytes;
    return {base + key_index(u, inside, 0) * bytes, base + u.values + value_index(u, inside, 0, kv.head_size) * bytes,
            base + u.key_scales + 2 * (size_t)inside, base + u.value_scales + 2 * (size_t)inside,
            u.tokens * u.value_bytes * (u.paired ? 2 : 1)};
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

// Codes of `dims` values (a multiple of 8), `stride` bytes apart, and their scale.
void write_codes(const float *x, int32_t dims, uint8_t *codes, size_t stride, uint8_t *scale_at) {
    const int32_t top = largest_bits(x, dims);
    uint16_t scale = 0;
    float factor = 0.0f;
    if (top >= kTiny && top < kNotFinite) {
        scale = bfloat_up(bits_float((uint32_t)top) / 127.0f);
        factor = 1.0f / bfloat_to_float(scale);
    } else if (top >= kNotFinite) {
        scale = kBfloatNaN;
    }
    std::memcpy(scale_at, &scale, 2);
    for (int32_t d = 0; d < dims; d += 8) {
        int32_t q[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        if (factor != 0.0f) store(q, to_int(load(x + d) * splat(factor)));
        for (int32_t i = 0; i < 8; i++) codes[(size_t)(d + i) * stride] = (uint8_t)(int8_t)q[i];
    }
}

// shift: null, or what K is stored less of.
void write_bytes(const Place &place, const float *k, const float *v, const float *shift, int32_t dims, int32_t rotation) {
    alignas(64) float rotated[kMaxHead];
    for (int32_t d = 0; d < dims; d += 8) store(rotated + d, shift ? load(k + d) - load(shift + d) : load(k + d));
    rotate(rotated, dims, rotation);
    write_codes(rotated, dims, place.keys, (size_t)place.stride, place.key_scale);
    write_codes(v, dims, place.values, 1, place.value_scale);
}

void write_pairs(const Place &place, const float *k, const float *v, int32_t dims) {
    alignas(64) int32_t codes[kMaxHead];
    uint16_t scale = make_codes(k, dims, true, codes);
    std::memcpy(place.key_scale, &scale, 2);
    for (int32_t d = 0; d < dims; d += 2) {
        const int16_t pair[2] = {(int16_t)codes[d], (int16_t)codes[d + 1]};
        std::memcpy(place.keys + (size_t)(d / 2) * place.stride, pair, 4);
    }
    scale = make_codes(v, dims, false, codes);
    std::memcpy(place.value_scale, &scale, 2);
    for (int32_t d = 0; d < dims; d++) {
        const int16_t code = (int16_t)codes[d];
        std::memcpy(place.values + (size_t)d * 4, &code, 2);
    }
}

}  // namespace

void kv_write(const Batch *batch, const KVLayer *kv, const float *k, size_t ldk, const float *v, size_t ldv,
              int32_t token_begin, int32_t token_end, int32_t head_begin, int32_t head_end) {
    const int32_t dims = kv->head_size;
    const KVUnit unit = kv_unit(kv->type, kv->block_size, dims);
    const int32_t heads = head_end - head_begin;
    for (int64_t i = (int64_t)token_begin * heads; i < (int64_t)token_end * heads; i++) {
        const int32_t token = (int32_t)(i / heads), head = head_begin + (int32_t)(i % heads);
        const Place place = place_of(*batch, *kv, unit, token, head);
        const float *key = k + token * ldk + (size_t)head * dims, *value = v + token * ldv + (size_t)head * dims;
        if (kv->type == KVType::F16) write_half(place, key, value, dims);
        else if (kv->type == KVType::F32) write_single(place, key, value, dims);
        else if (kv->type == KVType::I16) write_pairs(place, key, value, dims);
        else
            write_bytes(place, key, value,
                        kv->key_shifts ? key_shift_of(*kv, batch->positions[token] / kShiftSpan, head) : nullptr, dims,
                        unit.rotation);
    }
}

}  // namespace HR_ISA
}  // namespace headrace
