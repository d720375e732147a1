// Entry points that take sizes from files or callers, with random sizes, offsets, types and values: each call is refused or
// stays inside memory that has exactly the size its contract asks for (a sanitizer sees the rest), ends, and gives the same
// bits on every instruction set. HEADRACE_FUZZ_SECONDS: how long (default 2), HEADRACE_FUZZ_SEED: the first seed.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <stdexcept>

#include "headrace/threads.h"
#include "kernel_test.h"
#include "model_memory.h"
#include "weight_file.h"

using namespace headrace;
using namespace kernel_test;

namespace {

// Memory of exactly `bytes` bytes at an address that is a multiple of 64: what lies beyond belongs to nobody.
class Exact {
  public:
    explicit Exact(size_t bytes, uint8_t fill = 0xcc) : data_(static_cast<uint8_t *>(::operator new(bytes ? bytes : 1, std::align_val_t(64)))) {
        std::memset(data_.get(), fill, bytes);
    }
    uint8_t *bytes() { return data_.get(); }
    template <class T> T *as() { return reinterpret_cast<T *>(data_.get()); }

  private:
    struct Free { void operator()(uint8_t *p) const { ::operator delete(p, std::align_val_t(64)); } };
    std::unique_ptr<uint8_t, Free> data_;
};

template <class T> T pick(Random &r, std::initializer_list<T> values) { return values.begin()[r.below((int32_t)values.size())]; }

float any_float(Random &r) {
    switch (r.below(8)) {
        case 0: return pick(r, {0.0f, -0.0f, 1.0f, -1.0f, 1e-45f, 1e-30f, 3e38f, -3e38f});
        case 1: return pick(r, {INFINITY, -INFINITY, NAN, 65504.0f, 1e30f, -1e30f});
        default: return 4.0f * r.normal();
    }
}

int32_t any_size(Random &r) { return pick(r, {-1, 0, 1, 2, 15, 16, 17, 31, 32, 33, 48, 255, 256, 257, 512, 1 + r.below(700)}); }

constexpr int32_t kTypes[] = {0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 30};

// ---- packing ----

void fuzz_pack(Random &r) {
    const int32_t type = r.below(8) ? kTypes[r.below(13)] : (int32_t)(r.next() % 64) - 8;
    const int32_t n = any_size(r), k = any_size(r) * pick(r, {1, 1, 32, 256});
    const int32_t begin = pick(r, {0, 0, 16, any_size(r)}), end = pick(r, {n, n, 16, 32, any_size(r)});
    const size_t row_bytes = (size_t)pick(r, {r.below(64), r.below(5000), 4 * std::max(k, 0), std::max(k, 0) / 32 * 18, std::max(k, 0) / 32 * 34});
    Layout layout = Layout::F32;
    const bool known = layout_of_source(type, &layout);
    const size_t rows = (size_t)std::max(n, 1), panels = (rows + 15) / 16, panel = known ? panel_bytes(layout, k) : 64;
    if (rows * row_bytes > (size_t)1 << 24 || panels * panel > (size_t)1 << 24) return;
    Exact source(rows * row_bytes), packed(panels * panel);
    for (size_t i = 0; i < rows * row_bytes; i++) source.bytes()[i] = (uint8_t)r.next();
    std::vector<int32_t> order;
    for (int32_t i = 0; r.below(2) && i < n; i++) order.push_back(r.below(n));
    const int32_t *turned = (int32_t)order.size() == n ? order.data() : nullptr;
    const bool good = pack_rows(type, source.bytes(), row_bytes, turned, n, k, begin, end, packed.bytes());
    check(!good || known, "an unknown type %d was packed", type);
    if (!good || begin != 0 || end != n) return;
    const Matrix matrix = {layout, n, k, packed.bytes(), panel};
    std::vector<int32_t> ids;
    for (int i = 0; i < 5; i++) ids.push_back(r.below(n));
    std::vector<float> first;
    for (const Kernels *kernels : kernel_sets()) {
        Exact out(5 * (size_t)k * sizeof(float));
        kernels->embed(&matrix, ids.data(), 0, 5, 1.0f, out.as<float>(), (size_t)k);
        const std::vector<float> got(out.as<float>(), out.as<float>() + 5 * (size_t)k);
        if (first.empty()) first = got;
        for (size_t i = 0; i < got.size(); i++)     // a NaN is a NaN
            if (!(std::isnan(got[i]) && std::isnan(first[i])) && !check(std::memcmp(&got[i], &first[i], 4) == 0, "%s: type %d, %d x %d, value %zu", kernels->name, type, n, k, i)) break;
    }
}

// ---- files of packed weights ----

void fuzz_weight_file(Random &r) {
    static ThreadPool pool(2);
    const size_t size = (size_t)pick(r, {1, 63, 64, 4096, 5000, r.below(300000), (2 << 20) + r.below(100)});
    std::FILE *file = std::tmpfile();
    if (!check(file != nullptr, "no temporary file")) return;
    std::vector<uint8_t> bytes(size);
    for (uint8_t &b : bytes) b = (uint8_t)r.next();
    check(std::fwrite(bytes.data(), 1, size, file) == size && std::fflush(file) == 0, "cannot write");
    const size_t offset = (size_t)pick(r, {0, 0, 4096, r.below(8192)});
    const size_t there = size > offset ? size - offset : 0;
    const size_t announced = pick(r, {there, there, there + 1, there + 70000, size_t(0), (size_t)1 << 50, SIZE_MAX, SIZE_MAX - 5000});
    const FileMode mode = pick(r, {FileMode::Map, FileMode::Read, FileMode::MapThenRead});
    const bool is_true = announced == there && there > 0 && (mode == FileMode::Read || offset % 4096 == 0);
    if (mode == FileMode::Map && announced > there) {   // mapped past the end is not possible to read: refused before (packed/file)
        std::fclose(file);
        return;
    }
    const size_t chunks = announced > (size_t)1 << 30 ? 1 : (announced + kFileChunk - 1) / kFileChunk;
    std::vector<uint64_t> sums(std::max(chunks, size_t(1)), 1);
    for (size_t c = 0; c < chunks && c * kFileChunk < there; c++)
        sums[c] = checksum(bytes.data() + offset + c * kFileChunk, std::min(kFileChunk, there - c * kFileChunk));
    const bool is_wrong = r.below(3) == 0;
    if (is_wrong) sums[(size_t)r.below((int32_t)sums.size())] ^= (uint64_t)1 << r.below(64);
    bool loaded = false;
    try {
        const std::shared_ptr<uint8_t> memory = load_weights(pool, {fileno(file), offset, announced, sums.data()}, mode);
        loaded = true;
        if (is_true) check(std::memcmp(memory.get(), bytes.data() + offset, there) == 0, "other bytes than the file's");
    } catch (const std::runtime_error &) {
    } catch (const std::bad_alloc &) {
    }
    if (is_true) check(loaded == !is_wrong, "%zu bytes at %zu, mode %d: %s", there, offset, (int)mode, loaded ? "loaded" : "refused");
    if (announced > there) check(!loaded, "%zu of %zu bytes were loaded", announced, there);
    std::fclose(file);
}

// ---- sampling ----

void fuzz_sample(Random &r) {
    const int32_t vocab = pick(r, {1, 2, 7, 16, 33, 1000, 4096, 1 + r.below(20000)});
    const bool odd = r.below(3) == 0;
    std::vector<float> logits((size_t)vocab);
    for (float &x : logits) x = odd ? any_float(r) : 5 * r.normal();
    if (r.below(6) == 0) std::fill(logits.begin(), logits.end(), pick(r, {0.0f, -INFINITY, INFINITY, NAN, 3e38f}));
    SampleArgs a = {};
    a.vocab = vocab;
    a.temperature = pick(r, {0.0f, 1.0f, 1e-30f, 100.0f, 0.7f});
    a.top_k = pick(r, {0, 1, 2, 50, vocab, vocab + 1, INT32_MAX});
    a.top_p = pick(r, {1.0f, 0.9f, 1e-30f, 0.5f});
    a.min_p = pick(r, {0.0f, 0.1f, 1.0f});
    a.repetition = pick(r, {1.0f, 0.01f, 10.0f});
    a.presence = pick(r, {0.0f, 2.0f, -2.0f});
    a.frequency = pick(r, {0.0f, 2.0f, -2.0f});
    a.seed = ((uint64_t)r.next() << 32) | r.next();
    a.position = (int32_t)r.next();
    const int32_t num_seen = r.below(2) ? r.below(std::min(vocab, 300) + 1) : 0, num_bias = r.below(2) ? r.below(20) : 0;
    Exact seen(4 * (size_t)num_seen), counts(4 * (size_t)num_seen), bias(4 * (size_t)num_bias), values(4 * (size_t)num_bias);
    for (int32_t i = 0; i < num_seen; i++) seen.as<int32_t>()[i] = i * (vocab / std::max(num_seen, 1)), counts.as<int32_t>()[i] = pick(r, {0, 1, 100000, INT32_MAX});
    for (int32_t i = 0; i < num_bias; i++) bias.as<int32_t>()[i] = r.below(vocab), values.as<float>()[i] = pick(r, {0.0f, 100.0f, -100.0f, -INFINITY});
    const size_t words = ((size_t)vocab + 31) / 32;
    Exact allowed(4 * words, pick(r, {(uint8_t)0, (uint8_t)0xff, (uint8_t)0x11}));
    a.num_logprobs = pick(r, {-1, 0, 1, 20, vocab});
    a.num_logprobs = std::min(a.num_logprobs, vocab);
    const bool masked = r.below(3) == 0;
    const size_t k = (size_t)std::max(a.num_logprobs, 0);
    int32_t token = -1, error = -1;
    for (const Kernels *kernels : kernel_sets()) {
        Exact row(4 * (size_t)vocab), scratch(4 * (size_t)vocab + (64 << 10)), ids(4 * k), best(4 * k);
        std::memcpy(row.bytes(), logits.data(), 4 * (size_t)vocab);
        SampleArgs b = a;
        b.logits = row.as<float>(), b.scratch = scratch.as<float>(), b.top_ids = ids.as<int32_t>(), b.top_logprobs = best.as<float>();
        b.seen_ids = seen.as<int32_t>(), b.seen_counts = counts.as<int32_t>(), b.num_seen = num_seen;
        b.bias_ids = bias.as<int32_t>(), b.bias_values = values.as<float>(), b.num_bias = num_bias;
        b.allowed = masked ? allowed.as<uint32_t>() : nullptr;
        kernels->sample(&b);
        check(b.error || (b.token >= 0 && b.token < vocab), "%s: token %d of %d", kernels->name, b.token, vocab);
        for (size_t i = 0; !b.error && i < k; i++) check(ids.as<int32_t>()[i] >= -1 && ids.as<int32_t>()[i] < vocab, "%s: best id %d of %d", kernels->name, ids.as<int32_t>()[i], vocab);
        if (error < 0) token = b.token, error = b.error;
        check(b.error == error && (error || b.token == token), "%s: token %d (%d), elsewhere %d (%d)", kernels->name, b.token, b.error, token, error);
        float logprob;
        int32_t rank;
        kernels->logprobs(logits.data(), vocab, r.below(vocab), (int32_t)k, &logprob, &rank, ids.as<int32_t>(), best.as<float>());
    }
}

// ---- attention ----

void fuzz_attention(Random &r) {
    const int32_t kv_heads = 1 + r.below(4), group = pick(r, {1, 2, 3, 8, 17, 20}), heads = kv_heads * group;
    const int32_t head_size = 8 * (1 + r.below(32)), block_size = pick(r, {1, 2, 5, 16, 32, 48, 64});
    const KVType type = pick(r, {KVType::F16, KVType::F32, KVType::I8, KVType::I16});
    const int32_t num_rows = 1 + r.below(6), window = pick(r, {0, 0, 1, 7, 64, 1000}), most = pick(r, {3, 70, 600, 1100});
    std::vector<int32_t> starts{0}, lens, positions, row_of, ids;
    int32_t longest = 1;
    for (int32_t row = 0; row < num_rows; row++) {
        const int32_t length = 1 + r.below(most), count = r.below(3) ? 1 : 1 + r.below(std::min(length, 40));
        for (int32_t i = 0; i < count; i++) positions.push_back(length - count + i), row_of.push_back(row), ids.push_back(0);
        starts.push_back((int32_t)positions.size());
        lens.push_back(length);
        longest = std::max(longest, length);
    }
    const int32_t tokens = (int32_t)positions.size(), width = (longest + block_size - 1) / block_size, blocks = width * num_rows;
    if ((size_t)tokens * heads * head_size > (size_t)1 << 20) return;
    std::vector<int32_t> tables((size_t)num_rows * width);
    const int32_t common = r.below(2) ? width : 0;      // leading blocks that all rows share
    for (int32_t row = 0; row < num_rows; row++)
        for (int32_t i = 0; i < width; i++) tables[(size_t)row * width + i] = i < common / 2 ? i : row * width + i;
    KVMemory memory({type, 1, block_size, kv_heads, head_size, blocks});
    const KVLayer kv = memory.layer(0);
    const size_t ldq = (size_t)heads * head_size, ldk = (size_t)kv_heads * head_size;
    Exact queries(4 * (size_t)tokens * ldq), keys(4 * (size_t)tokens * ldk), values(4 * (size_t)tokens * ldk);
    const bool odd = r.below(3) == 0;
    for (size_t i = 0; i < (size_t)tokens * ldq; i++) queries.as<float>()[i] = odd ? any_float(r) : r.normal();
    for (size_t i = 0; i < (size_t)tokens * ldk; i++) keys.as<float>()[i] = odd ? any_float(r) : r.normal(), values.as<float>()[i] = odd ? any_float(r) : r.normal();
    Batch batch = {num_rows, tokens, ids.data(), positions.data(), row_of.data(), starts.data(), lens.data(), tables.data(), width};
    std::vector<int32_t> sharing((size_t)num_rows), of((size_t)num_rows);
    std::vector<uint8_t> listed((size_t)num_rows);
    batch.shared = share_prefixes(batch, block_size, sharing.data(), of.data(), listed.data());
    const size_t floats = attention_scratch_floats(tokens, num_rows, heads, head_size, longest);
    const int32_t threads = pick(r, {1, 2, 5, 64, 70});
    const float cap = pick(r, {0.0f, 0.0f, 30.0f});
    std::vector<float> first;
    for (const Kernels *kernels : kernel_sets()) {
        if (std::strcmp(kernels->name, "portable") == 0 && longest > 600) continue;     // slow under a sanitizer
        kernels->kv_write(&batch, &kv, keys.as<float>(), ldk, values.as<float>(), ldk, 0, tokens, 0, kv_heads);
        Exact out(4 * (size_t)tokens * ldq), scratch(4 * floats);
        uint32_t arrivals[kAttentionShares] = {};
        const AttentionArgs args = {&batch, &kv, queries.as<float>(), ldq, out.as<float>(), ldq, heads, 0.1f, cap, window, scratch.as<float>(), arrivals};
        for (int32_t i = 0; i < threads; i++) kernels->attention(&args, i, threads);
        const std::vector<float> got(out.as<float>(), out.as<float>() + (size_t)tokens * ldq);
        if (first.empty()) first = got;
        for (size_t i = 0; !odd && i < got.size(); i++)
            if (!check(std::memcmp(&got[i], &first[i], 4) == 0, "%s: %d/%d heads x %d, block %d, type %d: value %zu", kernels->name, heads, kv_heads, head_size, block_size, (int)type, i)) break;
    }
}

}  // namespace

int main() {
    const char *seconds = std::getenv("HEADRACE_FUZZ_SECONDS"), *start = std::getenv("HEADRACE_FUZZ_SEED");
    const double limit_s = seconds ? std::atof(seconds) : 2.0;
    uint64_t seed = start ? std::strtoull(start, nullptr, 10) : 1;
    const auto began = std::chrono::steady_clock::now();
    const auto elapsed_s = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
    int cases = 0, slowest = 0;
    double slowest_s = 0;
    for (; elapsed_s() < limit_s; seed++) {
        for (auto fuzz : {fuzz_pack, fuzz_weight_file, fuzz_sample, fuzz_attention}) {
            Random r(seed);
            const int before = failures;
            const double at_s = elapsed_s();
            fuzz(r);
            if (elapsed_s() - at_s > slowest_s) slowest_s = elapsed_s() - at_s, slowest = cases % 4;
            if (failures != before) std::fprintf(stderr, "  seed %llu, case %d\n", (unsigned long long)seed, cases % 4);
            cases++;
        }
    }
    std::printf("%d calls with random sizes and values up to seed %llu, slowest %.0f ms (case %d)\n", cases, (unsigned long long)seed - 1, slowest_s * 1e3, slowest);
    return report("test_fuzz");
}
