// Memory of a model: arenas for packed weights, vectors, KV blocks. Everything is 64-byte aligned, zeroed, and asks the
// system for huge pages.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "headrace/kernels.h"

namespace headrace {

constexpr size_t kAlign = 64;
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kIsWatched = true;           // regions come from the heap and hold one thing each: the sanitizer sees their ends
#else
constexpr bool kIsWatched = false;
#endif
inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Product of sizes; std::length_error when it does not fit.
size_t checked_product(std::initializer_list<size_t> factors);

// One region of zeroed memory from the system.
class Region {
  public:
    explicit Region(size_t bytes);          // std::bad_alloc when there is none
    ~Region();
    Region(const Region &) = delete;
    Region &operator=(const Region &) = delete;
    uint8_t *data() const { return data_; }
    size_t size() const { return size_; }

  private:
    uint8_t *data_ = nullptr;
    size_t size_ = 0;
    void *base_ = nullptr;
    size_t base_size_ = 0;
};

// Bump allocation in large regions, so that weights lie in the order in which they were taken over (the order of use:
// kernels prefetch across the end of a matrix). A region is freed when the last thing in it is.
class Arena {
  public:
    std::shared_ptr<uint8_t> allocate(size_t bytes);
    size_t bytes() const { return bytes_; }                 // handed out so far

  private:
    static constexpr size_t kRegion = kIsWatched ? 0 : size_t(32) << 20;
    std::mutex mutex_;
    std::shared_ptr<Region> region_;
    size_t used_ = 0, bytes_ = 0;
};

// A packed weight matrix and its memory.
struct PackedMatrix {
    Matrix view;
    std::shared_ptr<uint8_t> memory;
    size_t bytes;
    int32_t panels() const { return (view.n + 15) / 16; }
};

struct FloatVector {
    std::shared_ptr<uint8_t> memory;
    int32_t size;
    const float *data() const { return reinterpret_cast<const float *>(memory.get()); }
};

bool is_float_layout(Layout layout);

// KV memory of all layers; the layout of a block is written in kernels.h.
class KVMemory {
  public:
    struct Shape {
        KVType type;
        int32_t layers, block_size, kv_heads, head_size, num_blocks;
    };
    explicit KVMemory(const Shape &shape);                  // std::invalid_argument, std::bad_alloc
    const Shape &shape() const { return shape_; }
    KVLayer layer(int32_t index) const;
    size_t bytes() const { return layer_bytes_ * shape_.layers; }

    // Indices are checked: std::out_of_range.
    void copy(int32_t source, int32_t target);
    void fill(int32_t block, float value);                  // as if every key and value were `value`
    // Keys of I8 are stored less these (see KVLayer): [spans][kv_heads][head_size]; std::invalid_argument for other types.
    void shift_keys(int32_t layer, const float *values, int32_t spans);
    // keys (less their shift) and values [block_size][kv_heads][head_size]
    void read(int32_t layer, int32_t block, float *keys, float *values) const;

  private:
    void check_block(int32_t block) const;
    void fill_codes(int32_t block, float value);
    float value_at(const uint8_t *unit, size_t index, size_t scale_at) const;   // a stored value; its scale's byte offset
    Shape shape_;
    KVUnit unit_;
    size_t block_bytes_, layer_bytes_;
    std::unique_ptr<Region> region_;
    std::vector<std::vector<float>> key_shifts_;            // per layer, empty = none
};

}  // namespace headrace
