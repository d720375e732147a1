// Spinning pool, sleep on a condition variable, barrier by phase counter.
//
// Waiting inside a run spins for some ten microseconds and then sleeps on a futex. Sleeping matters when another process
// (the HTTP server, a client) takes a core: the scheduler moves the thread that lost its core only to an idle core, and a
// core that spins is not idle. With spinning alone one 0.1 ms interruption costs a whole time slice.
#include "headrace/threads.h"

#include <chrono>
#include <stdexcept>
#include <string>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sched.h>
#include <unistd.h>
#endif
#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
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

constexpr int kSpins = 1000;                // 20 to 50 microseconds

// Sleep while `word` is `value`; may return early.
void park(std::atomic<uint32_t> &word, uint32_t value) {
#if defined(__linux__)
    static_assert(sizeof word == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free, "futex needs the plain word");
    syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr, nullptr, 0);
#else
    (void)word, (void)value;
    std::this_thread::yield();
#endif
}

void unpark_all(std::atomic<uint32_t> &word) {
#if defined(__linux__)
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
#else
    (void)word;
#endif
}

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

// Wait until `word` is no longer `value`. Both sides are sequentially consistent: a waiter counts itself before its last
// look at the word, a changer changes the word before it looks at the count, so one of them sees the other.
void ThreadPool::wait_while(std::atomic<uint32_t> &word, uint32_t value) {
    for (int i = 0; i < (crowded_ ? 0 : kSpins); i++) {
        if (word.load(std::memory_order_acquire) != value) return;
        relax();
    }
    parked_.fetch_add(1);
    while (word.load() == value) park(word, value);
    parked_.fetch_sub(1);
}

void ThreadPool::wait_for_count(std::atomic<uint32_t> &count, uint32_t target) {
    for (int i = 0; i < (crowded_ ? 0 : kSpins); i++) {
        if (count.load(std::memory_order_acquire) == target) return;
        relax();
    }
    parked_.fetch_add(1);
    for (uint32_t seen; (seen = count.load()) != target; ) park(count, seen);
    parked_.fetch_sub(1);
}

void ThreadPool::count_up(std::atomic<uint32_t> &count, uint32_t more, uint32_t target) {
    if (count.fetch_add(more) + more == target && parked_.load() > 0) unpark_all(count);
}

void ThreadPool::change(std::atomic<uint32_t> &word, uint32_t value) {
    word.store(value);
    if (parked_.load() > 0) unpark_all(word);
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
    const uint32_t finished = finished_.load(std::memory_order_relaxed);
    epoch_.fetch_add(1);                    // sequentially consistent, as is sleepers_: one side sees the other
    if (sleepers_.load() > 0) {
        { std::lock_guard<std::mutex> lock(sleep_mutex_); }
        wake_.notify_all();
    }
    call(context, 0, size_);
    wait_while(finished_, finished);
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
        const uint32_t finished = finished_.load(std::memory_order_relaxed);
        if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) change(finished_, finished + 1);
    }
}

void ThreadPool::barrier() {
    if (size_ == 1) return;
    const uint32_t phase = phase_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
        arrived_.store(0, std::memory_order_relaxed);
        change(phase_, phase + 1);
        return;
    }
    wait_while(phase_, phase);
}

}  // namespace headrace
