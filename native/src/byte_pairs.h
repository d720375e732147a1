// Byte-pair encoding of words whose alphabet is the 256 bytes; the tables come from a model file and are not trusted.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// Texts one after the other: text i ends at ends[i] of `blob`, where the next one begins.
struct TextTable {
    std::string_view blob;
    const uint64_t *ends;
    size_t count;

    bool is_valid() const;
    std::string_view operator[](size_t i) const {
        const uint64_t begin = i ? ends[i - 1] : 0;
        return blob.substr(begin, ends[i] - begin);
    }
};

class BytePairs {
public:
    static constexpr uint32_t none = UINT32_MAX;

    // Copies the tokens (a token's index is its id; of equal ones the first counts) and indexes the merges, each two tokens with a
    // space between, best first. `whole_words`: a word that is a token stays whole. Returns what is wrong, "" for nothing.
    std::string make(const TextTable &tokens, const TextTable &merges, bool whole_words);

    // The id of a token, or `none`.
    uint32_t find(std::string_view token) const;

private:
    struct Merge {
        uint64_t pair;                          // left id << 32 | right id
        uint32_t rank, id;                      // `none` rank: an empty slot
    };
    struct Symbol {
        uint32_t id, prev, next;
    };
    struct Candidate {
        uint64_t order, pair;                   // rank << 32 | position
        uint32_t id;
        bool operator<(const Candidate &other) const { return order > other.order; }
    };

public:
    // Memory for encoding, kept between the words of a call.
    class Scratch {
        friend class BytePairs;
        std::vector<Symbol> symbols;
        std::vector<Candidate> heap;
        std::string spelled;
    };

    // Appends the ids of a word; bytes that are no token are left out. Merging: of the pairs that can be merged the one of the best rank goes first, of equal ones the leftmost.
    void encode(std::string_view word, Scratch &scratch, std::vector<uint32_t> &ids) const;

private:
    void index_tokens();
    std::string index_merges(const TextTable &merges);
    std::string_view token(uint32_t id) const;
    size_t slot_of(std::string_view token) const;
    const Merge *merge_of(uint64_t pair) const;
    void offer(Scratch &scratch, uint32_t position) const;

    std::string blob_;
    std::vector<uint64_t> ends_;
    std::vector<uint32_t> slots_;               // open addressing, at most half full: ids
    std::vector<Merge> merges_;                 // the same
    uint32_t byte_ids_[256];
    uint64_t seed_ = 0;
    bool whole_words_ = false;
};

}  // namespace headrace
