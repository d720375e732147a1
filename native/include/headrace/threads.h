// A pool of threads: run(f) calls f(thread, threads) once on each; the caller is thread 0.
//
// Workers spin for `spin_us` after a run and then sleep, so an idle pool costs no CPU. Waiting inside a run spins
// briefly and then sleeps as well: more threads than cores, or a core lost to another process, only cost speed. One run at a time; further callers queue on a mutex.
// Threads do not survive fork(): run() in a child throws std::runtime_error.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace headrace {

constexpr int kMaxThreads = 1024;

class ThreadPool {
  public:
    // 1 <= threads <= kMaxThreads, else std::invalid_argument. `pin` ties worker i to the i-th allowed core.
    explicit ThreadPool(int threads, int spin_us = 100, bool pin = false);
    ~ThreadPool();
    ThreadPool(const ThreadPool &) = delete;
    ThreadPool &operator=(const ThreadPool &) = delete;

    int size() const { return size_; }

    // f must not throw and must call barrier() equally often on every thread.
    template <class F> void run(F &&f) {
        using Callable = std::remove_reference_t<F>;
        run_erased([](void *context, int thread, int threads) { (*static_cast<Callable *>(context))(thread, threads); },
                   const_cast<void *>(static_cast<const void *>(&f)));
    }

    // Wait until every thread of the run has come here. Only inside run().
    void barrier();

    // Add to a count, and wait until it has come to `target`. Only inside run(). Counts wrap around.
    void count_up(std::atomic<uint32_t> &count, uint32_t more, uint32_t target);
    void wait_for_count(std::atomic<uint32_t> &count, uint32_t target);

  private:
    using Call = void (*)(void *context, int thread, int threads);
    void run_erased(Call call, void *context);
    void work(int thread, bool pin);
    bool wait_for_epoch(uint32_t seen);
    void stop_workers();
    void wait_while(std::atomic<uint32_t> &word, uint32_t value);
    void change(std::atomic<uint32_t> &word, uint32_t value);

    const int size_;
    const int spin_us_;
    const int64_t process_;
    bool crowded_;                 // more threads than cores: sleep at once
    Call call_ = nullptr;
    void *context_ = nullptr;
    std::atomic<bool> stop_{false};
    std::mutex one_run_;
    std::mutex sleep_mutex_;
    std::condition_variable wake_;
    std::vector<std::thread> workers_;
    alignas(64) std::atomic<uint32_t> epoch_{0};
    alignas(64) std::atomic<int> sleepers_{0};
    alignas(64) std::atomic<int> running_{0};
    alignas(64) std::atomic<int> parked_{0};
    alignas(64) std::atomic<uint32_t> finished_{0};
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> phase_{0};
};

// The share [begin, end) of `count` items that belongs to one thread.
inline void share_of(int64_t count, int thread, int threads, int32_t *begin, int32_t *end) {
    *begin = static_cast<int32_t>(count * thread / threads);
    *end = static_cast<int32_t>(count * (thread + 1) / threads);
}

}  // namespace headrace
