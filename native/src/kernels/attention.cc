// Paged attention: one order of operations for every number of query rows.
//
// For a query at position p, keys are walked in fixed absolute cuts: chunks of 64 (one online-softmax step each) inside
// splits of 512 (one partial softmax each), folded in ascending order. Scores are kept in base 2. A key that a row may
// not see takes part in nothing: its score is replaced before the maximum, and its V is never multiplied. Hence the
// result of a (token, head) depends on its own query, its keys and its position alone, whatever shares its tile.
//
//   share of a thread -> items (attention_plan.h) -> splits -> chunks -> tiles of (token, head) rows
//   All tiles of an item use a chunk of K and V before the next chunk is touched, so it is read from memory once.
//   Rows that share blocks (Batch::shared) form one item: keys that several of them see are walked by those together.
//
// Online softmax: Milakov and Gimelshein 2018 (arXiv:1805.02867); paged KV: Kwon et al. 2023 (arXiv:2309.06180);
// splitting over keys: Dao et al. 2023 (Flash-Decoding).
#include "kernels/decl.h"
#include "kernels/attention_codes.h"
#include "kernels/attention_pairs.h"
#include "kernels/attention_softmax.h"
#include "kernels/attention_tile.h"

namespace headrace {
namespace HR_ISA {
namespace {

// The rows of an item, in order of (token, head); q of a tile is dim-major and scaled. Rows [begin, end) are at work.
struct Strip {
    int32_t begin, end, tiles, dims;
    int32_t token[kStripRows], head[kStripRows];
    int32_t first[kStripRows], last[kStripRows];    // visible keys of each row, as far as they are walked
    float maximum[kStripRows + 8], weight[kStripRows + 8];      // state of the split in progress; tiles read eight
    float query_scale[kStripRows + 8];                          // of I16
    float total_maximum[kStripRows], total_weight[kStripRows];
    float *sums, *total;                        // [rows][dims]
    float *q;

    int32_t tile_begin(int32_t tile) const { return begin + (end - begin) * tile / tiles; }
};

// One chunk's memory: units of K (gathered if blocks are not whole units) and runs of V.
struct Chunk {
    int32_t start;                              // absolute position of the chunk
    int32_t unit_begin, unit_end;               // units of the chunk in use, 0..4
    const uint8_t *keys[4], *ahead[4];
    int32_t num_runs;
    Run runs[kChunk];
    float key_scales[kChunk], value_scales[kChunk];     // of codes, for tokens in use
};

// Where the keys lie that come after an item's or a walk's last chunk: they are drawn in with it. Null table: unknown.
struct Next {
    const int32_t *table;
    int32_t kv_head, position, first, key_len;  // chunk, first key in use, end
};

// Keys and values of one KV head of one batch row.
struct Sequence {
    const KVLayer *kv;
    const int32_t *table;
    int32_t kv_head, key_len;
    KVUnit unit;
    uint8_t *gathered;                          // room for 4 units of K
    Next next;

    bool whole_units() const { return unit.tokens == kUnit; }

    // K of the block or unit that holds `position`; V lies behind it.
    const uint8_t *unit_of(int32_t position) const { return unit_at(table, kv_head, position); }
    const uint8_t *unit_at(const int32_t *blocks, int32_t head, int32_t position) const {
        const size_t block = (size_t)blocks[position / kv->block_size];
        const size_t inside = position % kv->block_size / unit.tokens;
        return kv->data + ((block * kv->kv_heads + head) * unit.per_block + inside) * unit.bytes;
    }

    // The unit to draw in while unit u of the chunk at `start` is used.
    const uint8_t *ahead_of(int32_t start, int32_t u, const uint8_t *used) const {
        if (start + kChunk < key_len) {
            const int32_t position = start + kChunk + u * kUnit;
            return position < key_len ? unit_of(position) : used;
        }
        const int32_t position = next.position + u * kUnit;
        const bool used_next = next.table && position < next.key_len && position + kUnit > next.first;
        return used_next ? unit_at(next.table, next.kv_head, position) : used;
    }
};

// Copies K of tokens [begin, end) of a chunk into units [dims][16]; the rest of the units is zero.
void gather_keys(const Sequence &seq, int32_t start, int32_t begin, int32_t end) {
    const int32_t dims = seq.kv->head_size, size = seq.unit.value_bytes, block = seq.kv->block_size;
    const size_t unit_bytes = (size_t)dims * kUnit * size;
    std::memset(seq.gathered + begin / kUnit * unit_bytes, 0, ((end - 1) / kUnit + 1 - begin / kUnit) * unit_bytes);
    for (int32_t t = begin; t < end; t++) {
        const uint8_t *from = seq.unit_of(start + t) + (size_t)((start + t) % block) * size;
        uint8_t *to = seq.gathered + t / kUnit * unit_bytes + (size_t)(t % kUnit) * size;
        for (int32_t d = 0; d < dims; d++) std::memcpy(to + (size_t)d * kUnit * size, from + (size_t)d * block * size, size);
    }
}

// Scales of tokens [begin, end) of an opened chunk.
void open_scales(const Sequence &seq, int32_t start, int32_t begin, int32_t end, Chunk *c) {
    const KVUnit &u = seq.unit;
    if (seq.whole_units()) {
        for (int32_t t = c->unit_begin * kUnit; t < c->unit_end * kUnit; t += 8) {
            const uint8_t *unit = c->keys[t / kUnit] + 2 * (t % kUnit);
            store(c->key_scales + t, load_bfloat(unit + u.key_scales));
            store(c->value_scales + t, load_bfloat(unit + u.value_scales));
        }
        return;
    }
    const auto scale = [](const uint8_t *p) { uint16_t b; std::memcpy(&b, p, 2); return bfloat_to_float(b); };
    for (int32_t t = begin; t < end; t++) {
        const uint8_t *unit = seq.unit_of(start + t);
        const size_t at = (size_t)((start + t) % u.tokens) * 2;
        c->key_scales[t] = scale(unit + u.key_scales + at);
        c->value_scales[t] = scale(unit + u.value_scales + at);
    }
}

// Copies K and V of tokens [begin, end) of a chunk into units of 16 as blocks of 16 hold them; the rest is zero.
void open_pairs(const Sequence &seq, int32_t start, int32_t begin, int32_t end, Chunk *c) {
    const int32_t dims = seq.kv->head_size;
    const KVUnit &from = seq.unit, to = kv_unit(KVType::I16, kUnit, dims);
    const size_t stride = 2 * to.values;
    c->num_runs = 0;
    std::memset(seq.gathered + c->unit_begin * stride, 0, (size_t)(c->unit_end - c->unit_begin) * stride);
    for (int32_t u = c->unit_begin; u < c->unit_end; u++) c->keys[u] = c->ahead[u] = seq.gathered + (size_t)u * stride;
    for (int32_t t = begin; t < end; t++) {
        const uint8_t *source = seq.unit_of(start + t);
        uint8_t *target = seq.gathered + (size_t)(t / kUnit) * stride;
        const int32_t inside = (start + t) % from.tokens;
        for (int32_t d = 0; d < dims; d++) {
            std::memcpy(target + 2 * key_index(to, t % kUnit, d), source + 2 * key_index(from, inside, d), 2);
            std::memcpy(target + to.values + 2 * value_index(to, t % kUnit, d, dims),
                        source + from.values + 2 * value_index(from, inside, d, dims), 2);
        }
    }
}

// Prepares tokens [begin, end) of the chunk at `start`.
void open_chunk(const Sequence &seq, int32_t start, int32_t begin, int32_t end, Chunk *c) {
    const int32_t dims = seq.kv->head_size;
    c->start = start;
    c->unit_begin = begin / kUnit;
    c->unit_end = (end - 1) / kUnit + 1;
    Run *run = c->runs;
    if (seq.whole_units()) {
        for (int32_t u = c->unit_begin; u < c->unit_end; u++) {
            c->keys[u] = seq.unit_of(start + u * kUnit);
            c->ahead[u] = seq.ahead_of(start, u, c->keys[u]);
            const size_t values = seq.unit.values;
            *run++ = {c->keys[u] + values, c->ahead[u] + values, u * kUnit, (u + 1) * kUnit};
        }
        c->num_runs = c->unit_end - c->unit_begin;
        return;
    }
    if (seq.unit.paired) return open_pairs(seq, start, begin, end, c);
    gather_keys(seq, start, begin, end);
    for (int32_t u = c->unit_begin; u < c->unit_end; u++)
        c->keys[u] = c->ahead[u] = seq.gathered + (size_t)u * dims * kUnit * seq.unit.value_bytes;
    const int32_t block = seq.kv->block_size;
    for (int32_t t = begin; t < end;) {
        const int32_t inside = (start + t) % block, stop = least(end, t + block - inside);
        const uint8_t *values = seq.unit_of(start + t) + seq.unit.values + (size_t)inside * dims * seq.unit.value_bytes;
        *run++ = {values, values, t, stop};
        t = stop;
    }
    c->num_runs = (int32_t)(run - c->runs);
}

// The first tile has drawn in the next chunk: from now on the loops ask for what they read.
void stop_drawing(Chunk *c) {
    for (int32_t u = c->unit_begin; u < c->unit_end; u++) c->ahead[u] = c->keys[u];
    for (int32_t i = 0; i < c->num_runs; i++) c->runs[i].ahead = c->runs[i].v;
}

// A row's scores times the scales of K, or its weights (their sum is taken before) times those of V. Lanes of tokens
// that the row does not see may hold anything: scores are masked next, weights not read.
HR_INLINE void multiply_by(const float *scales, const Visible &seen, float *row) {
    for (int32_t t = seen.word_begin * kLanes; t < seen.word_end * kLanes; t += kLanes)
        store(row + t, load_as<Word>(row + t) * load_as<Word>(scales + t));
}

// One chunk of codes in pairs for the R rows from `row` on.
template <int R> void attend_tile_of_pairs(Strip &s, const Chunk &c, int32_t row, float cap) {
    const int32_t begin = greatest(s.first[row] - c.start, 0), end = least(s.last[row + R - 1] + 1 - c.start, kChunk);
    if (begin >= end) return;
    alignas(64) float scores[R * kChunk];
    alignas(64) int16_t codes[R * kChunk];
    alignas(32) float factor[8], step[8];
    const int32_t unit = begin / kUnit, units = (end - 1) / kUnit + 1 - unit, at = unit * kUnit;
    score_units_of_pairs<R>(c.keys + unit, c.ahead + unit, units, (const PairWord *)s.q + row * s.dims / 2, s.dims,
                            c.key_scales + at, scores + at);
    Visible seen;
    seen.word_begin = at / kLanes;
    seen.word_end = (at + units * kUnit) / kLanes;
    for (int r = 0; r < R; r++) {
        seen.first[r] = greatest(s.first[row + r] - c.start, 0);
        seen.last[r] = least(s.last[row + r] + 1 - c.start, kChunk);
    }
    softmax_of_pairs<R>(scores, seen, s.query_scale + row, c.value_scales, cap, s.maximum + row, s.weight + row, codes, factor,
                        step);
    add_values_of_pairs<R>(c.keys + unit, c.ahead + unit, units, s.dims, codes + at, factor, step, s.sums + row * s.dims);
}

// One chunk for the R rows from `row` on.
template <class T, int R> void attend_tile(Strip &s, const Chunk &c, int32_t row, float cap) {
    const int32_t begin = greatest(s.first[row] - c.start, 0), end = least(s.last[row + R - 1] + 1 - c.start, kChunk);
    if (begin >= end) return;
    alignas(64) float scores[R * kChunk];
    const int32_t unit = begin / kUnit, units = (end - 1) / kUnit + 1 - unit;
    score_units<T, R>(c.keys + unit, c.ahead + unit, units, s.q + row * s.dims, s.dims, scores + unit * kUnit);
    Visible seen;
    seen.word_begin = begin / kLanes;
    seen.word_end = (end - 1) / kLanes + 1;
    for (int r = 0; r < R; r++) {
        seen.first[r] = greatest(s.first[row + r] - c.start, 0);
        seen.last[r] = least(s.last[row + r] + 1 - c.start, kChunk);
        if (T::kScaled) multiply_by(c.key_scales, seen, scores + r * kChunk);
    }
    softmax_rows<R>(scores, seen, cap, s.maximum + row, s.weight + row, s.sums + row * s.dims, s.dims);
    if (T::kScaled)
        for (int r = 0; r < R; r++) multiply_by(c.value_scales, seen, scores + r * kChunk);
    // Tokens that all rows see go through the tile; those before and after, row by row. Both ends ascend with the row.
    const int32_t common_begin = seen.first[R - 1], common_end = greatest(seen.last[0], common_begin);
    if (R > 1)
        for (int r = 0; r < R; r++)
            add_values<T, 1>(c.runs, seen.first[r], least(seen.last[r], common_begin), s.dims, scores + r * kChunk,
                             s.sums + (row + r) * s.dims);
    add_values<T, R>(c.runs, common_begin, common_end, s.dims, scores, s.sums + row * s.dims);
    if (R > 1)
        for (int r = 0; r < R; r++)
            add_values<T, 1>(c.runs, greatest(seen.first[r], common_end), seen.last[r], s.dims, scores + r * kChunk,
                             s.sums + (row + r) * s.dims);
}

template <class T, int R> void attend(Strip &s, const Chunk &c, int32_t row, float cap) {
    if constexpr (std::is_same_v<T, Pair>) attend_tile_of_pairs<R>(s, c, row, cap);
    else attend_tile<T, R>(s, c, row, cap);
}

template <class T> void attend_rows(Strip &s, const Chunk &c, int32_t row, int32_t rows, float cap) {
    switch (rows) {
        case 1: return attend<T, 1>(s, c, row, cap);
        case 2: return attend<T, 2>(s, c, row, cap);
        case 3: return attend<T, 3>(s, c, row, cap);
        case 4: return attend<T, 4>(s, c, row, cap);
        case 5: return attend<T, 5>(s, c, row, cap);
#if defined(HR_SIMD_AVX512)
        case 7: return attend<T, 7>(s, c, row, cap);
        case 8: return attend<T, 8>(s, c, row, cap);
#endif
        default: return attend<T, 6>(s, c, row, cap);
    }
}

static_assert(kSplit == kShiftSpan, "a partial softmax has one shift of keys");

// The state before the first key of a split.
void open_split(Strip &s) {
    for (int32_t r = s.begin; r < s.end; r++) s.maximum[r] = kNone, s.weight[r] = 0.0f;
    std::memset(s.sums + s.begin * s.dims, 0, (size_t)(s.end - s.begin) * s.dims * sizeof(float));
}

// Goes through keys [begin, end), which lie in one split.
template <class T> void walk(Strip &s, const Sequence &seq, int32_t begin, int32_t end, float cap) {
    Chunk chunk;
    for (int32_t start = begin / kChunk * kChunk; start < end; start += kChunk) {
        open_chunk(seq, start, greatest(begin - start, 0), least(end - start, kChunk), &chunk);
        if (T::kScaled) open_scales(seq, start, greatest(begin - start, 0), least(end - start, kChunk), &chunk);
        for (int32_t t = 0; t < s.tiles; t++) {
            const int32_t row = s.tile_begin(t);
            attend_rows<T>(s, chunk, row, s.tile_begin(t + 1) - row, cap);
            if (t == 0) stop_drawing(&chunk);
        }
    }
}

// Keys of the split are stored less a shift: all its scores are short of q . shift, so its maximum is.
void add_shift(Strip &s, const Sequence &seq, int32_t split) {
    alignas(64) float shift[kMaxHead];
    std::memcpy(shift, key_shift_of(*seq.kv, split, seq.kv_head), (size_t)s.dims * sizeof(float));
    rotate(shift, s.dims, seq.unit.rotation);
    for (int32_t t = 0; t < s.tiles; t++) {
        const int32_t row = s.tile_begin(t), rows = s.tile_begin(t + 1) - row;
        for (int32_t r = 0; r < rows; r++) {
            const float *q = s.q + row * s.dims + r;
            float product = 0.0f;
            for (int32_t d = 0; d < s.dims; d++) product = __builtin_fmaf(q[d * rows], shift[d], product);
            s.maximum[row + r] += product;
        }
    }
}

// total <- total + part, the earlier keys in total.
HR_INLINE void fold(float *maximum, float *weight, float *total, float part_maximum, float part_weight,
                    const float *part, int32_t dims) {
    const float largest = greatest(*maximum, part_maximum);
    const F8 a = exp2_nonpositive(splat(*maximum - largest)), b = exp2_nonpositive(splat(part_maximum - largest));
    float fa[8], fb[8];
    store(fa, a);
    store(fb, b);
    *maximum = largest;
    *weight = *weight * fa[0] + part_weight * fb[0];
    for (int32_t d = 0; d < dims; d += 8) store(total + d, fma(load(part + d), b, load(total + d) * a));
}

// Adding +0 turns the only zero whose sign could depend on the order of work, -0, into +0.
HR_INLINE void finish(const float *total, float weight, float *out, int32_t dims) {
    const F8 scale = splat(1.0f / weight);
    for (int32_t d = 0; d < dims; d += 8) store(out + d, fma(load(total + d), scale, zero()));
}

// Writes or folds the split just computed. `stored` null: fold into the running total.
void close_split(const AttentionArgs &a, Strip &s, int32_t split, int32_t splits, const Item &item, int32_t slot) {
    const int32_t begin = split * kSplit, end = begin + kSplit;
    for (int32_t r = s.begin; r < s.end; r++) {
        if (s.last[r] < begin || s.first[r] >= end) continue;
        const float *sums = s.sums + r * s.dims;
        if (slot >= 0) {
            float *part = part_at(a, splits, slot, split - item.split_begin, r);
            part[0] = s.maximum[r];
            part[1] = s.weight[r];
            std::memcpy(part + kPartHeader, sums, s.dims * sizeof(float));
        } else if (begin <= s.first[r]) {        // the row's first split
            s.total_maximum[r] = s.maximum[r];
            s.total_weight[r] = s.weight[r];
            std::memcpy(s.total + r * s.dims, sums, s.dims * sizeof(float));
        } else {
            fold(&s.total_maximum[r], &s.total_weight[r], s.total + r * s.dims, s.maximum[r], s.weight[r], sums, s.dims);
        }
    }
}

// Sets rows [begin, end) of the strip to work: their queries, scaled, tile by tile.
template <class T> void load_queries(const AttentionArgs &a, Strip *s, int32_t begin, int32_t end) {
    const int32_t dims = a.kv->head_size;
    s->begin = begin;
    s->end = end;
    s->tiles = (end - begin + kMaxTile - 1) / kMaxTile;
    const int32_t rotation = kv_unit(a.kv->type, a.kv->block_size, dims).rotation;
    const float factor = (a.softcap != 0.0f ? a.scale / a.softcap : a.scale * kLog2E) / (float)rotation;
    for (int32_t t = 0; t < s->tiles; t++) {
        const int32_t row = s->tile_begin(t), rows = s->tile_begin(t + 1) - row;
        float *q = s->q + row * dims / (std::is_same_v<T, Pair> ? 2 : 1);
        for (int32_t r = 0; r < rows; r++) {
            const float *from = a.q + (size_t)s->token[row + r] * a.ldq + (size_t)s->head[row + r] * dims;
            alignas(64) float rotated[kMaxHead];
            if (rotation > 1) {
                std::memcpy(rotated, from, (size_t)dims * sizeof(float));
                rotate(rotated, dims, rotation);
                from = rotated;
            }
            if (std::is_same_v<T, Pair>) {
                alignas(64) int32_t codes[kMaxHead];
                s->query_scale[row + r] = bfloat_to_float(make_codes(from, dims, true, codes)) * factor;
                PairWord *pairs = (PairWord *)q;
                for (int32_t d = 0; d < dims / 2; d++)
                    pairs[d * rows + r] = (int32_t)(((uint32_t)codes[2 * d] & 0xffffu) | (uint32_t)codes[2 * d + 1] << 16);
                continue;
            }
            for (int32_t d = 0; d < dims; d++) q[d * rows + r] = from[d] * factor;
        }
    }
}

float *output_of(const AttentionArgs &a, int32_t token, int32_t head) {
    return a.out + (size_t)token * a.ldo + (size_t)head * a.kv->head_size;
}

const int32_t *table_of(const AttentionArgs &a, int32_t row) {
    return a.batch->tables + (size_t)row * a.batch->table_width;
}

// The first chunk of an item from split `begin` on.
Next first_of(const AttentionArgs &a, const Shape &shape, const Item &item, int32_t begin) {
    const int32_t seen = first_key(a.batch->positions[item.token_begin], a.window);
    const int32_t first = greatest(seen, (item.split_begin + begin) * kSplit);
    return {table_of(a, item.row), heads_of(shape, item.group).kv_head, first / kChunk * kChunk, first,
            a.batch->key_len[item.row]};
}

// What an item works on.
struct Work {
    const AttentionArgs *args;
    const Item *item;
    HeadRange heads;
    Strip strip;
    Sequence seq;
    Next next;              // after the whole item

    int32_t count() const { return heads.end - heads.begin; }
};

void add_token(Work *w, int32_t at, int32_t token) {
    for (int32_t h = 0; h < w->count(); h++) w->strip.token[at + h] = token, w->strip.head[at + h] = w->heads.begin + h;
}

// Splits [begin, end) of a strip of one row; slot >= 0: they are stored for `arrive`.
template <class T> void attend_strip(Work &w, int32_t begin, int32_t end, int32_t slot) {
    const AttentionArgs &a = *w.args;
    const Item &item = *w.item;
    Strip &s = w.strip;
    const int32_t rows = (item.token_end - item.token_begin) * w.count();
    for (int32_t r = 0; r < rows; r += w.count()) add_token(&w, r, item.token_begin + r / w.count());
    for (int32_t r = 0; r < rows; r++) {
        s.last[r] = a.batch->positions[s.token[r]];
        s.first[r] = first_key(s.last[r], a.window);
    }
    load_queries<T>(a, &s, 0, rows);
    w.seq.table = table_of(a, item.row);
    w.seq.key_len = s.last[rows - 1] + 1;
    w.seq.next = w.next;
    const int32_t splits = slot >= 0 ? max_splits(a) : 0;
    for (int32_t split = item.split_begin + begin; split < item.split_begin + end; split++) {
        open_split(s);
        walk<T>(s, w.seq, greatest(split * kSplit, s.first[0]), least((split + 1) * kSplit, w.seq.key_len), a.softcap * kLog2E);
        if (T::kScaled && a.kv->key_shifts) add_shift(s, w.seq, split);
        close_split(a, s, split, splits, item, slot);
    }
}

// Keys [begin, end) of members [from, to): all of these rows see them. `whole`: the last key of the rows is among them.
template <class T> void attend_common(Work &w, int32_t from, int32_t to, int32_t begin, int32_t end, bool whole) {
    const AttentionArgs &a = *w.args;
    Strip &s = w.strip;
    const int32_t base = w.item->member_begin, count = w.count();
    load_queries<T>(a, &s, (from - base) * count, (to - base) * count);
    for (int32_t r = s.begin; r < s.end; r++) s.first[r] = 0, s.last[r] = end - 1;
    for (int32_t at = begin, stop; at < end; at = stop) {
        const int32_t split = at / kSplit;
        stop = least(end, (split + 1) * kSplit);
        if (at % kSplit == 0) open_split(s);
        walk<T>(s, w.seq, at, stop, a.softcap * kLog2E);
        if (stop % kSplit != 0 && !(whole && stop == end)) continue;        // the split goes on
        if (T::kScaled && a.kv->key_shifts) add_shift(s, w.seq, split);
        close_split(a, s, split, 0, *w.item, -1);
    }
}

// Members [from, to), who have their keys before `begin` behind them: first what all of them share, then part by part.
template <class T> void attend_members(Work &w, int32_t from, int32_t to, int32_t begin) {
    const Batch &b = *w.args->batch;
    const int32_t *rows = b.shared.rows, *common = b.shared.common;
    const bool single = to - from == 1;
    int32_t end = b.key_len[rows[from]];
    for (int32_t i = from; i < to - 1; i++) end = least(end, common[i]);
    if (end > begin) {
        w.seq.table = table_of(*w.args, rows[from]);
        w.seq.key_len = end;
        w.seq.next = w.next;
        if (!single) w.seq.next = {w.seq.table, w.heads.kv_head, end, end, b.key_len[rows[from]]};
        else if (to < w.item->member_end)
            w.seq.next = {table_of(*w.args, rows[to]), w.heads.kv_head, common[from], common[from], b.key_len[rows[to]]};
        attend_common<T>(w, from, to, begin, end, single);
    }
    if (single) return;
    for (int32_t part = from, stop; part < to; part = stop) {
        stop = part + 1;
        while (stop < to && common[stop - 1] > end) stop++;
        attend_members<T>(w, part, stop, end);
    }
}

// One item, of splits [begin, end) unless its rows share keys. next: what this thread attends to afterwards.
template <class T>
void attend_item(const AttentionArgs &a, const Shape &shape, const Item &item, int32_t begin, int32_t end, int32_t slot,
                 const Next &next) {
    alignas(64) float sums[kStripFloats], total[kStripFloats], q[kStripFloats];
    alignas(64) uint8_t gathered[4 * kUnit * kMaxHead * T::kBytes * (std::is_same_v<T, Pair> ? 2 : 1)];
    Work w;
    w.args = &a; w.item = &item; w.next = next;
    w.heads = heads_of(shape, item.group);
    w.seq = {a.kv, nullptr, w.heads.kv_head, 0, kv_unit(a.kv->type, a.kv->block_size, a.kv->head_size), gathered, next};
    Strip &s = w.strip;
    s.sums = sums; s.total = total; s.q = q; s.dims = a.kv->head_size;
    for (int32_t r = 0; r < kStripRows + 8; r++) s.maximum[r] = kNone, s.weight[r] = 0.0f, s.query_scale[r] = 1.0f;
    if (item.member_begin == item.member_end) {
        attend_strip<T>(w, begin, end, slot);
    } else {
        const SharedPrefixes &p = a.batch->shared;
        for (int32_t m = item.member_begin; m < item.member_end; m++)
            add_token(&w, (m - item.member_begin) * w.count(), a.batch->query_start[p.rows[m]]);
        attend_members<T>(w, item.member_begin, item.member_end, 0);
        s.begin = 0;
        s.end = (item.member_end - item.member_begin) * w.count();
    }
    if (slot >= 0) return;
    for (int32_t r = s.begin; r < s.end; r++)
        finish(s.total + r * s.dims, s.total_weight[r], output_of(a, s.token[r], s.head[r]), s.dims);
}

HR_INLINE int order_of(const Item &a, const Item &b) {
    if (a.order != b.order) return a.order < b.order ? -1 : 1;
    if (a.strip != b.strip) return a.strip < b.strip ? -1 : 1;
    return a.group == b.group ? 0 : a.group < b.group ? -1 : 1;
}

// Folds the stored splits of one row of a cut item.
void fold_row(const AttentionArgs &a, const HeadRange &heads, const Item &item, int32_t slot, int32_t splits, int32_t row) {
    const int32_t dims = a.kv->head_size, count = heads.end - heads.begin;
    const int32_t last = a.batch->positions[item.token_begin + row / count];
    const int32_t first_split = first_key(last, a.window) / kSplit, last_split = last / kSplit;
    alignas(64) float total[kMaxHead];
    const float *part = part_at(a, splits, slot, first_split - item.split_begin, row);
    float maximum = part[0], weight = part[1];
    std::memcpy(total, part + kPartHeader, dims * sizeof(float));
    for (int32_t split = first_split + 1; split <= last_split; split++) {
        part = part_at(a, splits, slot, split - item.split_begin, row);
        fold(&maximum, &weight, total, part[0], part[1], part + kPartHeader, dims);
    }
    finish(total, weight, output_of(a, item.token_begin + row / count, heads.begin + row % count), dims);
}

// A share has stored its part of a cut item: the last one to come here folds all of it.
void arrive(const AttentionArgs &a, const Shape &shape, const Cut *cuts, const Item &item, int32_t slot) {
    uint32_t parts = 1;
    for (int32_t t = 1, split = 0; t < shape.threads; t++)
        if (cuts[t].slot == slot && cuts[t].split != split) parts++, split = cuts[t].split;
    if (__atomic_add_fetch(a.arrivals + slot, 1u, __ATOMIC_ACQ_REL) < parts) return;
    __atomic_store_n(a.arrivals + slot, 0u, __ATOMIC_RELAXED);
    const HeadRange heads = heads_of(shape, item.group);
    const int32_t splits = max_splits(a), rows = (item.token_end - item.token_begin) * (heads.end - heads.begin);
    for (int32_t row = 0; row < rows; row++) fold_row(a, heads, item, slot, splits, row);
}

// The items of share `thread`, each attended to when the next one is known.
template <class T> void attend_share(const AttentionArgs &a, const Shape &shape, const Cut *cuts, int32_t thread) {
    const Cut &from = cuts[thread], &to = cuts[thread + 1];
    struct { Item item; int32_t begin, end, slot; } held = {};
    bool holds = false;
    const auto attend_held = [&](const Next &next) {
        if (!holds) return;
        attend_item<T>(a, shape, held.item, held.begin, held.end, held.slot, next);
        if (held.slot >= 0) arrive(a, shape, cuts, held.item, held.slot);
    };
    each_strip(a, shape, [&](const Item &strip, int64_t) {
        Item item = strip;
        for (item.group = 0; item.group < shape.groups; item.group++) {
            const int at_from = order_of(item, from.item), at_to = order_of(item, to.item);
            if (at_from < 0) continue;
            if (at_to > 0) return false;
            const int32_t begin = at_from == 0 ? from.split : 0;
            const int32_t end = at_to == 0 ? to.split : item.split_end - item.split_begin;
            const int32_t slot = at_from == 0 && from.slot >= 0 ? from.slot : at_to == 0 ? to.slot : -1;
            if (begin >= end) continue;
            attend_held(first_of(a, shape, item, begin));
            held = {item, begin, end, slot};
            holds = true;
        }
        return true;
    });
    attend_held({nullptr, 0, 0, 0, 0});
}

}  // namespace

void attention(const AttentionArgs *args, int32_t thread, int32_t threads) {
    if (thread >= kMaxThreads) return;
    const Shape shape = shape_of(*args, threads);
    Cut cuts[kMaxThreads + 1];
    make_cuts(*args, shape, cuts);
    if (args->kv->type == KVType::F16) attend_share<Half>(*args, shape, cuts, thread);
    else if (args->kv->type == KVType::F32) attend_share<Single>(*args, shape, cuts, thread);
    else if (args->kv->type == KVType::I16) attend_share<Pair>(*args, shape, cuts, thread);
    else attend_share<Byte>(*args, shape, cuts, thread);
}

}  // namespace HR_ISA
}  // namespace headrace

// Defined once, by the set that is always built.
#define HR_IS_portable 1
#define HR_PASTE(a, b) a##b
#define HR_IS(isa) HR_PASTE(HR_IS_, isa)
#if HR_IS(HR_ISA)
size_t headrace::attention_scratch_floats(int32_t max_tokens, int32_t max_rows, int32_t heads, int32_t head_size,
                                          int32_t max_key_len) {
    using namespace headrace::HR_ISA;
    (void)max_rows;
    const size_t items = (size_t)max_tokens * heads, cuts = kMaxThreads - 1;
    const size_t splits = (size_t)max_key_len / kSplit + 1;
    return (items < cuts ? items : cuts) * splits * kCutRows * ((size_t)head_size + kPartHeader);
}
#endif
