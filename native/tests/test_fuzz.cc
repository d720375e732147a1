// llama.cpp#10380. Entry points that take sizes from files or callers, with random sizes, offsets, types and values: each call is refused or
// stays inside memory that has exactly the size its contract asks for (a sanitizer sees the rest), ends, and gives the same
// bits on every instruction set. HEADRACE_FUZZ_SECONDS: how long (default 2), HEADRACE_FUZZ_SEED: the first seed.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <new>
#include <stdexcept>

#include "byte_pairs.h"
#include "headrace/program.h"
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
    const bool masked = r.below(3) == 0, is_known = r.below(2) == 0;
    const size_t k = (size_t)std::max(a.num_logprobs, 0);
    int32_t token = -1, error = -1;
    for (const Kernels *kernels : kernel_sets()) {
        Exact row(4 * (size_t)vocab), scratch(4 * (size_t)vocab + (64 << 10)), ids(4 * k), best(4 * k);
        std::memcpy(row.bytes(), logits.data(), 4 * (size_t)vocab);
        SampleArgs b = a;
        b.logits = row.as<float>(), b.scratch = scratch.as<float>(), b.top_ids = ids.as<int32_t>(), b.top_logprobs = best.as<float>();
        const size_t groups = ((size_t)vocab + kMaximaGroup - 1) / kMaximaGroup;
        Exact maxima(4 * groups);
        kernels->group_maxima(row.as<float>(), 0, vocab, 0, 1, 0, (int32_t)groups, maxima.as<float>(), 0);
        b.maxima = is_known ? maxima.as<float>() : nullptr;
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

// ---- step programs ----

// Random operations over random buffers, then steps with random inputs. Most operations fit: each draws widths that are there.
class RandomProgram {
  public:
    explicit RandomProgram(Random &r)
        : r_(r), kernels_(kernel_sets()[(size_t)r.below((int32_t)kernel_sets().size())]),
          limits_{1 + r.below(9), 1 + r.below(3), 1 + r.below(9), 1 + r.below(4)},
          kv_(std::make_shared<KVMemory>(KVMemory::Shape{pick(r, {KVType::F16, KVType::F32, KVType::I8, KVType::I16}), 1 + r.below(2), 1 + r.below(5),
                                                         1 + r.below(2), pick(r, {8, 16, 32}), 1 + r.below(6)})),
          program_(std::make_shared<ThreadPool>(pick(r, {1, 1, 2, 3}), 0), kernels_, kv_, limits_, (size_t)pick(r, {1 << 13, 1 << 15, 1 << 17}), 1 << 12) {}

    // Returns how many operations were taken over.
    int build() {
        const int buffers = 2 + r_.below(8), quants = r_.below(4), groups = 1 + r_.below(4), ops = 1 + r_.below(12);
        for (int i = 0; i < buffers; i++) attempt([&] {
            const Buffer buffer = {place(1 << 15), pick(r_, {32, 48, 64, 96, any_size(r_)}), r_.below(3) ? Rows::Tokens : Rows::Logits, own()};
            program_.add_buffer(buffer);
            buffers_.push_back(buffer);
        });
        for (int i = 0; i < quants; i++) attempt([&] { program_.add_quant_buffer({place(1 << 15), pick(r_, {32, 64, 96, any_size(r_)}), r_.below(3) ? Rows::Tokens : Rows::Logits, own()}), quants_++; });
        for (int i = 0; i < groups; i++) attempt([&] { program_.add_group(matrices()), groups_++; });
        int taken = 0;
        for (int i = 0; i < ops; i++) taken += attempt([&] { add_any(); });
        finished_ = attempt([&] { program_.finish({any_buffer(Rows::Logits), 0, pick(r_, {32, 8, 1, any_size(r_)})}); });
        return taken;
    }

    // Whether the inputs were taken over.
    bool step() {
        const int32_t rows = 1 + r_.below(limits_.max_rows), width = 1 + r_.below(limits_.table_width), block = kv_->shape().block_size;
        std::vector<int32_t> starts{0}, keys, positions, row_of, ids, angles, logits, tables;
        for (int32_t row = 0; row < rows; row++) {
            const int32_t length = 1 + r_.below(width * block), count = 1 + r_.below(std::min(length, 4));
            for (int32_t i = 0; i < count; i++) positions.push_back(length - count + i), row_of.push_back(row), ids.push_back(r_.below(16)), angles.push_back(r_.below(4));
            starts.push_back((int32_t)positions.size()), keys.push_back(length);
        }
        for (int32_t i = 0; i < rows * width; i++) tables.push_back(r_.below(kv_->shape().num_blocks));
        for (int32_t i = 0; i < (int32_t)ids.size(); i++) if (r_.below(2)) logits.push_back(i);
        for (auto *list : {&starts, &keys, &positions, &row_of, &ids, &angles, &logits, &tables})
            if (!list->empty() && r_.below(30) == 0) (*list)[(size_t)r_.below((int32_t)list->size())] = pick(r_, {-1, 0, 1, 2, 3, 20, INT32_MAX, INT32_MIN});
        const StepInputs inputs = {{rows, (int32_t)ids.size(), ids.data(), positions.data(), row_of.data(), starts.data(), keys.data(), tables.data(), width},
                                   angles.data(), logits.data(), (int32_t)logits.size()};
        if (!attempt([&] { program_.check(inputs); })) return false;
        program_.run(inputs);
        return true;
    }
    bool is_finished() const { return finished_; }

  private:
    template <class F> bool attempt(F f) {
        try {
            f();
        } catch (const std::logic_error &error) {       // invalid_argument, length_error, out_of_range
            check(*error.what() != 0, "refused without a reason");
            return false;
        }
        return true;
    }
    size_t place(int32_t limit) { return r_.below(20) ? 64 * (size_t)r_.below(limit / 64) / (size_t)(1 + r_.below(4)) / 64 * 64 : pick(r_, {(size_t)1, (size_t)64 << 40, SIZE_MAX - 63}); }
    size_t own() { return r_.below(4) ? kShared : place(1 << 12); }
    int32_t odd(int32_t value) { return r_.below(60) ? value : pick(r_, {-2, -1, 0, value + 1, 99, INT32_MAX, INT32_MIN}); }
    int32_t any_buffer(Rows rows) {
        for (int tries = 0; tries < 8 && !buffers_.empty(); tries++)
            if (const int32_t i = r_.below((int32_t)buffers_.size()); buffers_[(size_t)i].rows == rows) return odd(i);
        return odd(0);
    }
    Ref any_ref(Rows rows, int32_t width) { return {any_buffer(rows), r_.below(4) ? 0 : odd(16 * r_.below(3)), odd(width)}; }
    std::vector<std::shared_ptr<PackedMatrix>> matrices() {
        std::vector<std::shared_ptr<PackedMatrix>> parts;
        const int32_t k = pick(r_, {32, 32, 64});
        for (int count = r_.below(3) ? 1 : 2; count > 0; count--) {
            const int32_t type = pick(r_, {0, 1, 8, 2, 30}), n = pick(r_, {16, 32, 48, 64, 20, 1});
            const size_t row_bytes = (size_t)(type == 0 ? 4 * k : type == 8 ? k / 32 * 34 : type == 2 ? k / 32 * 18 : 2 * k);
            auto matrix = std::make_shared<PackedMatrix>();
            layout_of_source(type, &matrix->view.layout);
            matrix->view.n = n, matrix->view.k = k, matrix->view.panel_bytes = panel_bytes(matrix->view.layout, k);
            matrix->bytes = matrix->view.panel_bytes * (size_t)matrix->panels();
            matrix->memory = arena_.allocate(matrix->bytes);
            matrix->view.data = matrix->memory.get();
            const std::vector<uint8_t> source(row_bytes * (size_t)n, (uint8_t)(1 + r_.below(60)));
            check(pack_rows(type, source.data(), row_bytes, nullptr, n, k, 0, n, matrix->memory.get()), "type %d is not packed", type);
            parts.push_back(r_.below(60) ? matrix : nullptr);
        }
        return parts;
    }
    std::shared_ptr<FloatVector> vector(int32_t size) {
        auto made = std::make_shared<FloatVector>();
        made->size = std::min(std::max(size, 1), 4096);
        made->memory = arena_.allocate(4 * (size_t)made->size);
        return made;
    }
    void add_any() {
        Op op;
        op.kind = (OpKind)r_.below((int32_t)OpKind::kCount);
        const KVMemory::Shape &kv = kv_->shape();
        const bool attends = op.kind == OpKind::KVWrite || op.kind == OpKind::Attention;
        const Rows rows = attends || op.kind == OpKind::Embed || r_.below(3) ? Rows::Tokens : Rows::Logits;
        const int32_t width = pick(r_, {32, 32, 64, 48, 16}), heads = kv.kv_heads * (1 + r_.below(2));
        const int32_t wide = attends ? (op.kind == OpKind::Attention ? heads : kv.kv_heads) * kv.head_size : width;
        op.a = any_ref(rows, wide);
        if (op.kind == OpKind::Glu || op.kind == OpKind::Add || op.kind == OpKind::KVWrite || op.kind == OpKind::GatedMatmul) op.b = any_ref(rows, wide);
        if (op.kind != OpKind::Quantize && op.kind != OpKind::KVWrite) op.out = any_ref(op.kind == OpKind::Select ? Rows::Logits : rows, r_.below(3) ? wide : width);
        if (op.kind == OpKind::Select) op.a = any_ref(Rows::Tokens, wide);
        if (quants_ && r_.below(2)) op.quant = odd(r_.below(quants_));
        if (quants_ && op.kind == OpKind::GatedMatmul) op.input_quant = odd(r_.below(quants_));
        op.group = groups_ ? odd(r_.below(groups_)) : kNone;
        op.number = any_float(r_);
        op.head_size = odd(pick(r_, {8, 16, 32, 7}));
        op.heads = odd(op.head_size > 0 ? op.out.width / op.head_size : 0);
        op.layer = odd(r_.below(kv.layers));
        op.activation = r_.below(3);
        op.up_column = odd(width);
        op.accumulate = r_.below(2);
        op.angles = {angles_.data(), angles_.data(), 4, pick(r_, {4, 8, 16, 3})};
        op.attention = {odd(heads), odd(kv.kv_heads), odd(kv.head_size), pick(r_, {0, 0, 3}), 0.3f, pick(r_, {0.0f, 20.0f})};
        const bool weighted = op.kind == OpKind::RmsNorm || op.kind == OpKind::HeadNorm || (op.kind == OpKind::Matmul && r_.below(4) == 0);
        program_.add(op, weighted ? vector(odd(op.kind == OpKind::HeadNorm ? op.head_size : op.kind == OpKind::Matmul ? op.out.width : op.a.width)) : nullptr);
    }

    Random &r_;
    Arena arena_;
    const Kernels *kernels_;
    StepLimits limits_;
    std::shared_ptr<KVMemory> kv_;
    std::vector<float> angles_ = std::vector<float>(4 * 16, 0.5f);
    Program program_;
    std::vector<Buffer> buffers_;
    int32_t quants_ = 0, groups_ = 0;
    bool finished_ = false;
};

int programs_run = 0, steps_run = 0;

void fuzz_program(Random &r) {
    RandomProgram program(r);
    const int taken = program.build();
    if (!program.is_finished()) return;
    programs_run += taken > 0;
    for (int i = 0; i < 4; i++) steps_run += program.step();
}

// ---- byte-pair encoding ----

void fuzz_byte_pairs(Random &r) {
    const auto any_text = [&](int32_t most) {
        std::string text;
        for (int32_t i = r.below(most + 1); i > 0; i--) text += pick(r, {"a", "b", "c", "\xc4\xa0", "\xc3\x83", "\xc2", "\xff", " ", ""});
        return text;
    };
    const auto table = [&](std::string &blob, std::vector<uint64_t> &ends, int32_t count, bool merges) {
        for (int32_t i = 0; i < count; i++) {
            blob += any_text(3);
            if (merges && r.below(50)) blob += " " + any_text(2);
            ends.push_back(blob.size());
        }
        if (!ends.empty() && r.below(20) == 0) ends[(size_t)r.below((int32_t)ends.size())] = pick(r, {(uint64_t)0, UINT64_MAX, blob.size() + 1, blob.size()});
    };
    std::string tokens, merges;
    std::vector<uint64_t> token_ends, merge_ends;
    for (const char *letter : {"a", "b", "c", "\xc4\xa0"}) tokens += letter, token_ends.push_back(tokens.size());
    table(tokens, token_ends, r.below(200), false);
    table(merges, merge_ends, r.below(3) ? r.below(6) : 0, true);
    const auto exact = [](const std::string &text) {
        auto copy = std::make_unique<Exact>(text.size());
        std::memcpy(copy->bytes(), text.data(), text.size());
        return copy;
    };
    const auto token_bytes = exact(tokens), merge_bytes = exact(merges);
    BytePairs pairs;
    const std::string fault = pairs.make({{(const char *)token_bytes->bytes(), tokens.size()}, token_ends.data(), token_ends.size()},
                                         {{(const char *)merge_bytes->bytes(), merges.size()}, merge_ends.data(), merge_ends.size()}, r.below(2));
    if (!fault.empty()) return;
    BytePairs::Scratch scratch;
    std::vector<uint32_t> ids;
    for (int i = 0; i < 4; i++) {
        const std::string word = any_text(pick(r, {3, 30, 500}));
        const auto bytes = exact(word);
        ids.clear();
        pairs.encode({(const char *)bytes->bytes(), word.size()}, scratch, ids);
        check(ids.size() <= word.size(), "%zu ids of %zu bytes", ids.size(), word.size());
        for (const uint32_t id : ids) check(id < token_ends.size(), "id %u of %zu", id, token_ends.size());
        const uint32_t found = pairs.find({(const char *)bytes->bytes(), word.size()});
        check(found == BytePairs::none || found < token_ends.size(), "found %u of %zu", found, token_ends.size());
    }
}

}  // namespace

int main() {
    const char *seconds = std::getenv("HEADRACE_FUZZ_SECONDS"), *start = std::getenv("HEADRACE_FUZZ_SEED");
    const double limit_s = seconds ? std::atof(seconds) : 2.0;
    uint64_t seed = start ? std::strtoull(start, nullptr, 10) : 1;
    const auto began = std::chrono::steady_clock::now();
    const auto cpu_s = [] { return (double)std::clock() / CLOCKS_PER_SEC; };
    const auto elapsed_s = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count(); };
    int cases = 0, slowest = 0;
    double slowest_s = 0;
    for (; elapsed_s() < limit_s; seed++) {
        for (auto fuzz : {fuzz_pack, fuzz_weight_file, fuzz_sample, fuzz_attention, fuzz_program, fuzz_byte_pairs}) {
            Random r(seed);
            const int before = failures;
            const double at_s = cpu_s();
            fuzz(r);
            if (cpu_s() - at_s > slowest_s) slowest_s = cpu_s() - at_s, slowest = cases % 6;
            if (failures != before) std::fprintf(stderr, "  seed %llu, case %d\n", (unsigned long long)seed, cases % 6);
            cases++;
        }
    }
    std::printf("%d calls with random sizes and values up to seed %llu, slowest %.0f ms of computing (case %d)\n", cases, (unsigned long long)seed - 1, slowest_s * 1e3, slowest);
    std::printf("of them %d programs ran %d steps\n", programs_run, steps_run);
    check(cases < 2000 || steps_run > cases / 60, "too few programs were taken over");
    return report("test_fuzz");
}
