// Two operations need a barrier between them when one writes what the other touches and they do not share it alike.
#include "program_barriers.h"

namespace headrace {

bool BarrierPlan::is_private(Rows rows) const { return mode_ >> static_cast<int>(rows) & 1; }

void BarrierPlan::touch(const Ref &ref, bool writes, Share share, int32_t head_size) {
    if (ref.buffer == kNone) return;
    const Buffer &buffer = program_.buffers_[ref.buffer];
    if (buffer.private_offset != kShared && is_private(buffer.rows)) return;
    const size_t bytes = size_t(program_.max_rows_of(buffer.rows)) * buffer.ld * 4;
    now_.push_back({Space::Arena, buffer.offset, buffer.offset + bytes, ref.buffer, ref.column, ref.width, writes, share,
                    head_size});
}

void BarrierPlan::touch_quant(int32_t quant, bool writes, Share share) {
    if (quant == kNone) return;
    const QuantBuffer &buffer = program_.quants_[quant];
    if (buffer.private_offset != kShared && is_private(buffer.rows)) return;
    const size_t bytes = Program::quant_bytes(program_.max_rows_of(buffer.rows), buffer.k, buffer.codes, buffer.rounded);
    now_.push_back({Space::Arena, buffer.offset, buffer.offset + bytes, kNone - 1 - quant, 0, 1, writes, share, 0});
}

void BarrierPlan::touch_whole(Space space, size_t index, bool writes) {
    now_.push_back({space, index, index + 1, kNone, 0, 1, writes, Share::Other, 0});
}

bool BarrierPlan::conflict(const Access &x, const Access &y) {
    if (!x.writes && !y.writes) return false;
    if (x.space != y.space || x.end <= y.begin || y.end <= x.begin) return false;
    if (x.space != Space::Arena || x.buffer != y.buffer) return true;
    if (x.column + x.width <= y.column || y.column + y.width <= x.column) return false;
    if (x.share != y.share || x.share == Share::Other) return true;
    if (x.share == Share::ByRow) return false;
    return x.column != y.column || x.width != y.width || x.head_size != y.head_size;
}

void BarrierPlan::collect(const Op &op, int mode) {
    mode_ = mode;
    now_.clear();
    const bool few = is_private(program_.rows_of(op));
    const Share heads = few ? Share::ByHead : Share::ByRow;
    switch (op.kind) {
        case OpKind::Embed: case OpKind::Add: case OpKind::Copy: case OpKind::Softcap:
            touch(op.a, false, Share::ByRow);
            touch(op.b, false, Share::ByRow);
            touch(op.out, true, Share::ByRow);
            break;
        case OpKind::RmsNorm: case OpKind::Quantize: {
            const bool own = few && program_.writes_private(op);
            const Share share = own ? Share::Other : Share::ByRow;
            touch(op.a, false, share);
            touch(op.out, true, share);
            touch_quant(op.quant, true, share);
            break;
        }
        case OpKind::HeadNorm: case OpKind::Rope:
            touch(op.out, true, heads, op.head_size);
            break;
        case OpKind::KVWrite:
            touch(op.a, false, heads, op.attention.head_size);
            touch(op.b, false, heads, op.attention.head_size);
            touch_whole(Space::Layer, op.layer, true);
            break;
        case OpKind::Attention:
            touch(op.a, false, Share::Other);
            touch(op.out, true, Share::Other);
            touch_whole(Space::Layer, op.layer, false);
            touch_whole(Space::Scratch, 0, true);
            break;
        case OpKind::Matmul:
            touch(op.a, false, Share::Other);
            touch_quant(op.quant, false, Share::Other);
            touch(op.out, true, Share::Other);
            break;
        case OpKind::GatedMatmul:
            touch(op.a, false, Share::Other);
            touch_quant(op.input_quant, false, Share::Other);
            touch(op.b, true, Share::Other);
            touch(op.out, true, Share::Other);
            touch_quant(op.quant, true, Share::Other);
            break;
        case OpKind::Glu: case OpKind::Select: case OpKind::kCount:
            touch(op.a, false, Share::Other);
            touch(op.b, false, Share::Other);
            touch(op.out, true, Share::Other);
            break;
    }
}

void BarrierPlan::place() {
    for (int mode = 0; mode < 4; mode++) {
        std::vector<Access> open;       // since the last barrier
        for (Op &op : program_.ops_) {
            collect(op, mode);
            bool meet = false;
            for (const Access &x : now_)
                for (const Access &y : open) meet = meet || conflict(x, y);
            op.barrier[mode] = meet;
            if (meet) open.clear();
            open.insert(open.end(), now_.begin(), now_.end());
        }
    }
}

}  // namespace headrace
