// Threads, packed weights, vectors, angle tables, KV memory.
#include <atomic>
#include <cstring>

#include "arrays.h"
#include "tables.h"
#include "weight_file.h"

namespace headrace::bind {
namespace {

struct SourceType { int32_t id; int32_t block, bytes; };
constexpr SourceType kSourceTypes[] = {{0, 1, 4},     {1, 1, 2},      {2, 32, 18},    {3, 32, 20},   {6, 32, 22},
                                       {7, 32, 24},   {8, 32, 34},    {10, 256, 84},  {11, 256, 110}, {12, 256, 144},
                                       {13, 256, 176}, {14, 256, 210}, {30, 1, 2},    {kBfloatPairs, 32, 64}};

size_t row_bytes_of(int32_t source_type, int32_t k) {
    for (const SourceType &type : kSourceTypes) {
        if (type.id != source_type) continue;
        if (k < 1 || k % type.block) fail("rows of " + std::to_string(k) + " values do not hold whole blocks of " + std::to_string(type.block));
        return size_t(k) / type.block * type.bytes;
    }
    fail("unknown source type " + std::to_string(source_type));
}

std::shared_ptr<PackedMatrix> pack(Runtime &runtime, int32_t source_type, const Array<uint8_t, 2> &data, int32_t k,
                                   std::optional<Array<int32_t, 1>> order) {
    const int32_t n = to_int32("the number of rows", data.shape(0));
    const size_t row_bytes = row_bytes_of(source_type, k);
    if (n < 1) fail("a matrix needs rows");
    if (data.shape(1) != row_bytes)
        fail("rows have " + std::to_string(data.shape(1)) + " bytes, wanted " + std::to_string(row_bytes));
    if (order) {
        if (order->shape(0) != data.shape(0)) fail("the order of rows has another length than the matrix");
        for (int32_t i = 0; i < n; i++)
            if (order->data()[i] < 0 || order->data()[i] >= n) fail("the order of rows names a row that is not there");
    }
    auto result = std::make_shared<PackedMatrix>();
    Matrix &view = result->view;
    if (!layout_of_source(source_type, &view.layout)) fail("source type " + std::to_string(source_type) + " has no layout");
    view.n = n;
    view.k = k;
    view.panel_bytes = panel_bytes(view.layout, k);
    result->bytes = checked_product({size_t(result->panels()), view.panel_bytes});
    result->memory = runtime.arena.allocate(result->bytes);
    uint8_t *target = result->memory.get();
    view.data = target;
    const uint8_t *source = data.data();
    const int32_t *rows = order ? order->data() : nullptr;
    std::atomic<bool> fine{true};
    {
        nb::gil_scoped_release release;
        runtime.pool->run([&](int thread, int threads) {
            int32_t begin, end;
            share_of(result->panels(), thread, threads, &begin, &end);
            if (begin < end && !pack_rows(source_type, source, row_bytes, rows, n, k, 16 * begin, std::min(n, 16 * end), target))
                fine = false;
        });
    }
    if (!fine) fail("this source type cannot be packed");
    return result;
}

// Weights of a file, in memory.
struct FileRegion {
    std::shared_ptr<uint8_t> memory;
    size_t bytes;
};

std::shared_ptr<FileRegion> load_file(Runtime &runtime, int fd, uint64_t offset, uint64_t bytes, const Array<uint64_t, 1> &sums,
                                      const std::string &mode) {
    if (mode != "map" && mode != "read" && mode != "auto") fail("a file is mapped (map), read (read) or both (auto), not " + mode);
    const FileMode how = mode == "map" ? FileMode::Map : mode == "read" ? FileMode::Read : FileMode::MapThenRead;
    if (bytes < 1 || bytes > SIZE_MAX / 4 || offset > SIZE_MAX / 4) fail("a file's weights have an impossible size");
    if (sums.shape(0) != (bytes + kFileChunk - 1) / kFileChunk) fail("a file's weights need one sum per chunk");
    const FileWeights file{fd, static_cast<size_t>(offset), static_cast<size_t>(bytes), sums.data()};
    nb::gil_scoped_release release;
    return std::make_shared<FileRegion>(FileRegion{load_weights(*runtime.pool, file, how), file.bytes});
}

// A matrix that lies packed at `offset` of a region.
std::shared_ptr<PackedMatrix> adopt(Runtime &runtime, const FileRegion &region, uint64_t offset, int32_t source_type, int32_t n,
                                    int32_t k) {
    auto result = std::make_shared<PackedMatrix>();
    Matrix &view = result->view;
    if (!layout_of_source(source_type, &view.layout)) fail("source type " + std::to_string(source_type) + " has no layout");
    if (n < 1 || k < 1 || n > INT32_MAX - 15) fail("a matrix needs rows and columns, at most 2^31 - 16 rows");
    view.n = n;
    view.k = k;
    view.panel_bytes = panel_bytes(view.layout, k);
    if (!view.panel_bytes) fail("rows of " + std::to_string(k) + " values do not fit the layout");
    result->bytes = checked_product({size_t(result->panels()), view.panel_bytes});
    if (offset % kAlign || offset > region.bytes || result->bytes > region.bytes - offset)
        fail("a packed matrix lies outside its file, or unaligned");
    result->memory = std::shared_ptr<uint8_t>(region.memory, region.memory.get() + offset);
    view.data = result->memory.get();
    runtime.adopted_bytes += result->bytes;
    return result;
}

// The packed bytes, read-only, without a copy.
nb::object packed_bytes(const std::shared_ptr<PackedMatrix> &matrix) {
    return nb::cast(nb::ndarray<nb::numpy, const uint8_t>(matrix->view.data, {matrix->bytes}, nb::cast(matrix)));
}

std::shared_ptr<FloatVector> vector(Runtime &runtime, const Array<float, 1> &values) {
    auto result = std::make_shared<FloatVector>();
    result->size = to_int32("the length of a vector", values.shape(0));
    if (result->size < 1) fail("a vector needs values");
    result->memory = runtime.arena.allocate(4 * values.shape(0));
    std::memcpy(result->memory.get(), values.data(), 4 * values.shape(0));
    return result;
}

std::shared_ptr<KVMemory> kv_memory(const std::string &dtype,
                                    std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t> shape) {
    const KVType type = dtype == "int8"    ? KVType::I8
                        : dtype == "int16" ? KVType::I16
                        : dtype == "f16"   ? KVType::F16
                                           : KVType::F32;
    if (type == KVType::F32 && dtype != "f32") fail("KV dtype '" + dtype + "' is unknown; use f16, f32, int8 or int16");
    const auto [layers, block_size, kv_heads, head_size, num_blocks] = shape;
    if (head_size % 8 || head_size > 256) fail("attention takes head sizes that are multiples of 8 up to 256");
    return std::make_shared<KVMemory>(
        KVMemory::Shape{type, layers, block_size, kv_heads, head_size, num_blocks});
}

void shift_keys(KVMemory &kv, int32_t layer, const Array<float, 3> &values) {
    if (values.shape(1) != size_t(kv.shape().kv_heads) || values.shape(2) != size_t(kv.shape().head_size))
        fail("shifts of keys must be [spans, KV heads, head size]");
    kv.shift_keys(layer, values.data(), to_int32("the number of spans", values.shape(0)));
}

nb::tuple read_block(const KVMemory &kv, int32_t layer, int32_t block) {
    const auto &shape = kv.shape();
    const size_t p = shape.block_size, h = shape.kv_heads, d = shape.head_size;
    float *keys, *values;
    nb::object key_array = new_array(keys, {p, h, d}), value_array = new_array(values, {p, h, d});
    kv.read(layer, block, keys, values);
    return nb::make_tuple(key_array, value_array);
}

}  // namespace

void bind_runtime(nb::module_ &module) {
    nb::class_<PackedMatrix>(module, "Matrix")
        .def_prop_ro("n", [](const PackedMatrix &m) { return m.view.n; })
        .def_prop_ro("k", [](const PackedMatrix &m) { return m.view.k; })
        .def_prop_ro("is_float", [](const PackedMatrix &m) { return is_float_layout(m.view.layout); })
        .def_prop_ro("is_pairs", [](const PackedMatrix &m) { return m.view.layout == Layout::BF16Pairs; })
        .def_ro("bytes", &PackedMatrix::bytes)
        .def("data", &packed_bytes);
    nb::class_<FileRegion>(module, "FileRegion").def_ro("bytes", &FileRegion::bytes);
    nb::class_<FloatVector>(module, "Vector").def_ro("size", &FloatVector::size);
    nb::class_<RopeTable>(module, "RopeTable")
        .def(nb::init<Array<float, 2>, Array<float, 2>>(), nb::arg("cosines").noconvert(), nb::arg("sines").noconvert())
        .def_prop_ro("rows", [](const RopeTable &t) { return t.angles().rows; })
        .def_prop_ro("half", [](const RopeTable &t) { return t.angles().half; });
    nb::class_<KVMemory>(module, "KVMemory")
        .def("copy", &KVMemory::copy, nb::call_guard<nb::gil_scoped_release>())
        .def("fill", &KVMemory::fill, nb::call_guard<nb::gil_scoped_release>())
        .def("read", &read_block)
        .def("shift_keys", &shift_keys, nb::arg("layer"), nb::arg("values").noconvert())
        .def_prop_ro("bytes", &KVMemory::bytes);
    nb::class_<Runtime> runtime(module, "Runtime");
    runtime
        .def("__init__",
             [](Runtime *self, const std::string &isa, int threads, int spin_us, bool pin) {
                 const Kernels *kernels = find_kernels(isa.c_str());
                 if (!kernels) fail("instruction set '" + isa + "' is not built in or does not run here");
                 new (self) Runtime{kernels, std::make_shared<ThreadPool>(threads, spin_us, pin), {}, 0, {}, nullptr};
             })
        .def_prop_ro("isa", [](const Runtime &r) { return std::string(r.kernels->name); })
        .def_prop_ro("threads", [](const Runtime &r) { return r.pool->size(); })
        .def_prop_ro("bytes", [](const Runtime &r) { return r.arena.bytes() + r.adopted_bytes; })
        .def("pack", &pack, nb::arg("source_type"), nb::arg("data").noconvert(), nb::arg("k"),
             nb::arg("order").noconvert().none())
        .def("load_file", &load_file, nb::arg("fd"), nb::arg("offset"), nb::arg("size"), nb::arg("sums").noconvert(),
             nb::arg("mode"))
        .def("adopt", &adopt, nb::arg("region"), nb::arg("offset"), nb::arg("source_type"), nb::arg("n"), nb::arg("k"))
        .def("vector", &vector, nb::arg("values").noconvert());
    module.attr("FILE_CHUNK") = kFileChunk;
    module.attr("BFLOAT_PAIRS") = kBfloatPairs;
    module.def("source_blocks", [] {
        nb::dict blocks;
        for (const SourceType &type : kSourceTypes) blocks[nb::int_(type.id)] = nb::make_tuple(type.block, type.bytes);
        return blocks;
    });
    module.def(
        "checksum", [](const Array<uint8_t, 1> &data) {
            nb::gil_scoped_release release;
            return checksum(data.data(), data.shape(0));
        },
        nb::arg("data").noconvert());
    module.def("kv_memory", &kv_memory, "dtype, (layers, block_size, kv_heads, head_size, num_blocks)");
    bind_sampling(module, runtime);
}

}  // namespace headrace::bind
