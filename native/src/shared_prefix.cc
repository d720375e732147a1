// Which rows of a step share leading blocks of KV memory. Found once per step, used by the attention of every layer.
//
// Rows are sorted by their block tables, so a row shares most with its neighbours and the keys that any group of rows has
// in common are the least of those between neighbours: the order is a trie in pre-order.
#include <algorithm>

#include "headrace/kernels.h"

namespace headrace {
namespace {

constexpr int32_t kChunk = kAttentionChunk;     // keys are shared in whole chunks
constexpr int32_t kWorth = 4;       // a row that shares less than a quarter of its keys stays alone: it may be cut then

// The blocks of a row that lie wholly before its last key.
struct Table {
    const int32_t *ids;
    int32_t blocks;
};

Table table_of(const Batch &b, int32_t block_size, int32_t row) {
    return {b.tables + (size_t)row * (size_t)b.table_width, (b.key_len[row] - 1) / block_size};
}

bool decodes(const Batch &b, int32_t row) { return b.query_start[row + 1] - b.query_start[row] == 1; }

// Keys of equal leading blocks, in whole chunks.
int32_t common_keys(const Table &a, const Table &b, int32_t block_size) {
    const int32_t most = std::min(a.blocks, b.blocks);
    const int32_t equal = (int32_t)(std::mismatch(a.ids, a.ids + most, b.ids).first - a.ids);
    return (int32_t)((int64_t)equal * block_size / kChunk * kChunk);
}

// Keeps the rows for which keep(i) holds; what two neighbours share is the least between them.
template <class Keep> int32_t compact(int32_t count, int32_t *rows, int32_t *common, Keep keep) {
    int32_t kept = 0, before = 0, least = 0;        // before: common[i - 1] as it was
    for (int32_t i = 0; i < count; i++) {
        const int32_t after = common[i];
        least = std::min(least, before);
        if (keep(rows[i], std::max(before, after))) {
            if (kept > 0) common[kept - 1] = least;
            rows[kept++] = rows[i];
            least = INT32_MAX;
        }
        before = after;
    }
    if (kept > 0) common[kept - 1] = 0;
    return kept;
}

}  // namespace

SharedPrefixes share_prefixes(const Batch &batch, int32_t block_size, int32_t *rows, int32_t *common, uint8_t *listed) {
    int32_t count = 0;
    for (int32_t row = 0; row < batch.num_rows; row++) {
        listed[row] = 0;
        if (decodes(batch, row) && batch.key_len[row] > kChunk) rows[count++] = row;
    }
    if (count < 2) return {};
    std::sort(rows, rows + count, [&](int32_t left, int32_t right) {
        const Table a = table_of(batch, block_size, left), b = table_of(batch, block_size, right);
        const int32_t most = std::min(a.blocks, b.blocks);
        const auto [x, y] = std::mismatch(a.ids, a.ids + most, b.ids);
        if (x != a.ids + most) return *x < *y;
        return a.blocks != b.blocks ? a.blocks < b.blocks : left < right;
    });
    for (int32_t i = 0; i + 1 < count; i++)
        common[i] = common_keys(table_of(batch, block_size, rows[i]), table_of(batch, block_size, rows[i + 1]), block_size);
    common[count - 1] = 0;
    count = compact(count, rows, common, [&](int32_t row, int32_t most) { return (int64_t)most * kWorth >= batch.key_len[row]; });
    count = compact(count, rows, common, [&](int32_t, int32_t most) { return most > 0; });
    if (count == 0) return {};
    for (int32_t i = 0; i < count; i++) listed[rows[i]] = 1;
    return {count, rows, common, listed};
}

}  // namespace headrace
