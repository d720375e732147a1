// Running a program: every thread walks the list. Few rows: shares are static, threads meet at barriers. Many rows: threads
// claim chunks, stage by stage.
#include <algorithm>
#include <chrono>

#include "headrace/program.h"
#include "model_memory.h"
#include "program_claims.h"

namespace headrace {

constexpr int32_t kMaxRowsInBlocks = 64;    // with more, their activations would be read anew from far for every block

// One thread's walk through one step.
class Executor {
  public:
    // Share `thread` of `threads`. `claimed`: shares are chunks that any thread may run, so nothing is private.
    Executor(Program &program, const StepInputs &inputs, int thread, int threads, bool claimed)
        : p_(program), in_(inputs), k_(*program.kernels_), thread_(thread), threads_(threads), claimed_(claimed),
          mine_(claimed ? nullptr : program.scratch_->data() + program.private_bytes_ * thread) {}

    void run(const Op &op) {
        rows_ = rows(p_.rows_of(op));
        if (rows_ == 0) return;
        switch (op.kind) {
            case OpKind::Embed: return embed(op);
            case OpKind::RmsNorm: return rms_norm(op);
            case OpKind::Quantize: return quantize(op);
            case OpKind::Matmul: return matmul(op);
            case OpKind::GatedMatmul: return gated_matmul(op);
            case OpKind::HeadNorm: return head_norm(op);
            case OpKind::Rope: return rope(op);
            case OpKind::KVWrite: return kv_write(op);
            case OpKind::Attention: return attention(op);
            case OpKind::Glu: return glu(op);
            case OpKind::Add: return add(op);
            case OpKind::Select: return select(op);
            case OpKind::Softcap: return softcap(op);
            case OpKind::Copy: return copy(op);
            case OpKind::kCount: return;
        }
    }

  private:
    struct Range { int32_t begin, end; };

    int32_t rows(Rows domain) const { return domain == Rows::Tokens ? in_.batch.num_tokens : in_.num_logits; }
    bool few() const { return !claimed_ && rows_ <= kPrivateRows; }
    Range my_rows() const {
        Range range;
        share_of(rows_, thread_, threads_, &range.begin, &range.end);
        return range;
    }
    const Shares &shares(const Op &op) const { return claimed_ ? op.chunks : op.shares; }
    size_t ld(const Ref &ref) const { return p_.buffers_[ref.buffer].ld; }
    float *at(const Ref &ref) const {
        const Buffer &buffer = p_.buffers_[ref.buffer];
        const bool own = !claimed_ && buffer.private_offset != kShared && rows(buffer.rows) <= kPrivateRows;
        uint8_t *base = own ? mine_ + buffer.private_offset : p_.arena_->data() + buffer.offset;
        return reinterpret_cast<float *>(base) + ref.column;
    }
    QuantRows quant(int32_t id) const {
        const QuantBuffer &buffer = p_.quants_[id];
        const bool own = !claimed_ && buffer.private_offset != kShared && rows(buffer.rows) <= kPrivateRows;
        uint8_t *place = own ? mine_ + buffer.private_offset : p_.arena_->data() + buffer.offset;
        const int32_t capacity = own ? kPrivateRows : p_.max_rows_of(buffer.rows);
        const size_t groups = size_t(capacity) * (buffer.k / 32);
        const auto take = [&place](size_t bytes) {
            uint8_t *data = place;
            place += round_up(bytes, kAlign);
            return data;
        };
        QuantRows result = {};
        result.rows = rows(buffer.rows);
        result.k = buffer.k;
        if (buffer.rounded) result.rounded = reinterpret_cast<float *>(take(4 * size_t(capacity) * rounded_stride(buffer.k)));
        if (!buffer.codes) return result;
        result.q = reinterpret_cast<int8_t *>(take(32 * groups));
        result.scale = reinterpret_cast<float *>(take(4 * groups));
        result.scaled_sum = reinterpret_cast<float *>(take(4 * groups));
        result.scaled_sum16 = reinterpret_cast<float *>(take(8 * groups));
        result.start = reinterpret_cast<int32_t *>(take(4 * groups));
        result.start16 = reinterpret_cast<int32_t *>(take(8 * groups));
        return result;
    }
    // Columns [begin, end) of one row of quantized rows, both multiples of 32 or the end.
    QuantRows part_of_row(const QuantRows &whole, size_t row, int32_t begin, int32_t end) const {
        const size_t at = (row * whole.k + begin) / 32;
        QuantRows part = {};
        part.rows = 1;
        part.k = end - begin;
        if (whole.rounded) part.rounded = whole.rounded + row * rounded_stride(whole.k) + k_.rounded_words * begin / 2;
        if (whole.q)
            part = {1, end - begin, whole.q + 32 * at, whole.scale + at, whole.scaled_sum + at, whole.scaled_sum16 + 2 * at,
                    whole.start + at, whole.start16 + 2 * at, part.rounded};
        return part;
    }

    void embed(const Op &op) {
        const Range r = my_rows();
        k_.embed(&p_.groups_[op.group].parts[0]->view, in_.batch.token_ids, r.begin, r.end, op.number, at(op.out), ld(op.out));
    }
    void rms_norm(const Op &op) {
        const Range r = few() && p_.writes_private(op) ? Range{0, rows_} : my_rows();
        k_.rms_norm(at(op.a), ld(op.a), op.vector, op.number, op.a.width, r.begin, r.end, at(op.out), ld(op.out));
        if (op.quant == kNone) return;
        const QuantRows q = quant(op.quant);
        k_.quantize_rows(at(op.out), ld(op.out), &q, r.begin, r.end);
    }
    void quantize(const Op &op) {
        const Range r = few() && p_.writes_private(op) ? Range{0, rows_} : my_rows();
        const QuantRows q = quant(op.quant);
        k_.quantize_rows(at(op.a), ld(op.a), &q, r.begin, r.end);
    }
    void multiply(const Op &op, int32_t quant_id, const Ref &out) {
        const MatrixGroup &group = p_.groups_[op.group];
        QuantRows q;
        if (group.has_quant()) q = quant(quant_id);
        for (const Segment &s : shares(op).panels[thread_]) {
            const int32_t first = group.first[s.part];
            const MatmulArgs args = {&group.parts[s.part]->view, at(op.a), ld(op.a), group.has_quant() ? &q : nullptr,
                                     op.vector ? op.vector + first : nullptr, at(out) + first, ld(out), 0, rows_,
                                     s.panel_begin, s.panel_end, op.accumulate};
            if (op.makes_maxima) multiply_with_maxima(args);
            else k_.matmul(&args);
        }
    }
    // Blocks of columns whose results are still in the first cache when their maxima are looked for.
    void multiply_with_maxima(MatmulArgs args) {
        constexpr int32_t kGroupPanels = kMaximaGroup / 16, kFloats = 6 << 10;
        const int32_t end = args.panel_end, step = std::max(1, kFloats / kMaximaGroup / rows_) * kGroupPanels;
        for (; args.panel_begin < end; args.panel_begin = args.panel_end) {
            args.panel_end = rows_ > kMaxRowsInBlocks ? end : std::min(end, args.panel_begin + step);
            k_.matmul(&args);
            k_.group_maxima(args.y, args.ldy, args.w->n, 0, rows_, args.panel_begin / kGroupPanels,
                            (args.panel_end + kGroupPanels - 1) / kGroupPanels, p_.maxima_, size_t(p_.maxima_ld()));
        }
    }
    void matmul(const Op &op) { multiply(op, op.quant, op.out); }
    void gated_matmul(const Op &op) {
        multiply(op, op.input_quant, op.b);
        const auto [begin, end] = shares(op).columns[thread_];
        if (begin == end) return;
        const float *halves = at(op.b);
        float *y = at(op.out);
        k_.glu(halves + op.gate_column, halves + op.up_column, ld(op.b), y, ld(op.out), op.activation, 0, rows_, begin, end);
        if (op.quant == kNone) return;
        const QuantRows whole = quant(op.quant);
        for (int32_t row = 0; row < rows_; row++) {
            const QuantRows part = part_of_row(whole, row, begin, end);
            k_.quantize_rows(y + row * ld(op.out) + begin, ld(op.out), &part, 0, 1);
        }
    }
    // f(rows, first head, heads): split by rows, or by heads when rows are few
    template <class F> void by_rows_or_heads(int32_t all_heads, F f) {
        if (!few()) return f(my_rows(), 0, all_heads);
        Range heads;
        share_of(all_heads, thread_, threads_, &heads.begin, &heads.end);
        if (heads.begin < heads.end) f(Range{0, rows_}, heads.begin, heads.end - heads.begin);
    }
    void head_norm(const Op &op) {
        by_rows_or_heads(op.heads, [&](Range r, int32_t first, int32_t heads) {
            k_.head_norm(at(op.out) + size_t(first) * op.head_size, ld(op.out), op.vector, op.number, heads, op.head_size,
                         r.begin, r.end);
        });
    }
    void rope(const Op &op) {
        by_rows_or_heads(op.heads, [&](Range r, int32_t first, int32_t heads) {
            k_.rope(at(op.out) + size_t(first) * op.head_size, ld(op.out), op.angles.cosines, op.angles.sines, in_.rope_rows,
                    heads, op.head_size, op.angles.half, r.begin, r.end);
        });
    }
    void kv_write(const Op &op) {
        const KVLayer layer = p_.kv_->layer(op.layer);
        by_rows_or_heads(op.attention.kv_heads, [&](Range r, int32_t first, int32_t heads) {
            k_.kv_write(&in_.batch, &layer, at(op.a), ld(op.a), at(op.b), ld(op.b), r.begin, r.end, first, first + heads);
        });
    }
    void attention(const Op &op) {
        const KVLayer layer = p_.kv_->layer(op.layer);
        const AttentionShape &shape = op.attention;
        const AttentionArgs args = {&in_.batch, &layer, at(op.a), ld(op.a), at(op.out), ld(op.out), shape.heads,
                                    shape.scale, shape.softcap, shape.window, p_.attention_scratch_, p_.attention_arrivals_,
                                    p_.pool_->size()};
        k_.attention(&args, thread_, threads_);
    }
    void glu(const Op &op) {
        Range r = my_rows(), columns = {0, op.a.width};
        if (few()) {
            r = {0, rows_};
            share_of((op.a.width + 31) / 32, thread_, threads_, &columns.begin, &columns.end);
            columns = {std::min(op.a.width, 32 * columns.begin), std::min(op.a.width, 32 * columns.end)};
        }
        k_.glu(at(op.a), at(op.b), ld(op.a), at(op.out), ld(op.out), op.activation, r.begin, r.end, columns.begin, columns.end);
    }
    void add(const Op &op) {
        const Range r = my_rows();
        k_.add(at(op.a), ld(op.a), at(op.b), ld(op.b), at(op.out), ld(op.out), op.a.width, r.begin, r.end);
    }
    void softcap(const Op &op) {
        const Range r = my_rows();
        k_.softcap(at(op.out), ld(op.out), op.number, op.out.width, r.begin, r.end);
    }
    void select(const Op &op) {
        const Range r = my_rows();
        for (int32_t row = r.begin; row < r.end; row++) copy_row(op, in_.logit_rows[row], row);
    }
    void copy(const Op &op) {
        const Range r = my_rows();
        for (int32_t row = r.begin; row < r.end; row++) copy_row(op, row, row);
    }
    void copy_row(const Op &op, size_t from, size_t to) {
        const float *source = at(op.a) + from * ld(op.a);
        std::copy(source, source + op.a.width, at(op.out) + to * ld(op.out));
    }

    Program &p_;
    const StepInputs &in_;
    const Kernels &k_;
    const int thread_, threads_;
    const bool claimed_;
    uint8_t *const mine_;
    int32_t rows_ = 0;
};

namespace {

class Stopwatch {
  public:
    explicit Stopwatch(bool on) : on_(on), last_(on ? Clock::now() : Clock::time_point()) {}
    // Add the time since the last lap.
    void lap(double *seconds) {
        if (!on_) return;
        const auto now = Clock::now();
        *seconds += std::chrono::duration<double>(now - last_).count();
        last_ = now;
    }

  private:
    using Clock = std::chrono::steady_clock;
    const bool on_;
    Clock::time_point last_;
};

}  // namespace

void Program::run(const StepInputs &given) {
    std::lock_guard<std::mutex> one_step(one_step_);
    StepInputs inputs = given;
    inputs.batch.shared = share_prefixes(given.batch, kv_->shape().block_size, shared_rows_.data(), shared_keys_.data(),
                                         shared_listed_.data());
    if (!claims_ || inputs.batch.num_tokens <= kPrivateRows) {
        pool_->run([&](int thread, int threads) { run_shares(inputs, thread, threads); });
        return;
    }
    for (size_t i = 0; i < stages_.size(); i++) claims_->open(i);
    pool_->run([&](int thread, int) { run_claimed(inputs, thread); });
}

void Program::run_shares(const StepInputs &inputs, int thread, int threads) {
    const int mode = (inputs.batch.num_tokens <= kPrivateRows) + 2 * (inputs.num_logits <= kPrivateRows);
    Executor executor(*this, inputs, thread, threads, false);
    Stopwatch watch(timing_ && thread == 0);
    for (const Op &op : ops_) {
        if (op.barrier[mode]) pool_->barrier();
        executor.run(op);
        watch.lap(&seconds_[static_cast<int>(op.kind)]);
    }
}

void Program::run_claimed(const StepInputs &inputs, int thread) {
    Stopwatch watch(timing_ && thread == 0);
    const int chunks = claims_->chunks();
    for (size_t i = 0; i < stages_.size(); i++) {
        int done = 0;
        for (int chunk; (chunk = claims_->take(i, thread)) >= 0; done++) {
            Executor executor(*this, inputs, chunk, chunks, true);
            for (int32_t op = stages_[i].begin; op < stages_[i].end; op++) {
                executor.run(ops_[op]);
                watch.lap(&seconds_[static_cast<int>(ops_[op].kind)]);
            }
        }
        claims_->done(i, done);
        claims_->wait(i);
        watch.lap(&seconds_[static_cast<int>(ops_[stages_[i].begin].kind)]);
    }
}

const float *Program::output() const {
    return reinterpret_cast<const float *>(arena_->data() + buffers_[output_.buffer].offset) + output_.column;
}

}  // namespace headrace
