// The step program: a flat list of operations over planned buffers, run by all threads of a pool.
//
// Rows are those of the step's tokens (T) or of the wanted logits (S). A buffer holds [rows][ld] floats at a fixed place
// of one arena; the planner may give the same place to buffers whose lives do not meet. `finish` derives from what every
// operation reads and writes, and from how its work is shared, where threads must meet: nothing else places barriers.
//
// Few rows (<= kPrivateRows): a private norm or quantization is done by every thread for itself, which is cheaper
// than a barrier, and each thread has a fixed share of every operation.
// More rows: the operations between two barriers are a stage of chunks that threads claim (program_claims.h), so a thread
// that lost its core holds up the others for the chunk it was in at most. Results are the same bits either way.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "headrace/kernels.h"
#include "headrace/threads.h"

namespace headrace {

struct PackedMatrix;
struct FloatVector;
class KVMemory;
class Region;
class ChunkClaims;

constexpr int32_t kPrivateRows = 4;
constexpr int32_t kNone = -1;

enum class Rows : int32_t { Tokens = 0, Logits = 1 };

// Columns [column, column + width) of a buffer.
struct Ref { int32_t buffer = kNone, column = 0, width = 0; };

// Offsets are bytes: into the arena, and into each thread's private memory (kShared: the buffer has no private copies).
constexpr size_t kShared = SIZE_MAX;
struct Buffer { size_t offset; int32_t ld; Rows rows; size_t private_offset; };
// Rows for products that do not read floats: int8 codes, values rounded to bfloat16, or both (QuantRows).
struct QuantBuffer { size_t offset; int32_t k; Rows rows; size_t private_offset; bool codes = true, rounded = false; };

enum class OpKind : int32_t {
    Embed, RmsNorm, Quantize, Matmul, GatedMatmul, HeadNorm, Rope, KVWrite, Attention,
    Glu, Add, Select, Softcap, Copy, kCount
};
const char *name_of(OpKind kind);

// Matrices stacked along their outputs; `first[i]` is the first column of part i.
struct MatrixGroup {
    std::vector<std::shared_ptr<PackedMatrix>> parts;
    std::vector<int32_t> first;
    int32_t n = 0, k = 0;
    bool has_float = false, has_codes = false, has_pairs = false;      // what its parts read
    bool has_quant() const { return has_codes || has_pairs; }
};

// Panels of one part, the share of one thread.
struct Segment { int32_t part, panel_begin, panel_end; };

// What each thread, or each chunk, computes of a product.
struct Shares {
    std::vector<std::vector<Segment>> panels;
    std::vector<std::pair<int32_t, int32_t>> columns;   // gated matmul: MLP columns
};

struct AttentionShape {
    int32_t heads, kv_heads, head_size, window;
    float scale, softcap;
};

struct AngleTable {
    const float *cosines, *sines;       // [rows][half], owned by the caller, alive as long as the program
    int32_t rows, half;
};

struct Op {
    OpKind kind;
    Ref a, b, out;                      // inputs and result; b: values, second addend, up half, both halves (gated)
    int32_t quant = kNone;              // quantized rows read (matmul) or written (norm, quantize, gated matmul)
    int32_t input_quant = kNone;        // gated matmul: the quantized rows it reads
    int32_t group = kNone;              // matrices
    const float *vector = nullptr;      // norm weight or bias
    float number = 0;                   // eps, scale or cap
    int32_t heads = 0, head_size = 0, layer = 0;
    int32_t activation = 0;
    int32_t gate_column = 0, up_column = 0;             // gated matmul: the halves in b
    bool accumulate = false;            // matmul: add to `out` what was there
    bool makes_maxima = false;          // matmul whose result is the output: also the maxima of its groups of columns
    AngleTable angles = {nullptr, nullptr, 0, 0};
    AttentionShape attention = {0, 0, 0, 0, 0, 0};
    Shares shares, chunks;              // products: per thread, and per chunk that any thread may claim
    bool barrier[4] = {true, true, true, true};         // before the operation, by (few tokens) + 2 * (few logits)
};

struct StepLimits { int32_t max_tokens, max_rows, max_logits, table_width; };

// Inputs of a step; sizes are those of the caller's arrays.
struct StepInputs {
    Batch batch;
    const int32_t *rope_rows;           // [T]
    const int32_t *logit_rows;          // [S]
    int32_t num_logits;
};

class Program {
  public:
    Program(std::shared_ptr<ThreadPool> pool, const Kernels *kernels, std::shared_ptr<KVMemory> kv,
            const StepLimits &limits, size_t arena_bytes, size_t private_bytes);
    ~Program();

    // Building. All sizes are checked: std::invalid_argument names what is wrong.
    int32_t add_buffer(const Buffer &buffer);
    int32_t add_quant_buffer(const QuantBuffer &buffer);
    int32_t add_group(std::vector<std::shared_ptr<PackedMatrix>> parts);
    void add(Op op, std::shared_ptr<FloatVector> vector);
    void finish(const Ref &output);

    // Running. check() throws std::invalid_argument; run() needs checked inputs and allocates nothing.
    void check(const StepInputs &inputs) const;
    void run(const StepInputs &inputs);
    const float *output() const;
    // The maxima of each 64 columns of the output (Kernels::group_maxima), rows of maxima_ld() floats; null: not made.
    const float *maxima() const { return maxima_; }
    int32_t maxima_ld() const { return (output_.width + kMaximaGroup - 1) / kMaximaGroup; }
    int32_t output_ld() const { return buffers_[output_.buffer].ld; }
    int32_t output_width() const { return output_.width; }
    // A value between runs, rows of `ld` floats: inputs are written before a run, results read after it. The plan of memory must
    // keep it apart from what runs before or after it. Throws std::invalid_argument.
    struct Rectangle { float *data; int32_t rows, width, ld; };
    Rectangle value(const Ref &ref) const;
    const StepLimits &limits() const { return limits_; }

    // Seconds of thread 0 per kind of operation, waiting included; off at first.
    void set_timing(bool on) { timing_ = on; }
    std::vector<std::pair<std::string, double>> timings() const;
    size_t num_ops() const { return ops_.size(); }
    size_t num_barriers(int mode) const;
    size_t bytes() const;

    static size_t quant_bytes(int32_t rows, int32_t k, bool codes, bool rounded);

  private:
    friend class BarrierPlan;
    friend class Executor;
    int32_t max_rows_of(Rows rows) const { return rows == Rows::Tokens ? limits_.max_tokens : limits_.max_logits; }
    Rows rows_of(const Op &op) const;
    bool writes_private(const Op &op) const;    // a norm or quantization whose results have private copies
    void check_ref(const Ref &ref) const;
    void check_quant(const Op &op, int64_t width) const;
    void check_reads(const MatrixGroup &group, int32_t quant) const;
    void check_op(const Op &op, const FloatVector *vector) const;
    void check_matmul(const Op &op, const FloatVector *vector) const;
    void check_gated(const Op &op) const;
    void check_heads(const Op &op) const;
    void check_attention(const Op &op) const;
    void check_row_lists(const StepInputs &inputs) const;
    void check_sequences(const Batch &batch) const;
    Shares plan_shares(const Op &op, int count) const;
    Shares plan_gated_shares(const Op &op, int count) const;
    void mark_output();
    void plan_stages();
    void run_shares(const StepInputs &inputs, int thread, int threads);
    void run_claimed(const StepInputs &inputs, int thread);
    void place_scratch();

    std::shared_ptr<ThreadPool> pool_;
    const Kernels *kernels_;
    std::shared_ptr<KVMemory> kv_;
    StepLimits limits_;
    size_t arena_bytes_;
    std::unique_ptr<Region> arena_, scratch_;
    std::vector<Buffer> buffers_;
    std::vector<QuantBuffer> quants_;
    std::vector<MatrixGroup> groups_;
    std::vector<Op> ops_;
    struct Stage { int32_t begin, end; };
    std::vector<Stage> stages_;         // of many rows: operations between two barriers
    std::unique_ptr<ChunkClaims> claims_;    // null: shares are static for many rows too
    std::mutex one_step_;
    std::vector<std::shared_ptr<FloatVector>> vectors_;
    Ref output_;
    int32_t vocab_ = INT32_MAX;         // smallest embedding table
    int32_t angle_rows_ = INT32_MAX;    // smallest angle table
    bool finished_ = false, timing_ = false;
    size_t private_bytes_ = 0;          // of one thread
    std::vector<int32_t> shared_rows_, shared_keys_;        // memory of share_prefixes
    std::vector<uint8_t> shared_listed_;
    float *attention_scratch_ = nullptr, *maxima_ = nullptr;
    uint32_t attention_arrivals_[kAttentionShares] = {};
    double seconds_[static_cast<int>(OpKind::kCount)] = {};
};

}  // namespace headrace
