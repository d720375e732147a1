#include "weight_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>

#include "headrace/threads.h"
#include "model_memory.h"

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <sys/resource.h>
#include <sys/syscall.h>
#endif

namespace headrace {
namespace {

constexpr int kLanes = 8;
constexpr size_t kGuard = 4096;     // kernels may read a little past the end

uint64_t rotated(uint64_t x, int bits) { return x << bits | x >> (64 - bits); }

#if defined(__unix__) || defined(__APPLE__)

// 0, or the error of the system; EIO when the file ends early.
int read_whole(int fd, uint8_t *target, size_t bytes, size_t offset) {
    while (bytes) {
        const ssize_t got = pread(fd, target, bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return got < 0 ? errno : EIO;
        target += got;
        offset += static_cast<size_t>(got);
        bytes -= static_cast<size_t>(got);
    }
    return 0;
}

// Before any memory is taken; and touching a mapped page behind the end of its file would end the process.
void check_length(const FileWeights &file) {
    struct stat found;
    if (fstat(file.fd, &found)) throw std::runtime_error(std::string("it cannot be read: ") + std::strerror(errno));
    const uint64_t size = found.st_size < 0 ? 0 : static_cast<uint64_t>(found.st_size);
    if (file.offset > size || file.bytes > size - file.offset)
        throw std::runtime_error("it ends after " + std::to_string(size) + " bytes; " + std::to_string(file.bytes) +
                                 " from byte " + std::to_string(file.offset) + " on were announced");
}

// Private read-only pages of a file over the front of a reservation, whose rest stays zeroed memory.
class Mapping {
  public:
    explicit Mapping(const FileWeights &file) : bytes_(file.bytes), process_(getpid()) {
        reserved_ = round_up(file.bytes + kGuard, kFileChunk) + kFileChunk;
        base_ = mmap(nullptr, reserved_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base_ == MAP_FAILED) throw std::bad_alloc();
        data_ = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<uintptr_t>(base_), kFileChunk));
        void *at = mmap(data_, file.bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, file.fd, static_cast<off_t>(file.offset));
        if (at == MAP_FAILED) {
            const int error = errno;
            munmap(base_, reserved_);
            throw std::runtime_error(std::string("it cannot be mapped: ") + std::strerror(error));
        }
#if defined(MADV_HUGEPAGE)
        madvise(data_, file.bytes, MADV_HUGEPAGE);   // a refusal only costs speed
#endif
    }
    ~Mapping() {
        stop_ = true;
        if (mover_.joinable() && getpid() == process_) mover_.join();
        else if (mover_.joinable()) mover_.detach();    // the thread did not survive fork()
        munmap(base_, reserved_);
    }
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    uint8_t *data() const { return data_; }

#if defined(__linux__)
    void start_mover() {
        try {
            mover_ = std::thread([this] { move(); });
        } catch (const std::system_error &) {   // no thread to be had: small pages work too
        }
    }

  private:
    static constexpr size_t kPiece = size_t(32) << 20;  // every piece stays a mapping of its own, and their number is limited

    // Readers see a piece either mapped or copied, and always the same bytes: mremap replaces it in one step.
    void move() {
        // The first requests come first. No condition variable: its destructor would wait, in a child after fork(), for this
        // thread, which the child does not have.
        for (int i = 0; i < 100 && !stop_; i++) std::this_thread::sleep_for(std::chrono::milliseconds(10));
        setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), 19);
        for (size_t begin = 0; begin < bytes_ && !stop_; begin += kPiece) {
            const size_t bytes = std::min(kPiece, bytes_ - begin), size = round_up(bytes, kFileChunk);
            uint8_t *copy = copied(begin, bytes, size);
            if (!copy) return;
            if (mremap(copy, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, data_ + begin) == MAP_FAILED) {
                munmap(copy, size);
                return;
            }
        }
    }

    // A copy of a piece in read-only huge pages, or nullptr.
    uint8_t *copied(size_t begin, size_t bytes, size_t size) {
        const size_t room = size + kFileChunk;
        void *base = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) return nullptr;
        uint8_t *first = static_cast<uint8_t *>(base);
        uint8_t *copy = reinterpret_cast<uint8_t *>(round_up(reinterpret_cast<uintptr_t>(base), kFileChunk));
        const size_t before = static_cast<size_t>(copy - first);
        if (before) munmap(first, before);
        if (room > before + size) munmap(copy + size, room - before - size);
        madvise(copy, size, MADV_HUGEPAGE);
        for (size_t at = 0; at < bytes && !stop_; at += kFileChunk)
            std::memcpy(copy + at, data_ + begin + at, std::min(kFileChunk, bytes - at));
        if (stop_ || mprotect(copy, size, PROT_READ)) {
            munmap(copy, size);
            return nullptr;
        }
        return copy;
    }
#else
  private:
#endif
    void *base_;
    size_t reserved_, bytes_;
    uint8_t *data_;
    const pid_t process_;
    std::atomic<bool> stop_{false};
    std::thread mover_;
};

#endif

}  // namespace

uint64_t checksum(const uint8_t *data, size_t bytes) {
    uint64_t first[kLanes] = {}, second[kLanes] = {};
    const auto add = [&](const uint8_t *block) {
        uint64_t words[kLanes];
        std::memcpy(words, block, sizeof words);
        for (int i = 0; i < kLanes; i++) first[i] += words[i];
        for (int i = 0; i < kLanes; i++) second[i] += first[i];
    };
    const size_t whole = bytes / (8 * kLanes) * (8 * kLanes);
    for (size_t at = 0; at < whole; at += 8 * kLanes) add(data + at);
    if (whole < bytes) {
        uint8_t block[8 * kLanes] = {};
        std::memcpy(block, data + whole, bytes - whole);
        add(block);
    }
    uint64_t sum = bytes;
    for (int i = 0; i < kLanes; i++) sum = rotated((sum ^ first[i]) * 0x9e3779b97f4a7c15u, 29) + second[i] * 0xc2b2ae3d27d4eb4fu;
    return sum;
}

#if defined(__unix__) || defined(__APPLE__)

std::shared_ptr<uint8_t> load_weights(ThreadPool &pool, const FileWeights &file, FileMode mode) {
    if (file.bytes > SIZE_MAX / 2) throw std::bad_alloc();     // sums of it and of what comes around it would wrap
#if !defined(__linux__)
    if (mode == FileMode::MapThenRead) mode = FileMode::Read;
#endif
    check_length(file);
    std::shared_ptr<Mapping> mapping;
    std::shared_ptr<uint8_t> memory;
    if (mode == FileMode::Read) {
        auto region = std::make_shared<Region>(file.bytes + kGuard);
        memory = std::shared_ptr<uint8_t>(region, region->data());
    } else {
        mapping = std::make_shared<Mapping>(file);
        memory = std::shared_ptr<uint8_t>(mapping, mapping->data());
    }
    uint8_t *data = memory.get();
    const size_t chunks = (file.bytes + kFileChunk - 1) / kFileChunk;
    std::atomic<size_t> next{0}, wrong{chunks};
    std::atomic<int> error{0};
    pool.run([&](int, int) {
        for (size_t chunk; (chunk = next.fetch_add(1)) < chunks && !error.load();) {
            const size_t begin = chunk * kFileChunk, bytes = std::min(kFileChunk, file.bytes - begin);
            if (mode == FileMode::Read) {
                const int found = read_whole(file.fd, data + begin, bytes, file.offset + begin);
                if (found) error.store(found);
                if (found) return;
            }
#if defined(MADV_POPULATE_READ)
            // A page that went meanwhile must not be touched. Kernels before Linux 5.14 do not know this: there summing touches it.
            if (mode != FileMode::Read && madvise(data + begin, bytes, MADV_POPULATE_READ) && errno != EINVAL) {
                error.store(errno);
                return;
            }
#endif
            if (checksum(data + begin, bytes) != file.sums[chunk]) wrong.store(chunk);
        }
    });
    if (error.load()) throw std::runtime_error(std::string("it cannot be read: ") + std::strerror(error.load()));
    if (wrong.load() != chunks) {
        const size_t near = file.offset + wrong.load() * kFileChunk;
        throw std::runtime_error("its data differ from the stored sum of the chunk at byte " + std::to_string(near));
    }
#if defined(__linux__)
    if (mode == FileMode::MapThenRead) mapping->start_mover();
#endif
    return memory;
}

#else

std::shared_ptr<uint8_t> load_weights(ThreadPool &, const FileWeights &, FileMode) {
    throw std::runtime_error("keeping packed weights in files is not supported on this system");
}

#endif

}  // namespace headrace
