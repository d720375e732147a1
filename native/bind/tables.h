// Angle tables that stay in the caller's arrays.
#pragma once
#include "arrays.h"
#include "headrace/program.h"

namespace headrace::bind {

class RopeTable {
  public:
    RopeTable(Array<float, 2> cosines, Array<float, 2> sines) : cosines_(std::move(cosines)), sines_(std::move(sines)) {
        if (cosines_.shape(0) != sines_.shape(0) || cosines_.shape(1) != sines_.shape(1))
            fail("cosines and sines have different shapes");
        if (cosines_.shape(0) < 1 || cosines_.shape(1) < 1) fail("angle tables need rows and columns");
        angles_ = {cosines_.data(), sines_.data(), to_int32("the rows of an angle table", cosines_.shape(0)),
                   to_int32("the columns of an angle table", cosines_.shape(1))};
    }
    const AngleTable &angles() const { return angles_; }

  private:
    Array<float, 2> cosines_, sines_;
    AngleTable angles_;
};

}  // namespace headrace::bind
