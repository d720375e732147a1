// Who computes what in attention: a fixed enumeration of work, cut into contiguous shares of equal weight.
//
//   item = (batch row, strip of query tokens, group of query heads that share one KV head)
//   An item walks its keys in splits of 512 (absolute positions). A small item may be cut between two splits: then its
//   splits are computed by several threads, each split's partial softmax is stored, and the thread that is done last
//   folds them in ascending order. An item that is not cut folds its own splits in the same order with the same arithmetic. So the
//   plan decides who works, never what comes out.
//
//   item = (some rows that decode over a common prefix, group of query heads)
//   It walks what its rows have in common for all of them together and then what some of them or one alone sees: a trie of
//   keys, given by the keys that neighbours in Batch::shared have in common. Such an item is never cut.
#pragma once
#include "headrace/kernels.h"
#include "simd/simd.h"

namespace headrace {
namespace HR_ISA {

constexpr int32_t kUnit = 16;         // tokens of one unit of KV memory
constexpr int32_t kChunk = kAttentionChunk;
constexpr int32_t kSplit = kAttentionSplit;
constexpr int32_t kMaxGroup = 16;     // query heads of one item; larger groups are divided
constexpr int32_t kCutRows = 16;      // (token, head) rows of an item that may be cut
constexpr int32_t kMaxHead = 256;
constexpr int32_t kStripRows = 48;    // (token, head) rows of an item
constexpr int32_t kStripFloats = kStripRows * 128;  // rows of a strip x head size
constexpr int32_t kMaxThreads = kAttentionShares;  // more threads than this stay idle in attention
constexpr int32_t kPartHeader = 8;    // floats before a stored accumulator: maximum, sum, padding

// The shape of the work of one call.
struct Shape {
    int32_t group;          // query heads per KV head
    int32_t parts;          // items per KV head (1 unless group > 16)
    int32_t groups;         // items per strip: kv_heads * parts
    int32_t threads;        // shares
    int32_t workers;        // threads at work, fewer where a thread claims several shares
    int32_t members;        // most rows of an item that share keys
    int32_t shared;         // entries of Batch::shared in use: all or none
    int64_t keys;           // of all tokens of the batch, about
};

struct Item {
    int32_t order, strip, group;            // place in the enumeration; group in [0, groups)
    int32_t row;
    int32_t member_begin, member_end;       // entries of Batch::shared; empty = a strip of `row`
    int32_t token_begin, token_end;         // tokens of the batch
    int32_t split_begin, split_end;         // splits that hold keys of the item
};

// A place between two shares: `split` splits of the item are done. slot >= 0: the item is cut here or at an earlier place.
struct Cut {
    Item item;
    int32_t split, slot;
};

HR_INLINE Shape shape_of(const AttentionArgs &a, int32_t threads) {
    Shape s;
    s.group = a.heads / a.kv->kv_heads;
    s.parts = (s.group + kMaxGroup - 1) / kMaxGroup;
    s.groups = a.kv->kv_heads * s.parts;
    s.threads = least(threads, kMaxThreads);
    s.workers = a.workers > 0 ? least(a.workers, s.threads) : s.threads;
    s.members = least(kStripRows, kStripFloats / a.kv->head_size) / least(s.group, kMaxGroup);
    const Batch &b = *a.batch;
    s.shared = s.members > 1 ? b.shared.count : 0;
    for (int32_t i = 0; a.window > 0 && i < s.shared; i++)      // rows that see all of their keys
        if (b.key_len[b.shared.rows[i]] > a.window) s.shared = 0;
    s.keys = 0;
    for (int32_t row = 0; row < b.num_rows; row++)
        s.keys += (int64_t)(b.query_start[row + 1] - b.query_start[row]) * b.key_len[row];
    return s;
}

// Query heads of item group g.
struct HeadRange { int32_t kv_head, begin, end; };

HR_INLINE HeadRange heads_of(const Shape &s, int32_t g) {
    const int32_t kv_head = g / s.parts, part = g % s.parts, base = kv_head * s.group;
    return {kv_head, base + s.group * part / s.parts, base + s.group * (part + 1) / s.parts};
}

HR_INLINE int32_t first_key(int32_t position, int32_t window) {
    return window > 0 && position >= window ? position - window + 1 : 0;
}

// Tokens per strip of a row with `count` queries: as many rows as fit, fewer if that would leave threads idle.
HR_INLINE int32_t strip_tokens(const Shape &s, int32_t head_size, int32_t count) {
    const int32_t heads = least(s.group, kMaxGroup);
    int32_t rows = least(kStripRows, kStripFloats / head_size), tokens = greatest(1, rows / heads);
    while (tokens > 1 && tokens * heads > kCutRows && (count + tokens - 1) / tokens * s.groups < 2 * s.threads)
        tokens = (tokens + 1) / 2;
    return tokens;
}

HR_INLINE Item make_item(const AttentionArgs &a, int32_t row, int32_t strip, int32_t tokens, int32_t group) {
    const Batch &b = *a.batch;
    Item item;
    item.order = a.batch->shared.count + row;
    item.row = row; item.strip = strip; item.group = group;
    item.member_begin = item.member_end = 0;
    item.token_begin = b.query_start[row] + strip * tokens;
    item.token_end = least(b.query_start[row + 1], item.token_begin + tokens);
    item.split_begin = first_key(b.positions[item.token_begin], a.window) / kSplit;
    item.split_end = b.positions[item.token_end - 1] / kSplit + 1;
    return item;
}

// Weight of an item: keys x rows, plus the cost of reading the keys once.
HR_INLINE int64_t weight_of(const AttentionArgs &a, const Shape &s, const Item &item) {
    const int32_t keys = a.batch->positions[item.token_end - 1] + 1 -
                         first_key(a.batch->positions[item.token_begin], a.window);
    const int32_t rows = (item.token_end - item.token_begin) * least(s.group, kMaxGroup);
    return (int64_t)keys * (rows + 2);
}

// Members [begin, end) of one cluster; one member is an ordinary item.
HR_INLINE Item make_shared(const AttentionArgs &a, int32_t begin, int32_t end) {
    const Batch &b = *a.batch;
    Item item = make_item(a, b.shared.rows[begin], 0, 1, 0);
    item.order = begin;
    if (end - begin == 1) return item;
    item.member_begin = begin; item.member_end = end;
    item.split_begin = 0; item.split_end = 1;               // goes as a whole
    return item;
}

// Keys of members [begin, end), and how many of them are read by a neighbour as well.
struct SharedKeys { int64_t all, common; };

HR_INLINE SharedKeys shared_keys(const AttentionArgs &a, int32_t begin, int32_t end) {
    const SharedPrefixes &p = a.batch->shared;
    SharedKeys keys = {a.batch->key_len[p.rows[begin]], 0};
    for (int32_t i = begin + 1; i < end; i++) keys.all += a.batch->key_len[p.rows[i]], keys.common += p.common[i - 1];
    return keys;
}

HR_INLINE int64_t weight_of_shared(const AttentionArgs &a, const Shape &s, const Item &item) {
    const SharedKeys keys = shared_keys(a, item.member_begin, item.member_end);
    return keys.all * least(s.group, kMaxGroup) + 2 * (keys.all - keys.common);
}

// Into how many items of equal size a cluster of members is divided: as few as keep its share of the threads busy, and as
// many as members (nothing is shared, but items may be cut) if that is no slower.
HR_INLINE int32_t parts_of(const AttentionArgs &a, const Shape &s, int32_t begin, int32_t end) {
    const int32_t count = end - begin, fewest = (count + s.members - 1) / s.members;
    const SharedKeys keys = shared_keys(a, begin, end);
    const int64_t threads = greatest(1, least(s.workers, (int32_t)((keys.all * s.workers + s.keys / 2) / s.keys)));
    const int64_t alone = keys.all * (least(s.group, kMaxGroup) + 2);
    int64_t best = (alone * s.groups + threads - 1) / threads;
    int32_t parts = count;
    for (int32_t p = fewest; p < least(count, fewest + s.workers); p++) {
        const int64_t weight = alone - 2 * keys.common * (count - p) / (count - 1), largest = (count + p - 1) / p;
        const int64_t time = (p * s.groups + threads - 1) / threads * largest * weight / count;
        if (time < best) best = time, parts = p;
    }
    return parts;
}

HR_INLINE bool may_cut(const Shape &s, const Item &item) {
    return item.member_begin == item.member_end &&
           (item.token_end - item.token_begin) * least(s.group, kMaxGroup) <= kCutRows;
}

HR_INLINE bool same_item(const Item &a, const Item &b) {
    return a.order == b.order && a.strip == b.strip && a.group == b.group;
}

// The items of the clusters; false: visit stopped.
template <class Visit> HR_INLINE bool each_shared(const AttentionArgs &a, const Shape &s, Visit visit) {
    for (int32_t begin = 0, end = 0; begin < s.shared; begin = end) {
        while (a.batch->shared.common[end] > 0) end++;
        end++;
        const int32_t parts = parts_of(a, s, begin, end);
        for (int32_t p = 0; p < parts; p++) {
            const auto bound = [&](int32_t i) { return begin + (int32_t)((int64_t)(end - begin) * i / parts); };
            const Item item = make_shared(a, bound(p), bound(p + 1));
            const bool alone = item.member_begin == item.member_end;
            if (!visit(item, alone ? weight_of(a, s, item) : weight_of_shared(a, s, item))) return false;
        }
    }
    return true;
}

// Calls visit(item of group 0, weight) for each strip of the batch in order, clusters first; visit returns false to stop.
template <class Visit> HR_INLINE void each_strip(const AttentionArgs &a, const Shape &s, Visit visit) {
    const Batch &b = *a.batch;
    if (!each_shared(a, s, visit)) return;
    for (int32_t row = 0; row < b.num_rows; row++) {
        if (s.shared > 0 && b.shared.listed[row]) continue;
        const int32_t count = b.query_start[row + 1] - b.query_start[row];
        if (count <= 0) continue;
        const int32_t tokens = strip_tokens(s, a.kv->head_size, count);
        for (int32_t strip = 0; strip * tokens < count; strip++) {
            const Item item = make_item(a, row, strip, tokens, 0);
            if (!visit(item, weight_of(a, s, item))) return;
        }
    }
}

// The place nearest to `done` (of `weight`) inside the item: between splits if it may be cut, else at an end. The first and
// the last split may hold few keys, so what counts is keys and not splits.
HR_INLINE Cut cut_item(const AttentionArgs &a, const Shape &s, const Item &item, int64_t done, int64_t weight) {
    const int32_t splits = item.split_end - item.split_begin;
    if (!may_cut(s, item)) return {item, 2 * done >= weight ? splits : 0, -1};
    const Batch &b = *a.batch;
    const int32_t first = first_key(b.positions[item.token_begin], a.window), end = b.positions[item.token_end - 1] + 1;
    const int32_t at = first + (int32_t)(done * (end - first) / weight), split = at / kSplit;
    const int32_t before = greatest(first, split * kSplit), after = least(end, (split + 1) * kSplit);
    return {item, split - item.split_begin + (after - at <= at - before ? 1 : 0), -1};
}

// cuts[0 .. threads]: share t is [cuts[t], cuts[t + 1]). An item is identified by the place's `item` unless it is wholly
// done there (split == number of splits), which says that the share ends after it.
HR_INLINE void make_cuts(const AttentionArgs &a, const Shape &s, Cut *cuts) {
    int64_t total = 0;
    each_strip(a, s, [&](const Item &, int64_t weight) { total += weight * s.groups; return true; });
    int64_t before = 0;
    int32_t next = 0, slots = 0;
    Cut last = {};
    each_strip(a, s, [&](const Item &strip, int64_t weight) {
        const int64_t end = before + weight * s.groups;
        while (next < s.threads) {
            const int64_t target = total * next / s.threads;
            if (target >= end) break;
            Item item = strip;
            item.group = (int32_t)((target - before) / weight);
            cuts[next++] = cut_item(a, s, item, (target - before) % weight, weight);
        }
        before = end;
        last = {strip, strip.split_end - strip.split_begin, -1};
        last.item.group = s.groups - 1;
        return true;
    });
    while (next <= s.threads) cuts[next++] = last;
    for (int32_t t = 1; t < s.threads; t++) {
        Cut &c = cuts[t];
        if (c.split == 0 || c.split == c.item.split_end - c.item.split_begin) continue;
        const Cut &p = cuts[t - 1];
        c.slot = p.slot >= 0 && same_item(p.item, c.item) ? p.slot : slots++;
    }
}

// Longest walk of a stored item, in splits.
HR_INLINE int32_t max_splits(const AttentionArgs &a) {
    int32_t longest = 0;
    for (int32_t r = 0; r < a.batch->num_rows; r++) longest = greatest(longest, a.batch->key_len[r]);
    return longest / kSplit + 1;
}

// Where slot `slot` keeps the partial softmax of (split, row).
HR_INLINE float *part_at(const AttentionArgs &a, int32_t splits, int32_t slot, int32_t split, int32_t row) {
    const size_t stride = (size_t)a.kv->head_size + kPartHeader;
    return a.scratch + (((size_t)slot * splits + split) * kCutRows + row) * stride;
}

}  // namespace HR_ISA
}  // namespace headrace
