// The seam between the step program and the kernels: plain argument structs and one table of functions per instruction set.
//
// Contracts that every function of the table keeps:
//  - No allocation, no exceptions, no global state; arguments are checked by the caller (bind/).
//  - The order of every reduction depends on the shapes and on a row's own position only: never on how many rows are
//    computed together, on the neighbours, or on the share [begin, end) a thread was given.
//  - Vectors are handled in logical groups of eight floats with fused multiply-add on every instruction set, so all sets
//    give the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

namespace headrace {

// How a weight matrix lies in memory. Quantized layouts are panels of 16 output rows x 32 columns ("step").
enum class Layout : int32_t {
    F32 = 0,    // panel [K][16] float
    F16 = 1,    // panel [K][16] half
    BF16 = 2,   // panel [K][16] bfloat16
    Q8 = 3,     // 8 bits, groups of 32, f16 scale                               (Q8_0)
    Q4 = 4,     // 4 bits centred at 8, groups of 32, f16 scale                  (Q4_0)
    Q4M = 5,    // 4 bits, groups of 32, f16 scale and f16 minimum               (Q4_1)
    Q5 = 6,     // 5 bits centred at 16, groups of 32, f16 scale                 (Q5_0)
    Q5M = 7,    // 5 bits, groups of 32, f16 scale and f16 minimum               (Q5_1)
    Q6K = 8,    // 6 bits centred at 32, groups of 16, int8 sub-scale, f16 super-scale per 256   (Q6_K)
    Q4K = 9,    // 4 bits, groups of 32, u8 sub-scale and sub-minimum, f16 pair per 256          (Q4_K)
    Q5K = 10,   // 5 bits, groups of 32, u8 sub-scale and sub-minimum, f16 pair per 256          (Q5_K)
    Q3K = 11,   // 3 bits centred at 4, groups of 16, int8 sub-scale, f16 super-scale per 256    (Q3_K)
    Q2K = 12,   // 2 bits, groups of 16, u8 sub-scale and sub-minimum, f16 pair per 256          (Q2_K)
    BF16Pairs = 13,     // panel [K/2][16][2] bfloat16; activations are rounded to bfloat16, too (kernels/matmul_float.cc)
};

// A packed weight matrix W [n, k]. Panels are contiguous; n is padded to a multiple of 16 with zero rows.
struct Matrix {
    Layout layout;
    int32_t n, k;               // true sizes
    const uint8_t *data;        // 64-byte aligned
    size_t panel_bytes;         // distance between panels
};

// Layout BF16Pairs takes numbers below this magnitude for zero. Products of two others are multiples of 2^-126, and so are
// their sums: none is subnormal, and instructions that flush subnormal numbers give the same as those that do not.
constexpr float kLeastBfloat = 0x1p-56f;

// Rows of activations as products want them: quantized to int8, symmetric, groups of 32 (the quantizer never makes -128),
// and rounded to bfloat16. What nobody wants is null: `q` and all that follow it, or `rounded`.
struct QuantRows {
    int32_t rows, k;            // k is a multiple of 32
    int8_t *q;                  // [rows][k]
    float *scale;               // [rows][k/32]
    float *scaled_sum;          // [rows][k/32]  scale * sum(q)
    float *scaled_sum16;        // [rows][k/16]  scale * sum(q) of each half group
    int32_t *start;             // [rows][k/32]  -8 * sum(q), start of the integer sums of centred weights: AVX-512 one
                                //               int32, else the sums of k % 4 < 2 and k % 4 >= 2 as a pair of int16
    int32_t *start16;           // [rows][k/16]  the same per 16 values
    float *rounded = nullptr;   // [rows][rounded_stride(k)]  values rounded to bfloat16: as floats; with AVX512_BF16 k/2
                                //               pairs, the even value in the low half
};

// Words between rounded rows: never a multiple of 4 KB, else the rows of a tile would compete for one set of the first cache.
static inline size_t rounded_stride(int32_t k) { return (size_t)k + (k % 1024 ? 0 : 16); }

// y[m][0..n) for rows [row_begin, row_end) and panels [panel_begin, panel_end): (accumulate ? y : 0) + x W^T + bias.
struct MatmulArgs {
    const Matrix *w;
    const float *x; size_t ldx;         // float rows, used by float layouts; ldx in floats
    const QuantRows *qx;                // quantized or rounded rows, used by the others
    const float *bias;                  // [n] or null
    float *y; size_t ldy;               // ldy >= n; columns past n are not written
    int32_t row_begin, row_end, panel_begin, panel_end;
    int32_t accumulate;
};

// Rows that decode and have leading blocks in common, so that attention can read them once for all (share_prefixes).
struct SharedPrefixes {
    int32_t count = 0;                  // rows that share, 0 = none
    const int32_t *rows = nullptr;      // [count] those rows, ordered so that neighbours have most in common
    const int32_t *common = nullptr;    // [count] leading keys that rows[i] shares with rows[i + 1], whole chunks; last 0
    const uint8_t *listed = nullptr;    // [num_rows] 1 = the row is one of `rows`
};

// One step's rows, for attention: row r has queries [query_start[r], query_start[r+1]) and key_len[r] keys in its table.
struct Batch {
    int32_t num_rows, num_tokens;
    const int32_t *token_ids;           // [T]
    const int32_t *positions;           // [T] absolute positions
    const int32_t *row_of;              // [T] row of each token
    const int32_t *query_start;         // [R+1]
    const int32_t *key_len;             // [R], keys visible to the row's last query (this step's included)
    const int32_t *tables; int32_t table_width;   // [R][table_width] block ids
    SharedPrefixes shared = {};         // may be left empty: results are the same bits
};

enum class KVType : int32_t { F16 = 0, F32 = 1, I8 = 2, I16 = 3 };

// KV memory of one layer. A block of `block_size` tokens holds, per KV head, units of 16 tokens; a block that is not a
// multiple of 16 holds one unit of its own size. A unit of P tokens:
//   K dim-major [head_size][P], then V token-major [P][head_size]
//   I8 and I16: scales of K [P], then scales of V [P], both bfloat16; a value is code * scale
//   I16: numbers that are multiplied together lie together: K [head_size / 2][P][2], V [P / 2, rounded up][head_size][2]
// Units of 16 are padded to a multiple of 64 bytes (F16 and F32 are already), so no row of V straddles more cache lines
// than it must; other units are not padded. Address of (block, head, unit) =
// data + ((block * kv_heads + head) * units + unit) * unit_bytes.
//
// I8: one scale per token and KV head for K and one for V. K is rotated first: H k on runs of `rotation` dims, H the
// Hadamard matrix with entries +-1 (kernels/attention_load.h). Codes are in [-127, 127]: scale = max |x| / 127 rounded
// up to bfloat16 (it has the range of a float, and a step needs no more precision), code = rint(x * (1 / scale)). A head
// with a NaN or an infinity has scale NaN and codes 0; one whose maximum is below 2^-100 is zero.
//
// I8 keys may be stored less a shift, one vector per kShiftSpan positions [spans][kv_heads][head_size] (the last one
// holds beyond its end): a constant that is common to all keys, such as a bias that rotary embeddings turn slowly, would
// otherwise set the scale. Attention adds q . shift to the maximum of a span's partial softmax, which is exact.
constexpr int32_t kShiftSpan = 512;

// I16: one scale per token and KV head for K and one for V, bfloat16 rounded up from largest * step with largest = max |x|:
//   K  step = max(norm / 46300, 1 / 32766), norm = Euclidean norm of x / largest: products of codes stay below 2^31
//   V  step = 1 / 16383: room for the weights of a chunk (kernels/attention_pairs.h)
// code = rint(x * (1 / scale)). NaN, infinities and heads below 2^-100 as in I8.

struct KVLayer {
    KVType type;
    int32_t block_size, kv_heads, head_size;
    uint8_t *data;
    const float *key_shifts = nullptr;
    int32_t shift_spans = 0;
};

static inline const float *key_shift_of(const KVLayer &kv, int32_t span, int32_t kv_head) {
    const int32_t at = span < kv.shift_spans ? span : kv.shift_spans - 1;
    return kv.key_shifts + ((size_t)at * (size_t)kv.kv_heads + (size_t)kv_head) * (size_t)kv.head_size;
}

// Where the parts of a unit lie, in bytes from its start.
struct KVUnit {
    int32_t tokens, per_block, value_bytes, rotation;       // rotation: dims that K is rotated over, 1 = not
    bool paired;                                            // I16
    size_t values, key_scales, value_scales, bytes;         // without scales, key_scales = value_scales = bytes
};

// Where value d of K or V of a token lies, in values from the unit's start (K) or from its V.
static inline size_t key_index(const KVUnit &u, int32_t token, int32_t d) {
    return u.paired ? (size_t)(d / 2 * u.tokens + token) * 2 + (size_t)(d % 2) : (size_t)d * (size_t)u.tokens + (size_t)token;
}
static inline size_t value_index(const KVUnit &u, int32_t token, int32_t d, int32_t head_size) {
    return u.paired ? ((size_t)(token / 2) * (size_t)head_size + (size_t)d) * 2 + (size_t)(token % 2)
                    : (size_t)token * (size_t)head_size + (size_t)d;
}

// Internal linkage: sources built for several instruction sets must not share a copy.
static inline KVUnit kv_unit(KVType type, int32_t block_size, int32_t head_size) {
    KVUnit u = {};
    u.tokens = block_size % 16 == 0 ? 16 : block_size;
    u.per_block = block_size / u.tokens;
    u.value_bytes = type == KVType::F32 ? 4 : type == KVType::I8 ? 1 : 2;
    u.paired = type == KVType::I16;
    u.rotation = type == KVType::I8 ? head_size & -head_size : 1;
    u.values = (size_t)u.tokens * (size_t)head_size * (size_t)u.value_bytes;
    u.key_scales = u.value_scales = u.bytes = 2 * u.values;
    if (type != KVType::I8 && type != KVType::I16) return u;
    if (u.paired) u.key_scales += (size_t)(u.tokens % 2) * (size_t)head_size * 2;
    u.value_scales = u.key_scales + 2 * (size_t)u.tokens;
    u.bytes = u.value_scales + 2 * (size_t)u.tokens;
    if (u.tokens == 16) u.bytes = (u.bytes + 63) / 64 * 64;
    return u;
}

constexpr int32_t kAttentionChunk = 64;      // keys of one online-softmax step
constexpr int32_t kAttentionSplit = 512;     // keys of one partial softmax
constexpr int32_t kAttentionShares = 64;     // more threads or chunks than this stay idle in attention

struct AttentionArgs {
    const Batch *batch;
    const KVLayer *kv;
    const float *q; size_t ldq;         // [T] rows of heads * head_size floats
    float *out; size_t ldo;             // [T] rows of heads * head_size floats
    int32_t heads;
    float scale, softcap;               // softcap 0 = none: s = softcap * tanh(s / softcap)
    int32_t window;                     // 0 = full; else a query at p sees keys in (p - window, p]
    float *scratch;                     // attention_scratch_floats(...) floats, shared by all threads
    uint32_t *arrivals;                 // [kAttentionShares] zeros, which they are again when all shares are done
    int32_t workers = 0;                // threads at work when shares are more than threads (claimed chunks); 0: as many
};

constexpr int32_t kMaximaGroup = 64;         // columns of logits that have one maximum in common

struct SampleArgs {                     // one row of logits -> one token; see compute/sampling for the meaning
    const float *logits; int32_t vocab;
    const float *maxima;                // [ceil(vocab / 64)] as group_maxima makes them, or null: looked for here
    float temperature; int32_t top_k; float top_p, min_p;
    float repetition, presence, frequency;
    const int32_t *seen_ids; const int32_t *seen_counts; int32_t num_seen;   // count = times in the output (0: prompt only)
    const int32_t *bias_ids; const float *bias_values; int32_t num_bias;     // added; -inf bans
    const uint32_t *allowed;            // bit mask of vocab bits or null
    uint64_t seed; int32_t position;    // noise = f(seed, position, token id)
    int32_t num_logprobs;               // -1: none; k >= 0: the token's own log-probability and the k best
    float *scratch;                     // vocab floats + 64 KiB, per thread
    int32_t token; float logprob; int32_t rank; int32_t error;               // out; error 1 = NaN or no token left
    int32_t *top_ids; float *top_logprobs;                                   // out [k]
};

// Functions whose work is shared take (thread, threads) and choose their own static share of it.
struct Kernels {
    const char *name;                   // "portable", "avx2", "avx512", "neon", "neondot"
    int32_t rounded_words;              // words that a pair of rounded values takes (QuantRows): 1 or 2
    void (*quantize_rows)(const float *x, size_t ldx, const QuantRows *out, int32_t row_begin, int32_t row_end);
    void (*matmul)(const MatmulArgs *args);
    void (*embed)(const Matrix *table, const int32_t *ids, int32_t begin, int32_t end, float scale, float *y, size_t ldy);
    void (*rms_norm)(const float *x, size_t ldx, const float *weight, float eps, int32_t width,
                     int32_t row_begin, int32_t row_end, float *y, size_t ldy);
    // heads of `head_size` at x + h * head_size in each row: norm each head (weight [head_size])
    void (*head_norm)(float *x, size_t ldx, const float *weight, float eps, int32_t heads, int32_t head_size,
                      int32_t row_begin, int32_t row_end);
    // rotate the first 2 * half dims of each head, halves apart (dim i with i + half): angles from tables [P][half]
    void (*rope)(float *x, size_t ldx, const float *cosines, const float *sines, const int32_t *positions,
                 int32_t heads, int32_t head_size, int32_t half, int32_t row_begin, int32_t row_end);
    // KV heads [head_begin, head_end) of tokens [token_begin, token_end); k and v begin with head 0 of token 0
    void (*kv_write)(const Batch *batch, const KVLayer *kv, const float *k, size_t ldk, const float *v, size_t ldv,
                     int32_t token_begin, int32_t token_end, int32_t head_begin, int32_t head_end);
    // partial softmaxes of fixed splits; whoever is done last with an item that several threads share folds them in order
    void (*attention)(const AttentionArgs *args, int32_t thread, int32_t threads);
    // y = act(gate) * up; kind 0 silu, 1 gelu (tanh form); columns [col_begin, col_end)
    void (*glu)(const float *gate, const float *up, size_t ldx, float *y, size_t ldy, int32_t kind,
                int32_t row_begin, int32_t row_end, int32_t col_begin, int32_t col_end);
    void (*add)(const float *a, size_t lda, const float *b, size_t ldb, float *y, size_t ldy, int32_t width,
                int32_t row_begin, int32_t row_end);
    void (*softcap)(float *x, size_t ldx, float cap, int32_t width, int32_t row_begin, int32_t row_end);
    // maxima[row][g] = the largest of columns [64 g, 64 g + 64) of x; +inf if one of them is +inf or NaN
    void (*group_maxima)(const float *x, size_t ldx, int32_t width, int32_t row_begin, int32_t row_end, int32_t group_begin,
                         int32_t group_end, float *maxima, size_t ldm);
    void (*sample)(SampleArgs *args);
    // log-softmax value of `token`, its rank (1 = best), and the k best; used for prompt log-probabilities
    void (*logprobs)(const float *logits, int32_t vocab, int32_t token, int32_t k, float *logprob, int32_t *rank,
                     int32_t *top_ids, float *top_logprobs);
};

// Number of floats `AttentionArgs::scratch` needs for any batch of at most these sizes.
size_t attention_scratch_floats(int32_t max_tokens, int32_t max_rows, int32_t heads, int32_t head_size, int32_t max_key_len);

// Finds the rows of a batch that share a prefix; rows, common and listed have room for num_rows entries.
SharedPrefixes share_prefixes(const Batch &batch, int32_t block_size, int32_t *rows, int32_t *common, uint8_t *listed);

// ---- packing (portable, at load; src/pack/*.cc) ----
size_t panel_bytes(Layout layout, int32_t k);
// Source types are numbered as in GGUF (0 F32, 1 F16, 2 Q4_0, 3 Q4_1, 6 Q5_0, 7 Q5_1, 8 Q8_0, 10 Q2_K .. 14 Q6_K, 30 BF16);
// kBfloatPairs is BF16 to be packed as BF16Pairs.
constexpr int32_t kBfloatPairs = 1030;
// Returns false for a type that has no layout.
bool layout_of_source(int32_t source_type, Layout *layout);
// Pack rows [row_begin, row_end) of a source matrix [n, k] (row-major, `row_bytes` apart); row i of the packed matrix is
// source row order[i] (order may be null). Rows must come in whole panels of 16, the last may be short. Lossless, but for
// numbers below kLeastBfloat in BF16Pairs.
bool pack_rows(int32_t source_type, const uint8_t *source, size_t row_bytes, const int32_t *order, int32_t n, int32_t k,
               int32_t row_begin, int32_t row_end, uint8_t *dst);

// ---- dispatch (src/dispatch.cc) ----
const Kernels *portable_kernels();
const Kernels *avx2_kernels();          // null when not built in
const Kernels *avx512_kernels();        // multiplies bfloat16 with AVX512_BF16, and many rows with AMX, where those are there
const Kernels *avx512_plain_kernels();  // never does; the same bits
bool tiles_run_here();                  // AMX is built in, and processor and system allow it
const Kernels *neon_kernels();
const Kernels *neondot_kernels();       // NEON with dot products of bytes (ARMv8.2)
const Kernels *best_kernels();          // by cpuid; never null
const Kernels *find_kernels(const char *name);   // null when absent or not runnable here

}  // namespace headrace
