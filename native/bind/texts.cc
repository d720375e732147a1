// Length-prefixed texts of a file's header as a Python list: vocabularies hold hundreds of thousands of them.
#include "arrays.h"

namespace headrace::bind {
namespace {

// `count` texts from `at` on, each a 64-bit little-endian length and UTF-8, and the offset past them. None when one of them ends
// outside the data or is not UTF-8: the caller then looks for it and says so.
nb::object texts(const Array<uint8_t, 1> &data, uint64_t at, uint64_t count) {
    const uint8_t *bytes = data.data();
    const uint64_t size = data.shape(0);
    if (at > size || count > (size - at) / 8) return nb::none();
    nb::object list = nb::steal(PyList_New(static_cast<Py_ssize_t>(count)));
    if (!list.is_valid()) nb::raise_python_error();
    for (uint64_t i = 0; i < count; i++) {
        if (size - at < 8) return nb::none();
        uint64_t length = 0;
        for (int b = 7; b >= 0; b--) length = length << 8 | bytes[at + static_cast<uint64_t>(b)];
        at += 8;
        if (length > size - at) return nb::none();
        PyObject *text = PyUnicode_DecodeUTF8(reinterpret_cast<const char *>(bytes + at), static_cast<Py_ssize_t>(length), nullptr);
        if (!text) {
            if (!PyErr_ExceptionMatches(PyExc_UnicodeDecodeError)) nb::raise_python_error();
            PyErr_Clear();
            return nb::none();
        }
        PyList_SET_ITEM(list.ptr(), static_cast<Py_ssize_t>(i), text);
        at += length;
    }
    return nb::make_tuple(list, at);
}

}  // namespace

void bind_texts(nb::module_ &module) { module.def("texts", &texts, nb::arg("data").noconvert(), nb::arg("at"), nb::arg("count")); }

}  // namespace headrace::bind
