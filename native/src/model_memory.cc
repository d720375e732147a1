#include "model_memory.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#else
#include <cstdlib>
#endif

namespace headrace {
namespace {

constexpr size_t kHugePage = size_t(2) << 20;

float half_to_float(uint16_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 0x3ff;
    const float sign = half & 0x8000 ? -1.0f : 1.0f;
    if (exponent == 31) return mantissa ? std::numeric_limits<float>::quiet_NaN() : sign * INFINITY;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(mantissa), -24);
    return sign * std::ldexp(static_cast<float>(mantissa | 0x400), static_cast<int>(exponent) - 25);
}

// Only for `fill`: exact for values that a half holds, rounds towards zero otherwise.
uint16_t float_to_half(float value) {
    if (std::isnan(value)) return 0x7e00;
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const float magnitude = std::fabs(value);
    if (magnitude >= 65536.0f) return static_cast<uint16_t>(sign | 0x7c00);
    int exponent = 0;
    std::frexp(magnitude, &exponent);                       // magnitude = f * 2^exponent, f in [0.5, 1)
    if (magnitude == 0.0f || exponent < -13) return static_cast<uint16_t>(sign | static_cast<int>(std::ldexp(magnitude, 24)));
    const int mantissa = static_cast<int>(std::ldexp(magnitude, 11 - exponent));    // [1024, 2048)
    return static_cast<uint16_t>(sign | ((exponent + 14) << 10) | (mantissa & 0x3ff));
}

float bfloat_to_float(uint16_t bits) {
    const uint32_t wide = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, 4);
    return value;
}

// Scale (bfloat16) and code of a group of equal values, as `kv_write` makes them.
uint16_t code_scale(float value, float scale) {
    const float top = std::fabs(value);
    if (!std::isfinite(value)) return 0x7fc0;
    uint32_t bits;
    std::memcpy(&bits, &scale, 4);
    return top < 0x1p-100f ? 0 : static_cast<uint16_t>((bits + 0xffffu) >> 16);
}

int16_t code_of(float value, uint16_t scale) {
    if (scale == 0 || !std::isfinite(value)) return 0;
    return static_cast<int16_t>(std::nearbyint(value * (1.0f / bfloat_to_float(scale))));
}

// Undoes the rotation of I8 keys on every run of `run` values.
void rotate_back(float *x, size_t count, size_t run) {
    for (size_t step = 1; step < run; step *= 2)
        for (size_t i = 0; i < count; i++) {
            if (i & step) continue;
            const float a = x[i], b = x[i + step];
            x[i] = a + b;
            x[i + step] = a - b;
        }
    for (size_t i = 0; i < count; i++) x[i] *= 1.0f / static_cast<float>(run);
}

}  // namespace

size_t checked_product(std::initializer_list<size_t> factors) {
    size_t product = 1;
    for (size_t factor : factors) {
        if (factor && product > std::numeric_limits<size_t>::max() / 4 / factor)
            throw std::length_error("sizes are too large: their product does not fit the address space");
        product *= factor;
    }
    return product;
}

Region::Region(size_t bytes) : size_(round_up(bytes ? bytes : 1, kAlign)) {
    if (kIsWatched) {
        base_ = data_ = static_cast<uint8_t *>(::operator new(size_, std::align_val_t(kAlign)));
        std::memset(data_, 0, size_);
        return;
    }
#if defined(__unix__) || defined(__APPLE__)
    const size_t unit = size_ >= kHugePage ? kHugePage : size_t(4096);
    base_size_ = round_up(size_ + kAlign, unit) + unit;     // room to align, and to read a little past the end
    base_ = mmap(nullptr, base_size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base_ == MAP_FAILED) {
        base_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<uintptr_t>(base_), unit));
#if defined(MADV_HUGEPAGE)
    if (size_ >= kHugePage) madvise(data_, round_up(size_, kHugePage), MADV_HUGEPAGE);   // a refusal only costs speed
#endif
#else
    base_size_ = size_ + 2 * kAlign;
    base_ = std::calloc(base_size_, 1);
    if (base_ == nullptr) throw std::bad_alloc();
    data_ = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<uintptr_t>(base_), kAlign));
#endif
}

Region::~Region() {
    if (base_ == nullptr) return;
    if (kIsWatched) {
        ::operator delete(base_, std::align_val_t(kAlign));
        return;
    }
#if defined(__unix__) || defined(__APPLE__)
    munmap(base_, base_size_);
#else
    std::free(base_);
#endif
}

std::shared_ptr<uint8_t> Arena::allocate(size_t bytes) {
    const size_t size = round_up(bytes ? bytes : 1, kAlign);
    std::lock_guard<std::mutex> lock(mutex_);
    if (!region_ || region_->size() - used_ < size) {
        region_ = std::make_shared<Region>(size > kRegion ? size : kRegion);
        used_ = 0;
    }
    uint8_t *data = region_->data() + used_;
    used_ += size;
    bytes_ += size;
    return std::shared_ptr<uint8_t>(region_, data);
}

bool is_float_layout(Layout layout) { return static_cast<int32_t>(layout) <= static_cast<int32_t>(Layout::BF16); }

KVMemory::KVMemory(const Shape &shape) : shape_(shape) {
    if (shape.layers < 1 || shape.block_size < 1 || shape.kv_heads < 1 || shape.head_size < 1 || shape.num_blocks < 1)
        throw std::invalid_argument("every size of a KV pool must be at least 1");
    const auto size = [](int32_t n) { return static_cast<size_t>(n); };
    checked_product({16, size(shape.head_size), size(shape.block_size)});       // more than any unit takes
    unit_ = kv_unit(shape.type, shape.block_size, shape.head_size);
    block_bytes_ = checked_product({size(shape.kv_heads), size(unit_.per_block), unit_.bytes});
    layer_bytes_ = round_up(checked_product({block_bytes_, size(shape.num_blocks)}), kAlign);
    region_ = std::make_unique<Region>(checked_product({layer_bytes_, size(shape.layers)}));
    key_shifts_.resize(size(shape.layers));
}

KVLayer KVMemory::layer(int32_t index) const {
    KVLayer layer{shape_.type, shape_.block_size, shape_.kv_heads, shape_.head_size, region_->data() + layer_bytes_ * index};
    const std::vector<float> &shifts = key_shifts_[static_cast<size_t>(index)];
    if (shifts.empty()) return layer;
    layer.key_shifts = shifts.data();
    layer.shift_spans = static_cast<int32_t>(shifts.size() / static_cast<size_t>(shape_.kv_heads * shape_.head_size));
    return layer;
}

void KVMemory::shift_keys(int32_t layer, const float *values, int32_t spans) {
    if (layer < 0 || layer >= shape_.layers) throw std::out_of_range("layer " + std::to_string(layer));
    if (shape_.type != KVType::I8 || spans < 1) throw std::invalid_argument("shifts are for int8 keys, at least one span");
    const size_t count = checked_product({size_t(spans), size_t(shape_.kv_heads), size_t(shape_.head_size)});
    key_shifts_[static_cast<size_t>(layer)].assign(values, values + count);
}

void KVMemory::check_block(int32_t block) const {
    if (block < 0 || block >= shape_.num_blocks)
        throw std::out_of_range("block " + std::to_string(block) + " of a pool of " + std::to_string(shape_.num_blocks));
}

void KVMemory::copy(int32_t source, int32_t target) {
    check_block(source);
    check_block(target);
    if (source == target) return;
    for (int32_t l = 0; l < shape_.layers; l++) {
        uint8_t *data = layer(l).data;
        std::memcpy(data + block_bytes_ * target, data + block_bytes_ * source, block_bytes_);
    }
}

void KVMemory::fill(int32_t block, float value) {
    check_block(block);
    const uint16_t half = float_to_half(value);
    const size_t count = 2 * static_cast<size_t>(unit_.tokens) * static_cast<size_t>(shape_.head_size);
    if (unit_.key_scales < unit_.bytes) return fill_codes(block, value);
    for (int32_t l = 0; l < shape_.layers; l++) {
        uint8_t *unit = layer(l).data + block_bytes_ * block;
        for (int32_t u = 0; u < shape_.kv_heads * unit_.per_block; u++, unit += unit_.bytes) {
            for (size_t i = 0; i < count; i++) {
                if (shape_.type == KVType::F16) std::memcpy(unit + 2 * i, &half, 2);
                else std::memcpy(unit + 4 * i, &value, 4);
            }
        }
    }
}

// I8: a run of equal keys is rotated to (run * value, 0, 0 ...).
void KVMemory::fill_codes(int32_t block, float value) {
    const size_t tokens = unit_.tokens, dims = shape_.head_size, run = unit_.rotation;
    const bool pairs = unit_.paired;
    const float first = value * static_cast<float>(run), top = std::fabs(first);
    const float norm = std::max(std::sqrt(static_cast<float>(dims)) * (1.0f / 46300.0f), 1.0f / 32766.0f);
    const uint16_t scales[2] = {code_scale(first, pairs ? top * norm : top / 127.0f),
                                code_scale(value, pairs ? top * (1.0f / 16383.0f) : std::fabs(value) / 127.0f)};
    const int16_t key = code_of(first, scales[0]), code = code_of(value, scales[1]);
    for (int32_t l = 0; l < shape_.layers; l++) {
        uint8_t *unit = layer(l).data + block_bytes_ * block;
        for (int32_t u = 0; u < shape_.kv_heads * unit_.per_block; u++, unit += unit_.bytes) {
            for (size_t d = 0; d < dims && !pairs; d++) std::memset(unit + d * tokens, d % run ? 0 : key, tokens);
            if (!pairs) std::memset(unit + unit_.values, code, tokens * dims);
            for (size_t i = 0; i < unit_.values && pairs; i += 2) std::memcpy(unit + i, &key, 2);
            for (size_t i = unit_.values; i < unit_.key_scales && pairs; i += 2) std::memcpy(unit + i, &code, 2);
            for (size_t i = 0; i < tokens; i++) {
                std::memcpy(unit + unit_.key_scales + 2 * i, &scales[0], 2);
                std::memcpy(unit + unit_.value_scales + 2 * i, &scales[1], 2);
            }
        }
    }
}

float KVMemory::value_at(const uint8_t *unit, size_t index, size_t scale_at) const {
    if (shape_.type == KVType::F16) {
        uint16_t half;
        std::memcpy(&half, unit + 2 * index, 2);
        return half_to_float(half);
    }
    if (shape_.type == KVType::F32) {
        float value;
        std::memcpy(&value, unit + 4 * index, 4);
        return value;
    }
    uint16_t scale;
    std::memcpy(&scale, unit + scale_at, 2);
    int16_t pair;
    if (unit_.paired) std::memcpy(&pair, unit + 2 * index, 2);
    else pair = static_cast<int8_t>(unit[index]);
    return static_cast<float>(pair) * bfloat_to_float(scale);
}

void KVMemory::read(int32_t layer_index, int32_t block, float *keys, float *values) const {
    check_block(block);
    if (layer_index < 0 || layer_index >= shape_.layers) throw std::out_of_range("layer " + std::to_string(layer_index));
    const uint8_t *data = layer(layer_index).data + block_bytes_ * block;
    const size_t tokens = unit_.tokens, dims = shape_.head_size, heads = shape_.kv_heads;
    const size_t units = unit_.per_block;
    for (size_t p = 0; p < static_cast<size_t>(shape_.block_size); p++)
        for (size_t h = 0; h < heads; h++)
            for (size_t d = 0; d < dims; d++) {
                const uint8_t *unit = data + (h * units + p / tokens) * unit_.bytes;
                const size_t i = p % tokens, to = (p * heads + h) * dims + d;
                const auto token = static_cast<int32_t>(i), dim = static_cast<int32_t>(d);
                keys[to] = value_at(unit, key_index(unit_, token, dim), unit_.key_scales + 2 * i);
                values[to] = value_at(unit, tokens * dims + value_index(unit_, token, dim, shape_.head_size),
                                      unit_.value_scales + 2 * i);
            }
    if (unit_.rotation > 1) rotate_back(keys, static_cast<size_t>(shape_.block_size) * heads * dims, unit_.rotation);
}

}  // namespace headrace
