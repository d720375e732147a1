// Chunks of work that threads claim, stage by stage.
//
// A stage is done when its chunks are done, whoever did them: a thread that lost its core between two chunks is waited for
// by nobody, and finds on its return that it may go on to the stage where the others are. Every thread first takes the
// chunks of its own range in order, so that it reads memory forwards, then the last ones of the others' ranges.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "headrace/threads.h"

namespace headrace {

constexpr int kChunksPerThread = 4;
constexpr int kMaxClaimingThreads = 16;     // more would spend their time on the common counts

class ChunkClaims {
  public:
    ChunkClaims(ThreadPool &pool, size_t stages)
        : pool_(pool), threads_(pool.size()), rounds_(stages, 0), ranges_(new Range[stages * threads_]),
          counts_(new Count[stages]) {}

    int chunks() const { return threads_ * kChunksPerThread; }

    // Before a step, for each stage that it runs: all chunks may be taken. Not beside the calls below.
    void open(size_t stage) { rounds_[stage]++; }

    // A chunk of the stage that nobody has taken, or -1. No memory is published: wait() and done() do that.
    int take(size_t stage, int thread) {
        const uint32_t round = rounds_[stage];
        Range *ranges = &ranges_[stage * threads_];
        for (int i = 0, owner = thread; i < threads_; i++, owner = owner + 1 == threads_ ? 0 : owner + 1) {
            std::atomic<uint64_t> &word = ranges[owner].word;
            uint64_t seen = word.load(std::memory_order_relaxed);
            for (;;) {
                uint32_t begin = 0, end = kChunksPerThread;
                if (seen >> 32 == round) begin = seen >> 16 & 0xffff, end = seen & 0xffff;
                if (begin == end) break;
                const uint32_t chunk = i == 0 ? begin++ : --end;
                const uint64_t next = uint64_t(round) << 32 | begin << 16 | end;
                if (word.compare_exchange_weak(seen, next, std::memory_order_relaxed))
                    return owner * kChunksPerThread + static_cast<int>(chunk);
            }
        }
        return -1;
    }
    // The results of `chunks` chunks are written; wait() shows them to whoever returns from it. A thread reports all it did
    // of a stage at once: what it has not reported while it runs a chunk delays nobody, the stage lacks that chunk as well.
    void done(size_t stage, int chunks) {
        if (chunks > 0) pool_.count_up(counts_[stage].value, static_cast<uint32_t>(chunks), target(stage));
    }
    // Until all chunks of the stage are done.
    void wait(size_t stage) { pool_.wait_for_count(counts_[stage].value, target(stage)); }

  private:
    uint32_t target(size_t stage) const { return rounds_[stage] * static_cast<uint32_t>(chunks()); }

    // The round in the upper half, then what is left of the thread's chunks; the word of an earlier round means all of them,
    // so nothing is reset between steps.
    struct alignas(64) Range { std::atomic<uint64_t> word{0}; };
    struct alignas(64) Count { std::atomic<uint32_t> value{0}; };   // chunks done in all rounds, modulo 2^32

    ThreadPool &pool_;
    const int threads_;
    std::vector<uint32_t> rounds_;
    std::unique_ptr<Range[]> ranges_;
    std::unique_ptr<Count[]> counts_;
};

}  // namespace headrace
