// Where threads must meet: derived from what each operation reads and writes, and how threads share it.
#pragma once
#include <cstdint>
#include <vector>

#include "headrace/program.h"

namespace headrace {

class BarrierPlan {
  public:
    explicit BarrierPlan(Program &program) : program_(program) {}
    // Set Op::barrier of every operation in each of the four modes.
    void place();

  private:
    enum class Space : int32_t { Arena, Layer, Scratch };
    // How threads share an access: two accesses with equal shares of the same buffer touch the same rows (or heads).
    enum class Share : int32_t { ByRow, ByHead, Other };
    struct Access {
        Space space;
        size_t begin, end;              // bytes of the arena, or a layer
        int32_t buffer;                 // float buffer or kNone
        int32_t column, width;          // within a float buffer
        bool writes;
        Share share;
        int32_t head_size;
    };
    void collect(const Op &op, int mode);
    void touch(const Ref &ref, bool writes, Share share, int32_t head_size = 0);
    void touch_quant(int32_t quant, bool writes, Share share);
    void touch_whole(Space space, size_t index, bool writes);
    static bool conflict(const Access &x, const Access &y);
    bool is_private(Rows rows) const;

    Program &program_;
    int mode_ = 0;
    std::vector<Access> now_;
};

}  // namespace headrace
