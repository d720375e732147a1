// Building and running step programs.
#include <optional>

#include "arrays.h"
#include "headrace/program.h"
#include "tables.h"

namespace headrace::bind {
namespace {

using RefTuple = std::tuple<int32_t, int32_t, int32_t>;      // buffer, first column, columns

Ref to_ref(const RefTuple &tuple) { return {std::get<0>(tuple), std::get<1>(tuple), std::get<2>(tuple)}; }

// A program with the numpy-owned tables that it points into.
struct BoundProgram {
    std::shared_ptr<Program> program;
    std::vector<std::shared_ptr<RopeTable>> tables;
};

Op make_op(OpKind kind, const RefTuple &a, const RefTuple &out) {
    Op op;
    op.kind = kind;
    op.a = to_ref(a);
    op.out = to_ref(out);
    return op;
}

constexpr RefTuple kNoRef{kNone, 0, 0};

nb::object run(nb::handle self, const Array<int32_t, 1> &token_ids, const Array<int32_t, 1> &positions,
               const Array<int32_t, 1> &row_of, const Array<int32_t, 1> &query_start, const Array<int32_t, 1> &key_len,
               const Array<int32_t, 2> &tables, const Array<int32_t, 1> &rope_rows, const Array<int32_t, 1> &logit_rows) {
    Program &program = *nb::cast<BoundProgram &>(self).program;
    StepInputs inputs;
    Batch &batch = inputs.batch;
    batch.num_tokens = to_int32("the number of tokens", token_ids.shape(0));
    batch.num_rows = to_int32("the number of rows", key_len.shape(0));
    for (const auto *array : {&positions, &row_of, &rope_rows})
        if (array->shape(0) != token_ids.shape(0)) fail("positions, rows and angle rows need one entry per token");
    if (query_start.shape(0) != key_len.shape(0) + 1) fail("query_start needs one entry more than key_len");
    if (tables.shape(0) != key_len.shape(0)) fail("tables need one row per key_len");
    batch.token_ids = token_ids.data();
    batch.positions = positions.data();
    batch.row_of = row_of.data();
    batch.query_start = query_start.data();
    batch.key_len = key_len.data();
    batch.tables = tables.data();
    batch.table_width = to_int32("the width of the tables", tables.shape(1));
    inputs.rope_rows = rope_rows.data();
    inputs.logit_rows = logit_rows.data();
    inputs.num_logits = to_int32("the number of logit rows", logit_rows.shape(0));
    {
        nb::gil_scoped_release release;
        program.check(inputs);
        program.run(inputs);
    }
    const size_t shape[2] = {static_cast<size_t>(inputs.num_logits), static_cast<size_t>(program.output_width())};
    const int64_t strides[2] = {program.output_ld(), 1};
    return nb::cast(nb::ndarray<nb::numpy, float>(const_cast<float *>(program.output()), 2, shape, self, strides));
}

// The maxima of the output as a numpy view [most rows, groups], or None.
nb::object maxima(nb::handle self) {
    const Program &program = *nb::cast<BoundProgram &>(self).program;
    if (!program.maxima()) return nb::none();
    const size_t shape[2] = {static_cast<size_t>(program.limits().max_logits), static_cast<size_t>(program.maxima_ld())};
    return nb::cast(nb::ndarray<nb::numpy, float>(const_cast<float *>(program.maxima()), 2, shape, self));
}

// A value of the program as a numpy view of its memory, [most rows, columns].
nb::object value(nb::handle self, const RefTuple &ref) {
    const Program::Rectangle found = nb::cast<BoundProgram &>(self).program->value(to_ref(ref));
    const size_t shape[2] = {static_cast<size_t>(found.rows), static_cast<size_t>(found.width)};
    const int64_t strides[2] = {found.ld, 1};
    return nb::cast(nb::ndarray<nb::numpy, float>(found.data, 2, shape, self, strides));
}

void add_matmul(BoundProgram &p, const RefTuple &x, int32_t quant, int32_t group, const RefTuple &out,
                std::shared_ptr<FloatVector> bias, bool accumulate) {
    Op op = make_op(OpKind::Matmul, x, out);
    op.quant = quant;
    op.group = group;
    op.accumulate = accumulate;
    p.program->add(std::move(op), std::move(bias));
}

void add_gated_matmul(BoundProgram &p, const RefTuple &x, std::pair<int32_t, int32_t> quants, int32_t group,
                      std::tuple<RefTuple, int32_t, int32_t> halves, const RefTuple &out,
                      std::shared_ptr<FloatVector> bias, int32_t activation) {
    Op op = make_op(OpKind::GatedMatmul, x, out);
    op.input_quant = quants.first;
    op.quant = quants.second;
    op.group = group;
    op.b = to_ref(std::get<0>(halves));
    op.gate_column = std::get<1>(halves);
    op.up_column = std::get<2>(halves);
    op.activation = activation;
    p.program->add(std::move(op), std::move(bias));
}

void add_attention(BoundProgram &p, std::tuple<RefTuple, RefTuple, RefTuple> qkv, const RefTuple &out, int32_t layer,
                   std::tuple<int32_t, int32_t, int32_t> heads, std::tuple<float, float, int32_t> params) {
    Op op;
    op.layer = layer;
    op.attention = {std::get<0>(heads), std::get<1>(heads), std::get<2>(heads),
                    std::get<2>(params), std::get<0>(params), std::get<1>(params)};
    Op write = op;
    write.kind = OpKind::KVWrite;
    write.a = to_ref(std::get<1>(qkv));
    write.b = to_ref(std::get<2>(qkv));
    p.program->add(std::move(write), nullptr);
    op.a = to_ref(std::get<0>(qkv));
    op.out = to_ref(out);
    op.kind = OpKind::Attention;
    p.program->add(std::move(op), nullptr);
}

}  // namespace

void bind_program(nb::module_ &module) {
    nb::class_<BoundProgram>(module, "Program")
        .def("__init__",
             [](BoundProgram *self, const Runtime &runtime, std::shared_ptr<KVMemory> kv,
                std::tuple<int32_t, int32_t, int32_t, int32_t> limits, size_t arena_bytes, size_t private_bytes) {
                 const auto [tokens, rows, logits, width] = limits;
                 new (self) BoundProgram{std::make_shared<Program>(runtime.pool, runtime.kernels, std::move(kv),
                                                                   StepLimits{tokens, rows, logits, width}, arena_bytes, private_bytes), {}};
             })
        .def("add_buffer",
             [](BoundProgram &p, size_t offset, int32_t ld, bool logits, std::optional<size_t> private_offset) {
                 return p.program->add_buffer({offset, ld, logits ? Rows::Logits : Rows::Tokens, private_offset.value_or(kShared)});
             }, nb::arg("offset"), nb::arg("ld"), nb::arg("logits"), nb::arg("private_offset").none())
        .def("add_quant_buffer",
             [](BoundProgram &p, size_t offset, int32_t k, bool logits, std::optional<size_t> private_offset, bool codes, bool rounded) {
                 return p.program->add_quant_buffer({offset, k, logits ? Rows::Logits : Rows::Tokens, private_offset.value_or(kShared), codes, rounded});
             }, nb::arg("offset"), nb::arg("k"), nb::arg("logits"), nb::arg("private_offset").none(), nb::arg("codes") = true, nb::arg("rounded") = false)
        .def("add_group", [](BoundProgram &p, std::vector<std::shared_ptr<PackedMatrix>> parts) { return p.program->add_group(std::move(parts)); })
        .def("embed",
             [](BoundProgram &p, int32_t group, float scale, const RefTuple &out) {
                 Op op = make_op(OpKind::Embed, kNoRef, out);
                 op.group = group;
                 op.number = scale;
                 p.program->add(std::move(op), nullptr);
             })
        .def("rms_norm",
             [](BoundProgram &p, const RefTuple &x, std::shared_ptr<FloatVector> weight, float eps, const RefTuple &out, int32_t quant) {
                 Op op = make_op(OpKind::RmsNorm, x, out);
                 op.number = eps;
                 op.quant = quant;
                 p.program->add(std::move(op), std::move(weight));
             })
        .def("quantize",
             [](BoundProgram &p, const RefTuple &x, int32_t quant) {
                 Op op = make_op(OpKind::Quantize, x, kNoRef);
                 op.quant = quant;
                 p.program->add(std::move(op), nullptr);
             })
        .def("matmul", &add_matmul, nb::arg("x"), nb::arg("quant"), nb::arg("group"), nb::arg("out"), nb::arg("bias").none(), nb::arg("accumulate"))
        .def("gated_matmul", &add_gated_matmul, nb::arg("x"), nb::arg("quants"), nb::arg("group"), nb::arg("halves"), nb::arg("out"),
             nb::arg("bias").none(), nb::arg("activation"))
        .def("head_norm",
             [](BoundProgram &p, const RefTuple &x, std::shared_ptr<FloatVector> weight, float eps, int32_t head_size) {
                 Op op = make_op(OpKind::HeadNorm, kNoRef, x);
                 op.number = eps;
                 op.head_size = head_size;
                 op.heads = head_size > 0 ? op.out.width / head_size : 0;
                 p.program->add(std::move(op), std::move(weight));
             })
        .def("rope",
             [](BoundProgram &p, const RefTuple &x, std::shared_ptr<RopeTable> table, int32_t head_size) {
                 if (!table) fail("rope lacks its table");
                 Op op = make_op(OpKind::Rope, kNoRef, x);
                 op.angles = table->angles();
                 op.head_size = head_size;
                 op.heads = head_size > 0 ? op.out.width / head_size : 0;
                 p.program->add(std::move(op), nullptr);
                 p.tables.push_back(std::move(table));
             })
        .def("attention", &add_attention, "(q, k, v), out, layer, (heads, kv_heads, head_size), (scale, softcap, window)")
        .def("glu",
             [](BoundProgram &p, const RefTuple &gate, const RefTuple &up, const RefTuple &out, int32_t activation) {
                 Op op = make_op(OpKind::Glu, gate, out);
                 op.b = to_ref(up);
                 op.activation = activation;
                 p.program->add(std::move(op), nullptr);
             })
        .def("add",
             [](BoundProgram &p, const RefTuple &x, const RefTuple &y, const RefTuple &out) {
                 Op op = make_op(OpKind::Add, x, out);
                 op.b = to_ref(y);
                 p.program->add(std::move(op), nullptr);
             })
        .def("select", [](BoundProgram &p, const RefTuple &x, const RefTuple &out) { p.program->add(make_op(OpKind::Select, x, out), nullptr); })
        .def("copy", [](BoundProgram &p, const RefTuple &x, const RefTuple &out) { p.program->add(make_op(OpKind::Copy, x, out), nullptr); })
        .def("softcap",
             [](BoundProgram &p, const RefTuple &x, float cap) {
                 Op op = make_op(OpKind::Softcap, kNoRef, x);
                 op.number = cap;
                 p.program->add(std::move(op), nullptr);
             })
        .def("finish", [](BoundProgram &p, const RefTuple &output) { p.program->finish(to_ref(output)); })
        .def("value", &value, nb::arg("ref"))
        .def("maxima", &maxima)
        .def("run", &run, nb::arg("token_ids").noconvert(), nb::arg("positions").noconvert(), nb::arg("row_of").noconvert(),
             nb::arg("query_start").noconvert(), nb::arg("key_len").noconvert(), nb::arg("tables").noconvert(),
             nb::arg("rope_rows").noconvert(), nb::arg("logit_rows").noconvert())
        .def("set_timing", [](BoundProgram &p, bool on) { p.program->set_timing(on); })
        .def_prop_ro("timings", [](const BoundProgram &p) { return p.program->timings(); })
        .def_prop_ro("num_ops", [](const BoundProgram &p) { return p.program->num_ops(); })
        .def("num_barriers", [](const BoundProgram &p, int mode) { return p.program->num_barriers(mode); })
        .def_prop_ro("bytes", [](const BoundProgram &p) { return p.program->bytes(); });
    module.def("quant_bytes", [](int32_t rows, int32_t k, bool codes, bool rounded) {
        if (rows < 1 || k < 1) fail("sizes must be at least 1");
        return Program::quant_bytes(rows, k, codes, rounded);
    }, nb::arg("rows"), nb::arg("k"), nb::arg("codes") = true, nb::arg("rounded") = false);
    module.attr("PRIVATE_ROWS") = kPrivateRows;
}

}  // namespace headrace::bind
