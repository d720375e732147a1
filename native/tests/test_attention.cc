// Attention: any batch composition, any sharing of blocks, chunking, block size, thread count and instruction set gives the
// bits that each token has alone; memory that no query may see is NaN; the values agree with double precision.
#include <algorithm>
#include <thread>

#include "kernel_test.h"

using namespace headrace;
using namespace kernel_test;

namespace {

struct Setup {
    int32_t heads, kv_heads, head_size, block_size;
    KVType type;
    int32_t window;
    float softcap;
    bool shifted = false;       // a constant of all keys is stored apart
};

struct RowSpec { int32_t start, count; };

// Sequences with their KV in a pool of scattered blocks; everything not written is NaN.
class World {
  public:
    World(const Setup &setup, const std::vector<int32_t> &lengths, uint64_t seed) : s(setup), lengths_(lengths) {
        Random random(seed), order(seed + 1000);    // values must not depend on the number of blocks
        int32_t blocks = 3;
        for (int32_t n : lengths) width = std::max(width, (n + s.block_size - 1) / s.block_size);
        width += 2;
        for (int32_t n : lengths) blocks += (n + s.block_size - 1) / s.block_size;
        std::vector<int32_t> free(blocks);
        for (int32_t i = 0; i < blocks; i++) free[i] = i;
        for (int32_t i = blocks - 1; i > 0; i--) std::swap(free[i], free[order.below(i + 1)]);
        const KVUnit unit = kv_unit(s.type, s.block_size, s.head_size);
        pool.assign((size_t)blocks * s.kv_heads * unit.per_block * unit.bytes, 0xff);   // NaN in all types
        kv = {s.type, s.block_size, s.kv_heads, s.head_size, pool.data()};
        shifts = Random(77).normals((size_t)2 * s.kv_heads * s.head_size, 20.0f);
        if (s.shifted) kv.key_shifts = shifts.data(), kv.shift_spans = 2;
        for (int32_t n : lengths) {
            std::vector<int32_t> table(width, -1000000);          // an id that would fault if used
            for (int32_t i = 0; i < (n + s.block_size - 1) / s.block_size; i++) table[i] = free.back(), free.pop_back();
            tables.push_back(table);
            queries.push_back(random.normals((size_t)n * s.heads * s.head_size, 1.5f));
            keys.push_back(random.normals((size_t)n * s.kv_heads * s.head_size));
            for (int32_t t = 0; s.shifted && t < n; t++)
                for (int32_t i = 0; i < s.kv_heads * s.head_size; i++)
                    keys.back()[(size_t)t * s.kv_heads * s.head_size + i] += key_shift_of(kv, t / kShiftSpan, 0)[i];
            values.push_back(random.normals((size_t)n * s.kv_heads * s.head_size));
        }
    }

    // The first `tokens` tokens of sequence b become those of a: whole blocks are the same blocks.
    void share(int32_t a, int32_t b, int32_t tokens) {
        std::copy_n(tables[a].begin(), tokens / s.block_size, tables[b].begin());
        const size_t floats = (size_t)tokens * s.kv_heads * s.head_size;
        std::copy_n(keys[a].begin(), floats, keys[b].begin());
        std::copy_n(values[a].begin(), floats, values[b].begin());
    }

    // A batch of rows (sequence i, spec i); sequences with count 0 are left out of the batch's rows.
    struct Step {
        std::vector<int32_t> sequence, ids, positions, row_of, starts{0}, lens, tables, rows, common;
        std::vector<uint8_t> listed;
        Batch batch;
    };

    Step step(const std::vector<RowSpec> &rows, bool drop_outside_window = true) const {
        Step t;
        for (size_t i = 0; i < rows.size(); i++) {
            if (rows[i].count == 0) continue;
            const int32_t row = (int32_t)t.lens.size();
            for (int32_t j = 0; j < rows[i].count; j++) {
                t.ids.push_back(0);
                t.positions.push_back(rows[i].start + j);
                t.row_of.push_back(row);
            }
            t.sequence.push_back((int32_t)i);
            t.starts.push_back((int32_t)t.ids.size());
            t.lens.push_back(rows[i].start + rows[i].count);
            std::vector<int32_t> table = tables[i];
            // Blocks wholly before the window of the first query may be gone.
            if (s.window > 0 && drop_outside_window)
                for (int32_t b = 0; (b + 1) * s.block_size <= rows[i].start - s.window + 1; b++) table[b] = -1000000;
            t.tables.insert(t.tables.end(), table.begin(), table.end());
        }
        t.batch = {(int32_t)t.lens.size(), (int32_t)t.ids.size(), t.ids.data(), t.positions.data(), t.row_of.data(),
                   t.starts.data(), t.lens.data(), t.tables.data(), width};
        t.rows.resize(t.lens.size());
        t.common.resize(t.lens.size());
        t.listed.resize(t.lens.size());
        t.batch.shared = share_prefixes(t.batch, s.block_size, t.rows.data(), t.common.data(), t.listed.data());
        return t;
    }

    void write(const Kernels &k, const std::vector<RowSpec> &rows, int32_t threads) {
        Step t = step(rows, false);
        const std::vector<float> key = gather(t, keys, s.kv_heads), value = gather(t, values, s.kv_heads);
        const size_t ld = (size_t)s.kv_heads * s.head_size;
        for (int32_t i = 0; i < threads; i++) k.kv_write(&t.batch, &kv, key.data(), ld, value.data(), ld, t.batch.num_tokens * i / threads, t.batch.num_tokens * (i + 1) / threads, 0, s.kv_heads);
    }

    void write_all(const Kernels &k) {
        std::vector<RowSpec> rows;
        for (int32_t n : lengths_) rows.push_back({0, n});
        write(k, rows, 1);
    }

    std::vector<float> gather(const Step &t, const std::vector<std::vector<float>> &from, int32_t heads) const {
        const size_t ld = (size_t)heads * s.head_size;
        std::vector<float> out(t.ids.size() * ld);
        for (size_t i = 0; i < t.ids.size(); i++)
            std::copy_n(&from[t.sequence[t.row_of[i]]][t.positions[i] * ld], ld, &out[i * ld]);
        return out;
    }

    std::vector<float> attend(const Kernels &k, const std::vector<RowSpec> &rows, int32_t threads, bool parallel = false) {
        return attend(k, step(rows), threads, parallel);
    }

    std::vector<float> attend(const Kernels &k, const Step &t, int32_t threads, bool parallel = false) {
        const std::vector<float> q = gather(t, queries, s.heads);
        std::vector<float> out(q.size(), NAN);
        const int32_t longest = *std::max_element(t.lens.begin(), t.lens.end());
        const size_t floats = attention_scratch_floats(t.batch.num_tokens, t.batch.num_rows, s.heads, s.head_size, longest);
        std::vector<float> scratch(floats + 16, 12345.0f);
        uint32_t arrivals[kAttentionShares] = {};
        const size_t ld = (size_t)s.heads * s.head_size;
        const AttentionArgs args = {&t.batch, &kv, q.data(), ld, out.data(), ld, s.heads, scale(), s.softcap, s.window,
                                    scratch.data(), arrivals};
        if (parallel) {
            std::vector<std::thread> pool;
            for (int32_t i = 0; i < threads; i++) pool.emplace_back([&, i] { k.attention(&args, i, threads); });
            for (auto &p : pool) p.join();
        } else {
            for (int32_t i = threads; i-- > 0;) k.attention(&args, i, threads);
        }
        for (const uint32_t count : arrivals) check(count == 0, "a share was not waited for");
        for (int i = 0; i < 16; i++) check(scratch[floats + i] == 12345.0f, "scratch written past its end");
        return out;
    }

    float scale() const { return 1.0f / std::sqrt((float)s.head_size); }

    // Largest error of one token's output against double precision, relative to the largest value of V.
    double error(const float *out, int32_t sequence, int32_t position) const {
        double worst = 0;
        const int32_t group = s.heads / s.kv_heads, dims = s.head_size;
        const int32_t first = s.window > 0 ? std::max(0, position - s.window + 1) : 0;
        for (int32_t h = 0; h < s.heads; h++) {
            const float *q = &queries[sequence][((size_t)position * s.heads + h) * dims];
            std::vector<double> p, sum(dims, 0.0);
            double top = -1e300, total = 0;
            for (int32_t t = first; t <= position; t++) {
                const std::vector<double> key = stored_key(&keys[sequence][((size_t)t * s.kv_heads + h / group) * dims],
                                                           s.shifted ? key_shift_of(kv, t / kShiftSpan, h / group) : nullptr);
                double x = 0;
                for (int32_t d = 0; d < dims; d++) x += (double)q[d] * key[d];
                x *= scale();
                if (s.softcap > 0) x = s.softcap * std::tanh(x / s.softcap);
                p.push_back(x);
                top = std::max(top, x);
            }
            for (double &x : p) total += x = std::exp(x - top);
            for (int32_t t = first; t <= position; t++) {
                const std::vector<double> v = stored(&values[sequence][((size_t)t * s.kv_heads + h / group) * dims]);
                for (int32_t d = 0; d < dims; d++) sum[d] += p[t - first] * v[d];
            }
            for (int32_t d = 0; d < dims; d++) worst = std::max(worst, std::fabs(sum[d] / total - out[h * dims + d]));
        }
        return worst;
    }

    Setup s;
    std::vector<uint8_t> pool;
    std::vector<float> shifts;
    KVLayer kv;

  private:
    std::vector<double> stored(const float *x) const {
        std::vector<double> out(x, x + s.head_size);
        if (s.type == KVType::I16) return coded(x, false);
        if (s.type != KVType::I8) {
            for (double &value : out) value = rounded((float)value);
            return out;
        }
        float top = 0;
        for (int32_t d = 0; d < s.head_size; d++) top = std::max(top, std::fabs(x[d]));
        int exponent;
        const double mantissa = std::frexp(top / 127.0f, &exponent), scale = std::ldexp(std::ceil(mantissa * 256), exponent - 8);
        for (double &value : out) value = std::nearbyint((float)value * (1.0f / (float)scale)) * scale;
        return out;
    }

    // I16: codes times their scale.
    std::vector<double> coded(const float *x, bool key) const {
        std::vector<double> out(x, x + s.head_size);
        double top = 0, squares = 0;
        for (double v : out) top = std::max(top, std::fabs(v)), squares += v * v;
        const double step = key ? std::max(std::sqrt(squares) / 46300, top / 32766) : top / 16383;
        int exponent;
        const double mantissa = std::frexp(step, &exponent), scale = std::ldexp(std::ceil(mantissa * 256), exponent - 8);
        for (double &v : out) v = std::nearbyint((float)v * (1.0f / (float)scale)) * scale;
        return out;
    }

    // I8: H^-1 of what is stored of H k.
    std::vector<double> stored_key(const float *k, const float *shift) const {
        if (s.type == KVType::I16) return coded(k, true);
        if (s.type != KVType::I8) return stored(k);
        const int32_t run = s.head_size & -s.head_size;
        std::vector<float> x(k, k + s.head_size);
        for (int32_t d = 0; shift && d < s.head_size; d++) x[d] -= shift[d];
        for (int32_t step = 1; step < run; step *= 2)
            for (int32_t d = 0; d < s.head_size; d++)
                if (!(d & step)) {
                    const float a = x[d], b = x[d + step];
                    x[d] = a + b, x[d + step] = a - b;
                }
        const std::vector<double> code = stored(x.data());
        std::vector<double> out(s.head_size, 0.0);
        for (int32_t d = 0; shift && d < s.head_size; d++) out[d] = shift[d];
        for (int32_t d = 0; d < s.head_size; d++)
            for (int32_t e = d / run * run; e < d / run * run + run; e++)
                out[d] += (__builtin_popcount(d & e & (run - 1)) % 2 ? -code[e] : code[e]) / run;
        return out;
    }

    double rounded(float x) const {
        if (s.type == KVType::F32) return x;
        int exponent;
        std::frexp(x, &exponent);
        const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
        return std::nearbyint(x / unit) * unit;
    }

    std::vector<int32_t> lengths_;
    int32_t width = 0;
    std::vector<std::vector<int32_t>> tables;
    std::vector<std::vector<float>> queries, keys, values;
};

const char *describe(const Setup &s) {
    static char text[160];
    std::snprintf(text, sizeof text, "%d/%d heads x %d, block %d, %s, window %d, cap %g", s.heads, s.kv_heads, s.head_size,
                  s.block_size, s.type == KVType::F16 ? "f16" : s.type == KVType::F32 ? "f32" : s.type == KVType::I8 ? "int8" : "int16", s.window, s.softcap);
    return text;
}

// Bits of every token computed alone, by one thread, as a decode step.
std::vector<std::vector<float>> alone(World &w, const Kernels &k, const std::vector<RowSpec> &rows) {
    std::vector<std::vector<float>> out;
    for (size_t i = 0; i < rows.size(); i++)
        for (int32_t j = 0; j < rows[i].count; j++) {
            std::vector<RowSpec> one(rows.size(), RowSpec{0, 0});
            one[i] = {rows[i].start + j, 1};
            out.push_back(w.attend(k, one, 1));
        }
    return out;
}

void compare(const std::vector<float> &got, const std::vector<std::vector<float>> &want, const Setup &s, const char *what) {
    const size_t ld = (size_t)s.heads * s.head_size;
    for (size_t i = 0; i < want.size(); i++)
        check(std::memcmp(&got[i * ld], want[i].data(), ld * sizeof(float)) == 0, "%s: token %zu of %zu differs (%s)", what, i,
              want.size(), describe(s));
}

// Rows in one mixed batch, in chunks, with 1 to 4 threads, on every set: the bits of the tokens alone.
void check_setup(const Setup &s, const std::vector<RowSpec> &rows, uint64_t seed) {
    if (!kernel_test::in_part()) return;
    std::vector<int32_t> lengths;
    for (const RowSpec &r : rows) lengths.push_back(r.start + r.count);
    const auto sets = kernel_sets();
    World w(s, lengths, seed);
    w.write_all(*sets.back());
    const auto want = alone(w, *sets.back(), rows);
    size_t token = 0;
    for (size_t i = 0; i < rows.size(); i++)
        for (int32_t j = 0; j < rows[i].count; j++, token++)
            if (token % 5 == 0) {
                const double e = w.error(want[token].data(), (int32_t)i, rows[i].start + j);
                check(e < (s.type == KVType::I16 ? 4e-4 : s.shifted ? 2e-4 : s.head_size > 128 ? 4e-6 : 2e-6), "error %g against double (%s)", e, describe(s));
            }
    for (const Kernels *k : sets) {
        const bool slow = std::strcmp(k->name, "portable") == 0;
        for (int32_t threads = 1; threads <= (slow ? 1 : 4); threads++)
            compare(w.attend(*k, rows, threads), want, s, k->name);
        if (slow) continue;
        compare(w.attend(*k, rows, 3, true), want, s, "three real threads");
        compare(w.attend(*k, rows, 70), want, s, "more threads than work");
        for (int32_t chunk : {1, 3, 17, 64}) {
            std::vector<std::vector<float>> parts(rows.size());
            for (int32_t done = 0;; done += chunk) {
                std::vector<RowSpec> part;
                bool any = false;
                for (const RowSpec &r : rows) {
                    part.push_back({r.start + done, std::max(0, std::min(chunk, r.count - done))});
                    any |= part.back().count > 0;
                }
                if (!any) break;
                const std::vector<float> out = w.attend(*k, part, 2);
                size_t at = 0;
                for (size_t i = 0; i < part.size(); i++) {
                    const size_t n = (size_t)part[i].count * s.heads * s.head_size;
                    parts[i].insert(parts[i].end(), out.begin() + at, out.begin() + at + n);
                    at += n;
                }
            }
            std::vector<float> all;
            for (const auto &p : parts) all.insert(all.end(), p.begin(), p.end());
            compare(all, want, s, "chunked");
        }
    }
}

// Row i of a batch whose first `common` tokens are those of sequence `like`.
struct Fork { int32_t like, common, position; };

// Rows that share prefixes, among others, with 1 to 3 threads, on every set: the bits of each token alone.
void check_sharing(const Setup &s, const std::vector<Fork> &forks, const std::vector<RowSpec> &others, uint64_t seed) {
    if (!kernel_test::in_part()) return;
    std::vector<RowSpec> rows;
    for (const Fork &f : forks) rows.push_back({f.position, 1});
    rows.insert(rows.begin() + (int)forks.size() / 2, others.begin(), others.end());
    const auto row_of = [&](int32_t fork) { return fork < (int32_t)forks.size() / 2 ? fork : fork + (int32_t)others.size(); };
    std::vector<int32_t> lengths;
    for (const RowSpec &r : rows) lengths.push_back(r.start + r.count);
    const auto sets = kernel_sets();
    World w(s, lengths, seed);
    for (int32_t i = 0; i < (int32_t)forks.size(); i++)
        if (forks[i].common > 0) w.share(row_of(forks[i].like), row_of(i), forks[i].common);
    w.write_all(*sets.back());
    const auto want = alone(w, *sets.back(), rows);
    for (const Kernels *k : sets) {
        const bool slow = std::strcmp(k->name, "portable") == 0;
        for (int32_t threads = 1; threads <= 3; threads++)
            if (!slow || (threads == 2 && seed % 3 == 0)) compare(w.attend(*k, rows, threads), want, s, k->name);
        if (slow) continue;
        compare(w.attend(*k, rows, 3, true), want, s, "shared, three real threads");
        compare(w.attend(*k, rows, 70), want, s, "shared, more threads than work");
    }
}

void check_sharings() {
    const std::vector<RowSpec> others = {{300, 40}, {1299, 1}, {0, 1}};
    const std::vector<Fork> places = {{0, 0, 1300}, {0, 640, 650}, {0, 200, 1100}, {0, 1024, 1100}, {0, 448, 511}, {0, 512, 512}};
    const std::vector<Fork> clusters = {{0, 0, 500},   {1, 0, 600}, {0, 384, 390}, {1, 512, 1030}, {0, 440, 450},
                                        {1, 560, 577}, {1, 64, 65}, {0, 63, 64},   {0, 16, 100},   {3, 1024, 1100}};
    std::vector<Fork> many = {{0, 0, 640}};
    for (int32_t i = 1; i < 17; i++) many.push_back({i % 5 == 0 ? 1 : 0, i % 5 == 0 ? 500 : 576, 577 + 13 * i});
    uint64_t seed = 50;
    for (const KVType type : {KVType::F16, KVType::F32, KVType::I8, KVType::I16})
        for (const int32_t block : {16, 32, 4, 24}) {
            check_sharing({9, 3, 64, block, type, 0, 0}, places, {}, seed++);
            check_sharing({14, 2, 64, block, type, 0, 0}, clusters, others, seed++);
            check_sharing({12, 2, 128, block, type, 0, 0}, many, others, seed++);
        }
    for (const int32_t heads : {1, 3, 5, 7, 16, 24})
        for (const int32_t dims : {64, 128}) check_sharing({heads, 1, dims, 16, KVType::F16, 0, 0}, many, others, seed++);
    check_sharing({6, 2, 256, 16, KVType::F16, 0, 50.0f}, clusters, others, seed++);
    check_sharing({4, 4, 40, 16, KVType::F16, 5000, 0}, many, others, seed++);         // a window that covers all
    check_sharing({4, 4, 40, 16, KVType::F16, 600, 0}, many, others, seed++);
    check_sharing({9, 3, 64, 16, KVType::I8, 0, 0, true}, many, others, seed++);
}

// What rows share: in the order of their tables, whole chunks only, nothing that is too little to matter.
void check_shared_prefixes() {
    if (!kernel_test::in_part()) return;
    World w({1, 1, 8, 16, KVType::F32, 0, 0}, {1200, 1100, 900, 700, 200, 5000, 66, 300}, 1);
    w.share(0, 1, 1024);
    w.share(0, 2, 600);
    w.share(0, 3, 640);
    w.share(0, 4, 63);
    w.share(0, 5, 1024);
    const World::Step step = w.step({{1199, 1}, {1099, 1}, {899, 1}, {699, 1}, {199, 1}, {4999, 1}, {65, 1}, {290, 10}});
    const SharedPrefixes &p = step.batch.shared;
    check(p.count == 4, "%d rows share, wanted 4", p.count);
    std::vector<int32_t> seen;
    for (int32_t i = 0; i < p.count; i++) {
        seen.push_back(p.rows[i]);
        const int32_t next = i + 1 < p.count ? p.rows[i + 1] : -1;
        const int32_t want = next < 0 ? 0 : p.rows[i] == 2 || next == 2 ? 576 : p.rows[i] == 3 || next == 3 ? 640 : 1024;
        check(p.common[i] == want, "rows %d and %d share %d keys, wanted %d", p.rows[i], next, p.common[i], want);
    }
    std::sort(seen.begin(), seen.end());
    check(seen == std::vector<int32_t>({0, 1, 2, 3}), "the wrong rows share");
    for (int32_t row = 0; row < 8; row++) check(p.listed[row] == (row < 4), "row %d is listed wrongly", row);
}

// The common keys are read through the table of one row: entries of the others may even be wrong.
void check_read_once(const Setup &s) {
    if (!kernel_test::in_part()) return;
    const std::vector<RowSpec> rows = {{1030, 1}, {1040, 1}, {1100, 1}};
    World w(s, {1031, 1041, 1101}, 9);
    w.share(0, 1, 1024);
    w.share(0, 2, 1024);
    w.write_all(*kernel_sets().back());
    const auto want = alone(w, *kernel_sets().back(), rows);
    for (const Kernels *k : kernel_sets()) {
        World::Step step = w.step(rows);
        for (int32_t i = 1; i < 3; i++)
            std::fill_n(&step.tables[(size_t)step.batch.shared.rows[i] * step.batch.table_width], 1024 / s.block_size, -1000000);
        compare(w.attend(*k, step, 1), want, s, "read once");
    }
}

// All block sizes hold the same numbers and give the same bits, also when tokens are written one by one.
void check_block_sizes(Setup s, const std::vector<RowSpec> &rows) {
    if (!kernel_test::in_part()) return;
    std::vector<int32_t> lengths;
    for (const RowSpec &r : rows) lengths.push_back(r.start + r.count);
    std::vector<float> first;
    for (int32_t block : {16, 1, 4, 24, 32, 64, 256}) {
        s.block_size = block;
        for (const Kernels *k : kernel_sets()) {
            World w(s, lengths, 7);
            if (block % 3) w.write_all(*k);
            else
                for (int32_t p = 0; p < 2000; p++) {
                    std::vector<RowSpec> one;
                    for (int32_t n : lengths) one.push_back({p, p < n ? 1 : 0});
                    if (std::all_of(one.begin(), one.end(), [](RowSpec r) { return r.count == 0; })) break;
                    w.write(*k, one, 3);
                }
            const std::vector<float> out = w.attend(*k, rows, 2);
            if (first.empty()) first = out;
            check(same_bits(out, first), "block size %d on %s differs (%s)", block, k->name, describe(s));
        }
    }
}

// A NaN or infinity in the keys and values of later tokens changes nothing for earlier ones in the same tile.
void check_future_is_unseen(const Setup &s) {
    if (!kernel_test::in_part()) return;
    const std::vector<RowSpec> rows = {{90, 12}};
    for (const Kernels *k : kernel_sets()) {
        World w(s, {102}, 3);
        w.write_all(*k);
        const std::vector<float> clean = w.attend(*k, rows, 1);
        World dirty(s, {102}, 3);
        dirty.write(*k, {{0, 97}}, 1);
        const std::vector<float> out = dirty.attend(*k, rows, 1);
        const size_t seen = (size_t)7 * s.heads * s.head_size;
        check(std::memcmp(out.data(), clean.data(), seen * sizeof(float)) == 0, "%s: NaN in the future is seen (%s)", k->name,
              describe(s));
        check(std::isnan(out[seen]), "%s: a NaN of its own must show (%s)", k->name, describe(s));
    }
}

}  // namespace

int main() {
    const std::vector<RowSpec> mixed = {{1299, 1}, {0, 37}, {510, 5}, {63, 1}, {120, 20}, {0, 1}};
    check_setup({9, 3, 64, 16, KVType::F16, 0, 0}, mixed, 1);
    check_setup({14, 2, 64, 32, KVType::F16, 0, 0}, mixed, 2);
    check_setup({12, 2, 128, 16, KVType::F16, 0, 0}, {{700, 9}, {1023, 2}}, 3);
    check_setup({8, 4, 256, 16, KVType::F16, 200, 50.0f}, mixed, 4);
    check_setup({4, 4, 80, 16, KVType::F32, 0, 0}, mixed, 5);
    check_setup({4, 4, 96, 64, KVType::F16, 33, 0}, {{1400, 3}, {600, 40}, {0, 70}}, 6);
    check_setup({5, 1, 40, 16, KVType::F32, 512, 20.0f}, {{1535, 2}, {511, 3}, {1030, 30}}, 7);
    for (int32_t heads = 1; heads <= 8; heads++)              // every height of a tile, at the common head sizes
        for (int32_t dims : {64, 128}) check_setup({heads, 1, dims, 16, KVType::F16, 0, 0}, {{70, 2}, {575, 1}}, 20 + heads);
    check_setup({16, 1, 16, 4, KVType::F16, 0, 0}, mixed, 8);
    check_setup({40, 2, 8, 1, KVType::F32, 1, 0}, {{100, 5}, {0, 3}}, 9);
    check_setup({2, 1, 72, 256, KVType::F16, 700, 0}, {{2100, 1}, {1999, 4}}, 10);
    check_setup({9, 3, 64, 16, KVType::I8, 0, 0}, mixed, 11);
    check_setup({12, 2, 128, 32, KVType::I8, 0, 0}, {{700, 9}, {1023, 2}}, 12);
    check_setup({8, 4, 256, 16, KVType::I8, 200, 50.0f}, mixed, 13);
    check_setup({5, 1, 40, 8, KVType::I8, 33, 0}, {{1535, 2}, {511, 3}, {1030, 30}}, 14);
    check_setup({2, 1, 96, 1, KVType::I8, 0, 20.0f}, {{300, 5}, {0, 70}}, 15);
    check_block_sizes({6, 2, 64, 16, KVType::F16, 0, 0}, {{600, 1}, {0, 50}, {200, 7}});
    check_block_sizes({6, 2, 40, 16, KVType::F32, 100, 30.0f}, {{600, 1}, {0, 50}, {200, 7}});
    check_setup({9, 3, 64, 16, KVType::I8, 0, 0, true}, mixed, 16);
    check_setup({5, 1, 40, 8, KVType::I8, 700, 0, true}, {{1535, 2}, {511, 3}, {1030, 30}}, 17);
    check_block_sizes({6, 2, 64, 16, KVType::I8, 0, 0, true}, {{600, 1}, {0, 50}, {200, 7}});
    check_block_sizes({6, 2, 72, 16, KVType::I8, 100, 0}, {{600, 1}, {0, 50}, {200, 7}});
    check_setup({9, 3, 64, 16, KVType::I16, 0, 0}, mixed, 40);
    check_setup({12, 2, 128, 32, KVType::I16, 0, 0}, {{700, 9}, {1023, 2}}, 41);
    check_setup({8, 4, 256, 16, KVType::I16, 200, 50.0f}, mixed, 42);
    check_setup({5, 1, 40, 8, KVType::I16, 33, 0}, {{1535, 2}, {511, 3}, {1030, 30}}, 43);
    check_setup({2, 1, 96, 1, KVType::I16, 0, 20.0f}, {{300, 5}, {0, 70}}, 44);
    for (int32_t heads = 1; heads <= 8; heads++)
        check_setup({heads, 1, heads % 2 ? 64 : 72, 16, KVType::I16, 0, 0}, {{70, 2}, {575, 1}}, 44 + heads);
    check_block_sizes({6, 2, 72, 16, KVType::I16, 100, 0}, {{600, 1}, {0, 50}, {200, 7}});
    check_shared_prefixes();
    for (const KVType type : {KVType::F16, KVType::F32, KVType::I8, KVType::I16}) check_read_once({9, 3, 64, 16, type, 0, 0});
    check_sharings();
    check_future_is_unseen({9, 3, 64, 16, KVType::I8, 0, 0});
    check_future_is_unseen({4, 4, 40, 4, KVType::I8, 50, 30.0f});
    check_future_is_unseen({9, 3, 64, 16, KVType::I16, 0, 0});
    check_future_is_unseen({4, 4, 40, 4, KVType::I16, 50, 30.0f});
    check_future_is_unseen({9, 3, 64, 16, KVType::F16, 0, 0});
    check_future_is_unseen({4, 4, 40, 4, KVType::F32, 50, 0});
    return report("attention");
}
