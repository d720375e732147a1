// The pool: every share runs once, barriers hold, sleeping workers wake, more threads than cores only cost time.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "headrace/threads.h"

using headrace::ThreadPool;

static void expect(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

static void check_pool(int threads, int spin_us, bool pin) {
    ThreadPool pool(threads, spin_us, pin);
    expect(pool.size() == threads, "size");
    std::vector<int> runs(threads, 0), sums(threads, 0);
    for (int round = 0; round < 300; round++) {
        if (round % 100 == 99) std::this_thread::sleep_for(std::chrono::milliseconds(2));    // let workers sleep
        pool.run([&](int thread, int count) {
            expect(count == threads, "thread count");
            for (int phase = 0; phase < 5; phase++) {
                runs[thread]++;
                pool.barrier();
                int sum = 0;
                for (int other = 0; other < count; other++) sum += runs[other];
                sums[thread] = sum;
                pool.barrier();
            }
        });
        for (int thread = 0; thread < threads; thread++) {
            expect(runs[thread] == 5 * (round + 1), "every thread runs once");
            expect(sums[thread] == threads * 5 * (round + 1), "a barrier shows what others wrote");
        }
    }
}

static void check_many_callers() {
    ThreadPool pool(2, 0);
    int64_t total = 0;
    std::vector<std::thread> callers;
    for (int i = 0; i < 4; i++)
        callers.emplace_back([&] {
            for (int round = 0; round < 200; round++) {
                int64_t part[2] = {0, 0};
                pool.run([&](int thread, int) {
                    part[thread] = 1;
                    pool.barrier();
                    if (thread == 0) total += part[0] + part[1];
                });
            }
        });
    for (auto &caller : callers) caller.join();
    expect(total == 4 * 200 * 2, "runs of several callers queue");
}

static void check_shares() {
    for (int count : {0, 1, 7, 64, 1000})
        for (int threads : {1, 2, 3, 8, 65}) {
            int32_t end = 0, begin, next;
            for (int thread = 0; thread < threads; thread++) {
                headrace::share_of(count, thread, threads, &begin, &next);
                expect(begin == end && next >= begin && next - begin <= count / threads + 1, "shares");
                end = next;
            }
            expect(end == count, "shares cover all");
        }
}

int main() {
    check_shares();
    for (int threads : {1, 2, 3, 4}) check_pool(threads, 50, false);
    check_pool(2, 0, true);
    check_pool(17, 50, false);
    check_many_callers();
    for (int threads : {0, -1, headrace::kMaxThreads + 1}) {
        bool thrown = false;
        try {
            ThreadPool pool(threads);
        } catch (const std::invalid_argument &) {
            thrown = true;
        }
        expect(thrown, "impossible counts are refused");
    }
    std::puts("threads: all is well");
}
