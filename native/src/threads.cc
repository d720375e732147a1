// Spinning pool, sleep on a condition variable, barrier by phase counter.
#include "headrace/threads.h"

#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace headrace {
namespace {

inline void relax() {
#if defined(__x86_64__) || defined(__i386__)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

int64_t process_id() {
#if defined(__unix__) || defined(__APPLE__)
    return getpid();
#else
    return 0;
#endif
}

int allowed_cores() {
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    const unsigned count = std::thread::hardware_concurrency();
    return count ? static_cast<int>(count) : 1;
}

void pin_to_core(int index) {
#if defined(__linux__)
    cpu_set_t set, one;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    int left = index % CPU_COUNT(&set);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &set) || left-- > 0) continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        pthread_setaffinity_np(pthread_self(), sizeof one, &one);   // a refusal only costs speed
        return;
    }
#else
    (void)index;
#endif
}

constexpr int kSpinsBeforeYield = 20000;   // some hundred microseconds

}  // namespace

ThreadPool::ThreadPool(int threads, int spin_us, bool pin)
    : size_(threads), spin_us_(spin_us), process_(process_id()), crowded_(threads > allowed_cores()) {
    if (threads < 1 || threads > kMaxThreads)
        throw std::invalid_argument("threads is " + std::to_string(threads) + "; allowed: 1 to " + std::to_string(kMaxThreads));
    if (spin_us < 0) throw std::invalid_argument("spin_us is negative");
    try {
        for (int i = 1; i < size_; i++) workers_.emplace_back([this, i, pin] { work(i, pin); });
    } catch (...) {
        stop_workers();
        throw;
    }
}

ThreadPool::~ThreadPool() { stop_workers(); }

void ThreadPool::stop_workers() {
    if (process_id() != process_) {         // after fork the workers do not exist here
        for (auto &worker : workers_) worker.detach();
        return;
    }
    {
        std::lock_guard<std::mutex> lock(sleep_mutex_);
        stop_.store(true);
        epoch_.fetch_add(1);
    }
    wake_.notify_all();
    for (auto &worker : workers_) worker.join();
    workers_.clear();
}

template <class Done> void ThreadPool::spin_until(Done done) const {
    for (int i = 0; !done(); i++) {
        if (crowded_ || i > kSpinsBeforeYield) std::this_thread::yield();
        else relax();
    }
}

void ThreadPool::run_erased(Call call, void *context) {
    if (size_ == 1) {
        call(context, 0, 1);
        return;
    }
    if (process_id() != process_)
        throw std::runtime_error("compute threads do not survive fork(); make the backend in the child process");
    std::lock_guard<std::mutex> only_one(one_run_);
    call_ = call;
    context_ = context;
    running_.store(size_ - 1, std::memory_order_relaxed);
    epoch_.fetch_add(1);                    // sequentially consistent, as is sleepers_: one side sees the other
    if (sleepers_.load() > 0) {
        { std::lock_guard<std::mutex> lock(sleep_mutex_); }
        wake_.notify_all();
    }
    call(context, 0, size_);
    spin_until([this] { return running_.load(std::memory_order_acquire) == 0; });
}

// Returns false when the pool stops.
bool ThreadPool::wait_for_epoch(uint32_t seen) {
    using Clock = std::chrono::steady_clock;
    const auto deadline = Clock::now() + std::chrono::microseconds(crowded_ ? 0 : spin_us_);
    do {
        for (int i = 0; i < 64; i++) {
            if (epoch_.load(std::memory_order_acquire) != seen) return !stop_.load();
            relax();
        }
    } while (Clock::now() < deadline);
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return epoch_.load() != seen; });
    sleepers_.fetch_sub(1);
    return !stop_.load();
}

void ThreadPool::work(int thread, bool pin) {
    if (pin) pin_to_core(thread);
    for (uint32_t seen = 0; wait_for_epoch(seen); ) {
        seen++;
        call_(context_, thread, size_);
        running_.fetch_sub(1, std::memory_order_release);
    }
}

void ThreadPool::barrier() {
    if (size_ == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        phase_.store(phase + 1, std::memory_order_release);
        return;
    }
    spin_until([this, phase] { return phase_.load(std::memory_order_acquire) != phase; });
}

}  // namespace headrace
