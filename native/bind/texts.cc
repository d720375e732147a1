// Vocabularies: length-prefixed texts of a file's header, hundreds of thousands of them, and byte-pair encoding over such tables.
#include <cstring>

#include "arrays.h"
#include "byte_pairs.h"

namespace headrace::bind {
namespace {

using Texts = Array<uint8_t, 1>;
using Ends = Array<uint64_t, 1>;

bool is_ascii(const char *text, size_t size) {
    uint64_t seen = 0;
    for (; size >= 8; text += 8, size -= 8) {
        uint64_t word;
        std::memcpy(&word, text, 8);
        seen |= word;
    }
    for (; size; text++, size--) seen |= static_cast<uint8_t>(*text);
    return !(seen & 0x8080808080808080u);
}

bool is_utf8(const char *text, size_t size) {
    if (is_ascii(text, size)) return true;
    PyObject *decoded = PyUnicode_DecodeUTF8(text, static_cast<Py_ssize_t>(size), nullptr);
    if (!decoded) PyErr_Clear();
    Py_XDECREF(decoded);
    return decoded;
}

// `count` texts from `at` on, each a 64-bit little-endian length and UTF-8: (the texts without lengths: bytes, where each ends
// there: 64-bit integers as bytes, whether one is empty, the offset past them in the data). None when one of them ends outside the
// data or is not UTF-8: the caller then looks for it and says so.
nb::object texts(const Texts &data, uint64_t at, uint64_t count) {
    const uint8_t *bytes = data.data();
    const uint64_t size = data.shape(0);
    if (at > size || count > (size - at) / 8) return nb::none();
    std::string blob;
    std::vector<uint64_t> ends(count);
    bool has_empty = false;
    for (uint64_t i = 0; i < count; i++) {
        if (size - at < 8) return nb::none();
        uint64_t length = 0;
        for (int b = 7; b >= 0; b--) length = length << 8 | bytes[at + static_cast<uint64_t>(b)];
        at += 8;
        if (length > size - at) return nb::none();
        const char *text = reinterpret_cast<const char *>(bytes + at);
        if (!is_utf8(text, length)) return nb::none();
        blob.append(text, length);
        ends[i] = blob.size();
        has_empty |= !length;
        at += length;
    }
    return nb::make_tuple(nb::bytes(blob.data(), blob.size()), nb::bytes(ends.data(), ends.size() * sizeof(uint64_t)), has_empty, at);
}

TextTable table(const Texts &blob, const Ends &ends) {
    return {{reinterpret_cast<const char *>(blob.data()), blob.shape(0)}, ends.data(), ends.shape(0)};
}

void make_pairs(BytePairs *self, const Texts &tokens, const Ends &token_ends, const Texts &merges, const Ends &merge_ends, bool whole) {
    static_assert(std::is_nothrow_move_constructible_v<BytePairs>);
    BytePairs made;                             // nobody destroys *self after an exception: it is begun when nothing can fail
    std::string fault;
    {
        nb::gil_scoped_release release;
        fault = made.make(table(tokens, token_ends), table(merges, merge_ends), whole);
    }
    if (!fault.empty()) fail(fault);
    new (self) BytePairs(std::move(made));
}

std::string_view utf8(nb::str text) {
    Py_ssize_t size = 0;
    const char *data = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
    if (!data) nb::raise_python_error();
    return {data, static_cast<size_t>(size)};
}

// The ids of a text that is cut into pieces: piece i has the characters [begin, end) of spans[i], which follow each other, and is a
// word for kinds[i] == 0, else the token `added[kinds[i] - 1]`. Where there are more than `most`: the first `most` + 1.
std::vector<uint32_t> encode(const BytePairs &self, nb::str text, const std::vector<std::pair<uint64_t, uint64_t>> &spans,
                             const std::vector<uint32_t> &kinds, const std::vector<uint32_t> &added, std::optional<uint32_t> most) {
    const std::string_view bytes = utf8(text);
    if (kinds.size() != spans.size()) fail("kinds must have one value per span");
    nb::gil_scoped_release release;
    std::vector<uint32_t> ids;
    BytePairs::Scratch scratch;
    uint64_t chars = 0;
    size_t at = 0;
    const auto pass = [&](uint64_t end) {       // moves `at` to a character
        for (; chars < end && at < bytes.size(); chars++)
            do at++;
            while (at < bytes.size() && (static_cast<uint8_t>(bytes[at]) & 0xC0) == 0x80);
    };
    const size_t enough = most ? size_t{*most} + 1 : SIZE_MAX;
    for (size_t i = 0; i < spans.size() && ids.size() < enough; i++) {
        pass(spans[i].first);
        const size_t begin = at;
        pass(spans[i].second);
        if (!kinds[i]) {
            self.encode(bytes.substr(begin, at - begin), scratch, ids);
        } else {
            if (kinds[i] > added.size()) fail("a kind names no added token");
            ids.push_back(added[kinds[i] - 1]);
        }
    }
    if (ids.size() > enough) ids.resize(enough);
    return ids;
}

std::optional<uint32_t> find(const BytePairs &self, nb::str text) {
    const uint32_t id = self.find(utf8(text));
    return id == BytePairs::none ? std::nullopt : std::optional<uint32_t>(id);
}

}  // namespace

void bind_texts(nb::module_ &module) {
    module.def("texts", &texts, nb::arg("data").noconvert(), nb::arg("at"), nb::arg("count"));
    nb::class_<BytePairs>(module, "BytePairs")
        .def("__init__", &make_pairs, nb::arg("tokens").noconvert(), nb::arg("token_ends").noconvert(),
             nb::arg("merges").noconvert(), nb::arg("merge_ends").noconvert(), nb::arg("whole_words"))
        .def("encode", &encode, nb::arg("text"), nb::arg("spans"), nb::arg("kinds"), nb::arg("added"), nb::arg("most").none())
        .def("find", &find, nb::arg("text"));
}

}  // namespace headrace::bind
