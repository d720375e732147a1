#include "byte_pairs.h"

#include <algorithm>
#include <cstring>
#include <random>

namespace headrace {
namespace {

// Spelling of a byte in the byte-level alphabet of GPT-2: printable characters stand for themselves, the others for U+0100 and
// following, in order.
void append_spelling(uint8_t byte, std::string &text) {
    const auto is_plain = [](unsigned b) { return (b >= 0x21 && b < 0x7F) || (b >= 0xA1 && b < 0xAD) || b >= 0xAE; };
    unsigned code = byte;
    if (!is_plain(byte)) {
        code = 256;
        for (unsigned b = 0; b < byte; b++) code += !is_plain(b);
    }
    if (code < 0x80) {
        text.push_back(static_cast<char>(code));
    } else {
        text.push_back(static_cast<char>(0xC0 | code >> 6));
        text.push_back(static_cast<char>(0x80 | (code & 0x3F)));
    }
}

struct Spellings {
    std::string of[256];
    Spellings() {
        for (int b = 0; b < 256; b++) append_spelling(static_cast<uint8_t>(b), of[b]);
    }
};

const Spellings &spellings() {
    static const Spellings made;
    return made;
}

uint64_t mix(uint64_t a, uint64_t b) {
    const auto product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_pair(uint64_t pair, uint64_t seed) { return mix(pair ^ seed, 0x9E3779B97F4A7C15u ^ seed >> 7); }

uint64_t hash_text(std::string_view text, uint64_t seed) {
    uint64_t state = seed ^ text.size();
    size_t at = 0;
    for (; at + 8 <= text.size(); at += 8) {
        uint64_t word;
        std::memcpy(&word, text.data() + at, 8);
        state = mix(state ^ word, 0x9E3779B97F4A7C15u);
    }
    uint64_t rest = 0;
    std::memcpy(&rest, text.data() + at, text.size() - at);
    return mix(state ^ rest, 0xD6E8FEB86659FD93u ^ seed >> 7);
}

// A power of two of which `count` is at most half.
size_t table_size(size_t count) {
    size_t size = 64;
    while (size < 2 * count) size *= 2;
    return size;
}

}  // namespace

bool TextTable::is_valid() const {
    uint64_t last = 0;
    for (size_t i = 0; i < count; i++) {
        if (ends[i] < last || ends[i] > blob.size()) return false;
        last = ends[i];
    }
    return true;
}

std::string BytePairs::make(const TextTable &tokens, const TextTable &merges, bool whole_words) {
    if (!tokens.is_valid() || !merges.is_valid() || tokens.count >= none || merges.count >= none) return "ends outside the texts";
    blob_ = tokens.blob;
    ends_.assign(tokens.ends, tokens.ends + tokens.count);
    whole_words_ = whole_words;
    std::random_device source;                  // so that nobody can make a file whose texts collide
    seed_ = static_cast<uint64_t>(source()) << 32 | source();
    index_tokens();
    return index_merges(merges);
}

void BytePairs::index_tokens() {
    slots_.assign(table_size(ends_.size()), none);
    for (uint32_t id = 0; id < ends_.size(); id++) {
        uint32_t &slot = slots_[slot_of(token(id))];
        if (slot == none) slot = id;
    }
    for (int b = 0; b < 256; b++) byte_ids_[b] = find(spellings().of[b]);
}

std::string BytePairs::index_merges(const TextTable &merges) {
    merges_.assign(table_size(merges.count), Merge{0, none, none});
    const size_t mask = merges_.size() - 1;
    std::string whole;
    for (uint32_t rank = 0; rank < merges.count; rank++) {
        const std::string_view text = merges[rank];
        const size_t cut = text.find(' ', 1);   // the first part may itself begin with a space
        if (cut == std::string_view::npos) return "merge " + std::to_string(rank) + " is not two parts";
        whole.assign(text, 0, cut);
        whole.append(text, cut + 1);
        const uint32_t left = find(text.substr(0, cut)), right = find(text.substr(cut + 1)), id = find(whole);
        if (left == none || right == none || id == none) return "merge " + std::to_string(rank) + " is outside the vocabulary";
        const uint64_t pair = static_cast<uint64_t>(left) << 32 | right;
        size_t at = hash_pair(pair, seed_) & mask;
        while (merges_[at].rank != none && merges_[at].pair != pair) at = (at + 1) & mask;
        merges_[at] = {pair, rank, id};         // of equal merges the last counts
    }
    return "";
}

std::string_view BytePairs::token(uint32_t id) const {
    const uint64_t begin = id ? ends_[id - 1] : 0;
    return std::string_view(blob_).substr(begin, ends_[id] - begin);
}

// Where the token is, or would be.
size_t BytePairs::slot_of(std::string_view text) const {
    const size_t mask = slots_.size() - 1;
    size_t at = hash_text(text, seed_) & mask;
    while (slots_[at] != none && token(slots_[at]) != text) at = (at + 1) & mask;
    return at;
}

uint32_t BytePairs::find(std::string_view text) const { return slots_[slot_of(text)]; }

const BytePairs::Merge *BytePairs::merge_of(uint64_t pair) const {
    const size_t mask = merges_.size() - 1;
    for (size_t at = hash_pair(pair, seed_) & mask; merges_[at].rank != none; at = (at + 1) & mask)
        if (merges_[at].pair == pair) return &merges_[at];
    return nullptr;
}

void BytePairs::offer(Scratch &scratch, uint32_t position) const {
    const Symbol &left = scratch.symbols[position];
    if (left.next == none) return;
    const uint64_t pair = static_cast<uint64_t>(left.id) << 32 | scratch.symbols[left.next].id;
    if (const Merge *merge = merge_of(pair)) {
        scratch.heap.push_back({static_cast<uint64_t>(merge->rank) << 32 | position, pair, merge->id});
        std::push_heap(scratch.heap.begin(), scratch.heap.end());
    }
}

void BytePairs::encode(std::string_view word, Scratch &scratch, std::vector<uint32_t> &ids) const {
    if (word.empty() || word.size() >= none) return;
    if (whole_words_) {
        scratch.spelled.clear();
        for (const char c : word) scratch.spelled += spellings().of[static_cast<uint8_t>(c)];
        const uint32_t id = find(scratch.spelled);
        if (id != none) return ids.push_back(id);
    }
    auto &symbols = scratch.symbols;
    auto &heap = scratch.heap;
    symbols.clear();
    for (const char c : word) {                 // a byte that is no token is left out
        const auto i = static_cast<uint32_t>(symbols.size());
        const uint32_t id = byte_ids_[static_cast<uint8_t>(c)];
        if (id != none) symbols.push_back({id, i - 1, i + 1});      // 0 - 1 is `none`
    }
    if (symbols.empty()) return;
    symbols.back().next = none;
    const auto size = static_cast<uint32_t>(symbols.size());
    heap.clear();
    for (uint32_t i = 0; i + 1 < size; i++) offer(scratch, i);
    while (!heap.empty()) {
        std::pop_heap(heap.begin(), heap.end());
        const Candidate best = heap.back();
        heap.pop_back();
        const auto position = static_cast<uint32_t>(best.order);
        Symbol &left = symbols[position];
        if (left.id == none || left.next == none) continue;             // merged into another one
        Symbol &right = symbols[left.next];
        if ((static_cast<uint64_t>(left.id) << 32 | right.id) != best.pair) continue;   // a neighbour changed since
        left.id = best.id;
        left.next = right.next;
        right.id = none;
        if (left.next != none) symbols[left.next].prev = position;
        if (left.prev != none) offer(scratch, left.prev);
        offer(scratch, position);
    }
    for (uint32_t at = 0; at != none; at = symbols[at].next) ids.push_back(symbols[at].id);
}

}  // namespace headrace
