// Packed weights kept in a file: brought into memory whole, every byte compared with a stored sum.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace {

class ThreadPool;

// Unit of sums and of sharing among threads: a huge page, so that no two threads fault the same one in.
constexpr size_t kFileChunk = size_t(2) << 20;

// Sum of `bytes` bytes: two running sums in each of 8 lanes of 64 bits (Fletcher 1982, with wrapping words), folded. Changed by
// every flipped bit and by words that change places in a lane; no protection against intent.
uint64_t checksum(const uint8_t *data, size_t bytes);

// Where weights lie in an open file. `sums`: checksum of each kFileChunk, ceil(bytes / kFileChunk) of them.
struct FileWeights {
    int fd;
    size_t offset, bytes;
    const uint64_t *sums;
};

// How the bytes come into memory. Map: pages of the system's file cache, shared, there at once, but mostly small. Read: copied
// into huge pages. MapThenRead: mapped, then copied into huge pages behind the same addresses by a thread of the lowest priority
// while the memory is in use; where that is impossible, Read.
enum class FileMode { Map, Read, MapThenRead };

// The weights as memory, 2 MiB aligned, with readable bytes past the end; all threads of `pool` work. When it is mapped, `offset`
// is a multiple of the page size, and the file must keep its length while the memory is in use.
// Throws std::runtime_error (cannot be read; a chunk differs from its sum) and std::bad_alloc.
std::shared_ptr<uint8_t> load_weights(ThreadPool &pool, const FileWeights &file, FileMode mode);

}  // namespace headrace
