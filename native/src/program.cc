// Building a program: buffers, checks of sizes, shares of threads. Running is in program_run.cc.
#include "headrace/program.h"

#include <algorithm>
#include <stdexcept>

#include "model_memory.h"
#include "program_barriers.h"
#include "program_claims.h"

namespace headrace {
namespace {

[[noreturn]] void fail(const std::string &message) { throw std::invalid_argument(message); }

void expect_width(const char *what, int64_t given, int64_t wanted) {
    if (given != wanted)
        fail(std::string(what) + " has " + std::to_string(given) + " columns, wanted " + std::to_string(wanted));
}

size_t bytes_of_rows(int32_t rows, int32_t ld) { return round_up(checked_product({size_t(rows), size_t(ld), 4}), kAlign); }

}  // namespace

const char *name_of(OpKind kind) {
    static const char *const names[] = {"embed", "rms_norm", "quantize", "matmul", "gated_matmul", "head_norm", "rope",
                                        "kv_write", "attention", "glu", "add", "select",
                                        "softcap", "copy"};
    return names[static_cast<int>(kind)];
}

Program::Program(std::shared_ptr<ThreadPool> pool, const Kernels *kernels, std::shared_ptr<KVMemory> kv,
                 const StepLimits &limits, size_t arena_bytes, size_t private_bytes)
    : pool_(std::move(pool)), kernels_(kernels), kv_(std::move(kv)), limits_(limits), arena_bytes_(arena_bytes),
      private_bytes_(round_up(private_bytes, 4096)) {
    if (!pool_ || !kernels_ || !kv_) fail("a program needs threads, kernels and KV memory");
    if (limits.max_tokens < 1 || limits.max_rows < 1 || limits.max_logits < 1 || limits.table_width < 1)
        fail("every limit of a program must be at least 1");
    if (int64_t(limits.table_width) * kv_->shape().block_size > INT32_MAX) fail("table_width * block_size is too large");
    arena_ = std::make_unique<Region>(arena_bytes);
}

Program::~Program() = default;

size_t Program::quant_bytes(int32_t rows, int32_t k, bool codes, bool rounded) {
    const size_t groups = checked_product({size_t(rows), size_t(k) / 32});
    size_t bytes = 0;
    if (codes) bytes += round_up(32 * groups, kAlign) + 3 * round_up(4 * groups, kAlign) + 2 * round_up(8 * groups, kAlign);
    if (rounded) bytes += round_up(checked_product({size_t(rows), rounded_stride(k), sizeof(float)}), kAlign);
    return bytes;
}

int32_t Program::add_buffer(const Buffer &buffer) {
    if (buffer.ld < 1 || buffer.offset % kAlign) fail("a buffer needs columns and an aligned place");
    const size_t bytes = bytes_of_rows(max_rows_of(buffer.rows), buffer.ld);
    if (buffer.offset > arena_bytes_ || bytes > arena_bytes_ - buffer.offset) fail("a buffer lies outside the arena");
    if (buffer.private_offset != kShared) {
        const size_t own = bytes_of_rows(kPrivateRows, buffer.ld);
        if (buffer.private_offset % kAlign || buffer.private_offset > private_bytes_ || own > private_bytes_ - buffer.private_offset)
            fail("a private buffer lies outside the threads' memory");
    }
    buffers_.push_back(buffer);
    return static_cast<int32_t>(buffers_.size()) - 1;
}

int32_t Program::add_quant_buffer(const QuantBuffer &buffer) {
    if (buffer.k < 32 || buffer.k % 32 || buffer.offset % kAlign) fail("quantized rows need whole groups of 32 columns");
    if (!buffer.codes && !buffer.rounded) fail("quantized rows need codes or rounded values");
    const size_t bytes = quant_bytes(max_rows_of(buffer.rows), buffer.k, buffer.codes, buffer.rounded);
    if (buffer.offset > arena_bytes_ || bytes > arena_bytes_ - buffer.offset) fail("quantized rows lie outside the arena");
    if (buffer.private_offset != kShared) {
        const size_t own = quant_bytes(kPrivateRows, buffer.k, buffer.codes, buffer.rounded);
        if (buffer.private_offset % kAlign || buffer.private_offset > private_bytes_ || own > private_bytes_ - buffer.private_offset)
            fail("private quantized rows lie outside the threads' memory");
    }
    quants_.push_back(buffer);
    return static_cast<int32_t>(quants_.size()) - 1;
}

int32_t Program::add_group(std::vector<std::shared_ptr<PackedMatrix>> parts) {
    MatrixGroup group;
    if (parts.empty()) fail("a group needs at least one matrix");
    for (const auto &part : parts) {
        if (!part) fail("a matrix is missing");
        if (group.k && group.k != part->view.k) fail("stacked matrices need equal widths");
        group.k = part->view.k;
        group.first.push_back(group.n);
        if (part->view.n > INT32_MAX - group.n) fail("stacked matrices are too large");
        group.n += part->view.n;
        const Layout layout = part->view.layout;
        (is_float_layout(layout) ? group.has_float : layout == Layout::BF16Pairs ? group.has_pairs : group.has_codes) = true;
    }
    group.parts = std::move(parts);
    groups_.push_back(std::move(group));
    return static_cast<int32_t>(groups_.size()) - 1;
}

Program::Rectangle Program::value(const Ref &ref) const {
    check_ref(ref);
    if (ref.buffer == kNone) fail("a value needs a buffer");
    const Buffer &buffer = buffers_[ref.buffer];
    if (buffer.private_offset != kShared) fail("threads may have a private value each; it cannot be seen from outside");
    return {reinterpret_cast<float *>(arena_->data() + buffer.offset) + ref.column, max_rows_of(buffer.rows), ref.width, buffer.ld};
}

Rows Program::rows_of(const Op &op) const {
    if (op.out.buffer != kNone) return buffers_[op.out.buffer].rows;
    if (op.quant != kNone) return quants_[op.quant].rows;
    return Rows::Tokens;
}

bool Program::writes_private(const Op &op) const {
    if (op.kind == OpKind::RmsNorm) return buffers_[op.out.buffer].private_offset != kShared;
    return op.kind == OpKind::Quantize && quants_[op.quant].private_offset != kShared;
}

void Program::check_ref(const Ref &ref) const {
    if (ref.buffer == kNone) return;
    if (ref.buffer < 0 || ref.buffer >= static_cast<int32_t>(buffers_.size())) fail("an operation names an unknown buffer");
    if (ref.column < 0 || ref.width < 1 || int64_t(ref.column) + ref.width > buffers_[ref.buffer].ld)
        fail("an operation goes past the columns of its buffer");
}

void Program::check_quant(const Op &op, int64_t width) const {
    if (op.quant == kNone) fail(std::string(name_of(op.kind)) + " lacks its quantized rows");
    expect_width("a quantized value", quants_[op.quant].k, width);
}

// The rows must hold what the parts of a group read.
void Program::check_reads(const MatrixGroup &group, int32_t quant) const {
    const QuantBuffer &rows = quants_[quant];
    if ((group.has_codes && !rows.codes) || (group.has_pairs && !rows.rounded)) fail("a product's quantized rows lack what its matrices read");
}

void Program::check_op(const Op &op, const FloatVector *vector) const {
    const bool keeps_rows = op.kind != OpKind::Select;
    for (const Ref *ref : {&op.a, &op.b, &op.out}) check_ref(*ref);
    for (const int32_t quant : {op.quant, op.input_quant})
        if (quant != kNone && (quant < 0 || quant >= static_cast<int32_t>(quants_.size()))) fail("an operation names unknown quantized rows");
    const auto expect_rows = [&](Rows rows) {
        if (keeps_rows && rows != rows_of(op)) fail(std::string(name_of(op.kind)) + " mixes rows of tokens and rows of logits");
    };
    for (const Ref *ref : {&op.a, &op.b, &op.out})
        if (ref->buffer != kNone) expect_rows(buffers_[ref->buffer].rows);
    for (const int32_t quant : {op.quant, op.input_quant})
        if (quant != kNone) expect_rows(quants_[quant].rows);
    const auto need = [&](const Ref &ref) { if (ref.buffer == kNone) fail(std::string(name_of(op.kind)) + " lacks an operand"); };
    const bool has_out = op.kind != OpKind::Quantize && op.kind != OpKind::KVWrite;
    if (has_out) need(op.out);
    switch (op.kind) {
        case OpKind::Embed:
            if (op.group < 0 || op.group >= static_cast<int32_t>(groups_.size())) fail("embed lacks its table");
            if (groups_[op.group].parts.size() != 1) fail("an embedding table is one matrix");
            expect_width("embed", op.out.width, groups_[op.group].k);
            if (rows_of(op) != Rows::Tokens) fail("embed makes rows of tokens");
            return;
        case OpKind::Matmul: case OpKind::GatedMatmul:
            check_matmul(op, vector);
            return;
        case OpKind::Quantize:
            need(op.a);
            check_quant(op, op.a.width);
            return;
        case OpKind::RmsNorm:
            need(op.a);
            expect_width("rms_norm", op.out.width, op.a.width);
            if (!vector) fail("rms_norm lacks its weight");
            expect_width("the weight of rms_norm", vector->size, op.a.width);
            if (op.quant != kNone) {
                check_quant(op, op.a.width);
                if ((quants_[op.quant].private_offset != kShared) != writes_private(op)) fail("a norm is private in all it writes or in nothing");
            }
            return;
        case OpKind::HeadNorm: case OpKind::Rope:
            check_heads(op);
            if (op.kind == OpKind::HeadNorm) {
                if (!vector) fail("head_norm lacks its weight");
                expect_width("the weight of head_norm", vector->size, op.head_size);
            }
            return;
        case OpKind::KVWrite: case OpKind::Attention:
            need(op.a);
            if (op.kind == OpKind::KVWrite) need(op.b);
            check_attention(op);
            return;
        case OpKind::Glu: case OpKind::Add:
            need(op.a);
            need(op.b);
            expect_width(name_of(op.kind), op.b.width, op.a.width);
            expect_width(name_of(op.kind), op.out.width, op.a.width);
            if (op.kind == OpKind::Glu && buffers_[op.a.buffer].ld != buffers_[op.b.buffer].ld) fail("glu needs halves with equal row distance");
            return;
        case OpKind::Select:
            need(op.a);
            expect_width("select", op.out.width, op.a.width);
            if (buffers_[op.a.buffer].rows != Rows::Tokens || buffers_[op.out.buffer].rows != Rows::Logits) fail("select goes from tokens to logits");
            return;
        case OpKind::Copy:
            need(op.a);
            expect_width("copy", op.out.width, op.a.width);
            return;
        case OpKind::Softcap:
            if (!(op.number > 0)) fail("a soft cap must be positive");
            return;
        case OpKind::kCount: fail("unknown operation");
    }
}

void Program::check_matmul(const Op &op, const FloatVector *vector) const {
    if (op.group < 0 || op.group >= static_cast<int32_t>(groups_.size())) fail("a product lacks its matrices");
    const MatrixGroup &group = groups_[op.group];
    if (op.a.buffer == kNone) fail("a product lacks its input");
    expect_width("the input of a product", op.a.width, group.k);
    if (group.has_quant() && op.kind == OpKind::Matmul) {
        check_quant(op, group.k);
        check_reads(group, op.quant);
    }
    if (vector) expect_width("a bias", vector->size, group.n);
    if (op.kind == OpKind::Matmul) expect_width("the result of a product", op.out.width, group.n);
    else check_gated(op);
}

void Program::check_gated(const Op &op) const {
    const MatrixGroup &group = groups_[op.group];
    if (group.has_quant()) {
        if (op.input_quant == kNone) fail("a product lacks its quantized input");
        expect_width("a quantized value", quants_[op.input_quant].k, group.k);
        check_reads(group, op.input_quant);
    }
    if (op.quant != kNone) check_quant(op, op.out.width);
    if (op.b.buffer == kNone) fail("a gated product lacks room for its halves");
    expect_width("the halves of a gated product", op.b.width, group.n);
    for (const int32_t column : {op.gate_column, op.up_column}) {
        bool fits = false;
        for (size_t i = 0; i < group.parts.size(); i++) {
            const int64_t from = int64_t(column) - group.first[i], to = from + op.out.width, n = group.parts[i]->view.n;
            fits = fits || (from >= 0 && to <= n && from % 16 == 0 && (to % 16 == 0 || to == n));
        }
        if (!fits) fail("the halves of a gated product must be whole panels of one matrix");
    }
}

void Program::check_heads(const Op &op) const {
    if (op.heads < 1 || op.head_size < 1) fail("heads and head size must be at least 1");
    expect_width(name_of(op.kind), op.out.width, int64_t(op.heads) * op.head_size);
    if (op.kind != OpKind::Rope) return;
    if (!op.angles.cosines || !op.angles.sines || op.angles.rows < 1) fail("rope lacks its angles");
    if (op.angles.half < 1 || 2 * int64_t(op.angles.half) > op.head_size) fail("rope rotates more dimensions than a head has");
}

void Program::check_attention(const Op &op) const {
    const KVMemory::Shape &shape = kv_->shape();
    const AttentionShape &attention = op.attention;
    if (op.layer < 0 || op.layer >= shape.layers) fail("the KV pool has no layer " + std::to_string(op.layer));
    if (attention.kv_heads != shape.kv_heads || attention.head_size != shape.head_size)
        fail("attention with " + std::to_string(attention.kv_heads) + " KV heads of " + std::to_string(attention.head_size) +
             " on a KV pool with " + std::to_string(shape.kv_heads) + " of " + std::to_string(shape.head_size));
    if (rows_of(op) != Rows::Tokens) fail("attention works on rows of tokens");
    if (op.kind == OpKind::KVWrite) {
        expect_width("keys", op.a.width, int64_t(shape.kv_heads) * shape.head_size);
        expect_width("values", op.b.width, int64_t(shape.kv_heads) * shape.head_size);
        return;
    }
    if (attention.heads < 1 || attention.heads % shape.kv_heads)
        fail(std::to_string(attention.heads) + " query heads are no multiple of " + std::to_string(shape.kv_heads) + " KV heads");
    if (attention.window < 0 || attention.softcap < 0) fail("window and soft cap of attention must not be negative");
    expect_width("queries", op.a.width, int64_t(attention.heads) * shape.head_size);
    expect_width("the result of attention", op.out.width, op.a.width);
}

void Program::add(Op op, std::shared_ptr<FloatVector> vector) {
    if (finished_) fail("the program is finished");
    check_op(op, vector.get());
    if (vector) {
        op.vector = vector->data();
        vectors_.push_back(std::move(vector));
    }
    if (op.kind == OpKind::Embed) vocab_ = std::min(vocab_, groups_[op.group].n);
    if (op.kind == OpKind::Rope) angle_rows_ = std::min(angle_rows_, op.angles.rows);
    ops_.push_back(std::move(op));
}

// Panels in order, cut where the bytes read so far pass a thread's share, at whole groups of maxima where these are made.
Shares Program::plan_shares(const Op &op, int threads) const {
    Shares result;
    const MatrixGroup &group = groups_[op.group];
    const int32_t unit = op.makes_maxima ? kMaximaGroup / 16 : 1;
    double total = 0, before = 0;
    for (const auto &part : group.parts) total += double(part->panels()) * part->view.panel_bytes;
    result.panels.assign(threads, {});
    for (size_t i = 0; i < group.parts.size(); i++) {
        const double bytes = group.parts[i]->view.panel_bytes;
        const int32_t panels = group.parts[i]->panels();
        const auto cut = [&](int thread) {
            const double at = (total * thread / threads - before) / bytes / unit;
            return std::min(panels, unit * static_cast<int32_t>(std::min<double>(panels, std::max(0.0, at + 0.5))));
        };
        for (int t = 0; t < threads; t++) {
            const int32_t begin = cut(t), end = t + 1 == threads ? panels : cut(t + 1);
            if (begin < end) result.panels[t].push_back({static_cast<int32_t>(i), begin, end});
        }
        before += bytes * panels;
    }
    return result;
}

// Every thread owns MLP columns in units of 32 (a group of the quantization), in both halves.
Shares Program::plan_gated_shares(const Op &op, int threads) const {
    Shares result;
    const MatrixGroup &group = groups_[op.group];
    const int32_t width = op.out.width;
    result.panels.assign(threads, {});
    result.columns.assign(threads, {0, 0});
    for (int t = 0; t < threads; t++) {
        int32_t begin, end;
        share_of((width + 31) / 32, t, threads, &begin, &end);
        begin = std::min(width, 32 * begin);
        end = std::min(width, 32 * end);
        result.columns[t] = {begin, end};
        if (begin == end) continue;
        for (const int32_t column : {op.gate_column, op.up_column})
            for (size_t i = 0; i < group.parts.size(); i++) {
                const int32_t from = column - group.first[i];
                if (from < 0 || from >= group.parts[i]->view.n) continue;
                result.panels[t].push_back({static_cast<int32_t>(i), (from + begin) / 16, (from + end + 15) / 16});
            }
    }
    return result;
}

// A product that makes the output, and that nothing changes afterwards, makes the maxima too.
void Program::mark_output() {
    Op *last = nullptr;
    for (Op &op : ops_)
        if (op.out.buffer == output_.buffer) last = &op;
    if (!last || last->kind != OpKind::Matmul || last->accumulate || groups_[last->group].parts.size() != 1) return;
    last->makes_maxima = last->out.column == 0 && last->out.width == output_.width;
}

// With many rows every thread does the same kind of share, so operations between two barriers are one stage of chunks.
void Program::plan_stages() {
    for (int32_t i = 0; i < static_cast<int32_t>(ops_.size()); i++) {
        if (i == 0 || ops_[i].barrier[0]) stages_.push_back({i, i});
        stages_.back().end = i + 1;
    }
    if (pool_->size() > 1 && pool_->size() <= kMaxClaimingThreads) claims_ = std::make_unique<ChunkClaims>(*pool_, stages_.size());
}

void Program::place_scratch() {
    size_t floats = 0;
    for (const Op &op : ops_)
        if (op.kind == OpKind::Attention)
            floats = std::max(floats, attention_scratch_floats(limits_.max_tokens, limits_.max_rows, op.attention.heads,
                                                               op.attention.head_size,
                                                               limits_.table_width * kv_->shape().block_size));
    const bool has_maxima = std::any_of(ops_.begin(), ops_.end(), [](const Op &op) { return op.makes_maxima; });
    const size_t own = private_bytes_ * pool_->size();
    const size_t maxima = has_maxima ? bytes_of_rows(limits_.max_logits, maxima_ld()) : 0;
    scratch_ = std::make_unique<Region>(own + maxima + checked_product({floats, 4}) + kAlign);
    if (has_maxima) maxima_ = reinterpret_cast<float *>(scratch_->data() + own);
    attention_scratch_ = reinterpret_cast<float *>(scratch_->data() + own + maxima);
}

void Program::finish(const Ref &output) {
    if (finished_) fail("the program is finished");
    check_ref(output);
    if (output.buffer == kNone || buffers_[output.buffer].rows != Rows::Logits || output.column != 0)
        fail("a program ends in a buffer of logits");
    output_ = output;
    mark_output();
    for (Op &op : ops_) {
        if (op.kind != OpKind::Matmul && op.kind != OpKind::GatedMatmul) continue;
        const auto plan = op.kind == OpKind::Matmul ? &Program::plan_shares : &Program::plan_gated_shares;
        op.shares = (this->*plan)(op, pool_->size());
        op.chunks = (this->*plan)(op, pool_->size() * kChunksPerThread);
    }
    place_scratch();
    shared_rows_.resize(size_t(limits_.max_rows));
    shared_keys_.resize(size_t(limits_.max_rows));
    shared_listed_.resize(size_t(limits_.max_rows));
    BarrierPlan(*this).place();
    plan_stages();
    finished_ = true;
}

size_t Program::num_barriers(int mode) const {
    return std::count_if(ops_.begin(), ops_.end(), [mode](const Op &op) { return op.barrier[mode & 3]; });
}

size_t Program::bytes() const { return arena_->size() + (scratch_ ? scratch_->size() : 0); }

std::vector<std::pair<std::string, double>> Program::timings() const {
    std::vector<std::pair<std::string, double>> result;
    for (int i = 0; i < static_cast<int>(OpKind::kCount); i++) result.emplace_back(name_of(static_cast<OpKind>(i)), seconds_[i]);
    return result;
}

}  // namespace headrace
