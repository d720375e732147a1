// Claims: every chunk is taken once, a stage ends when its chunks are done, nobody waits for a thread that holds none.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "program_claims.h"

using headrace::ChunkClaims;
using headrace::ThreadPool;

static void expect(bool condition, const char *what) {
    if (condition) return;
    std::fprintf(stderr, "failed: %s\n", what);
    std::exit(1);
}

constexpr int kStages = 7;

// Chunks of a stage write what all chunks of the next one read, without atomics: wait() must order them.
static void check_stages(int threads) {
    ThreadPool pool(threads);
    ChunkClaims claims(pool, kStages);
    expect(claims.chunks() >= threads, "a chunk for every thread");
    std::vector<std::vector<int>> done(kStages, std::vector<int>(claims.chunks(), 0));
    std::atomic<int> wrong{0};
    for (int round = 1; round <= 200; round++) {
        const bool skips = round % 3 == 0;          // a stage need not take part in every step
        for (int stage = 0; stage < kStages; stage++)
            if (!skips || stage != 3) claims.open(stage);
        pool.run([&](int thread, int) {
            for (int stage = 0; stage < kStages; stage++) {
                if (skips && stage == 3) continue;
                int taken = 0;
                for (int chunk; (chunk = claims.take(stage, thread)) >= 0; taken++) {
                    const int before = stage == 4 && skips ? 2 : stage - 1;
                    for (int other = 0; before >= 0 && other < claims.chunks(); other++)
                        wrong += done[before][other] != done[before][0] || (before != 3 && done[before][0] != round);
                    done[stage][chunk]++;
                    if ((round + chunk) % 50 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
                }
                claims.done(stage, taken);
                claims.wait(stage);
            }
        });
        expect(wrong == 0, "a stage begins when the one before is done, and sees its results");
        for (int stage = 0; stage < kStages; stage++)
            for (int count : done[stage]) expect(count == (stage == 3 ? round - round / 3 : round), "every chunk is taken once");
    }
}

static void check_order() {
    ThreadPool pool(2);
    ChunkClaims claims(pool, 1);
    claims.open(0);
    const int half = headrace::kChunksPerThread;
    for (int i = 0; i < half; i++) expect(claims.take(0, 1) == half + i, "a thread's own chunks come first and in order");
    for (int i = half; i > 0; i--) expect(claims.take(0, 1) == i - 1, "then the last ones of the others");
    expect(claims.take(0, 0) == -1 && claims.take(0, 1) == -1, "then none");
}

// Thread 1 has lost its core: thread 0 does the whole step meanwhile.
static void check_absent_thread() {
    ThreadPool pool(2);
    ChunkClaims claims(pool, kStages);
    for (int stage = 0; stage < kStages; stage++) claims.open(stage);
    std::atomic<bool> finished{false};
    int late = 0;
    pool.run([&](int thread, int) {
        if (thread == 1) {
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
            while (!finished && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
            expect(finished, "nobody waits for a thread that holds no chunk");
        }
        for (int stage = 0; stage < kStages; stage++) {
            int taken = 0;
            while (claims.take(stage, thread) >= 0) taken++;
            if (thread == 1) late += taken;
            claims.done(stage, taken);
            claims.wait(stage);
        }
        if (thread == 0) finished = true;
    });
    expect(late == 0, "a late thread finds nothing left and goes through");
}

int main() {
    for (int threads : {1, 2, 3, 5, 16}) check_stages(threads);
    check_order();
    check_absent_thread();
    std::puts("claims: all is well");
}
