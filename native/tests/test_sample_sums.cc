// The sums of weights that top_p goes by are exact: those of the weights' quanta, however many there are. What a draw keeps
// hardly shows it, as a sum that was rounded moves the last place by a token at most.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>

#include "kernel_test.h"

#define HR_ISA portable
#include "kernels/sample_walk.h"

using namespace headrace;
using namespace kernel_test;

namespace {

// One raw value at a time, in doubles: sums of so few multiples of the quantum are exact.
double weight_of(const portable::Weights &scale, float value) {
    float values[8 * portable::kSide], weights[8];
    for (float &v : values) v = value;
    portable::F8 w[portable::kSide];
    scale.weigh(values, w);
    portable::store(weights, w[0]);
    return (double)weights[0];
}

constexpr float kTop = 3.25f;

// Values that lie up to `spread` temperatures below the largest, some three times as far.
void check_sums(int32_t count, float spread, float temperature) {
    Random random(41);
    std::vector<float> values(count);
    for (float &x : values) x = kTop - temperature * spread * random.unit();
    values[count / 3] = kTop;
    for (int32_t i = 64; i < count / 4; i++) values[i] -= temperature * 2 * spread;     // groups that may weigh nothing
    auto s = std::make_unique<portable::Scores>();
    float top;
    check(portable::open_scores(values.data(), count, nullptr, s.get(), &top) && top == kTop, "scores of %d values", count);
    portable::scale_scores(s.get(), top, temperature);
    const portable::Weights scale(*s);
    const float low = -0.4f * spread, limit = -0.8f * spread;
    double from = 0, total = 0, limited = 0;
    for (float x : values) {
        const double weight = weight_of(scale, x);
        total += weight;
        if (s->scaled_of(x) >= low) from += weight;
        if (s->scaled_of(x) >= limit) limited += weight;
    }
    const portable::Limit none = {portable::kMinusInfinity, portable::kAnyId}, some = {limit, portable::kAnyId};
    const portable::Goal all = {true, 0.5, portable::kMinusInfinity, none}, part = {true, 0.5, portable::kMinusInfinity, some};
    const portable::Amounts whole = portable::masses_from<false>(*s, all, low);
    check(whole.total == total, "%d values at %g: a total of %.17g, not %.17g", count, temperature, whole.total, total);
    check(whole.from == from, "%d values at %g: %.17g from a value on, not %.17g", count, temperature, whole.from, from);
    const portable::Amounts inside = portable::masses_from<true>(*s, part, low);
    check(inside.total == limited, "%d values at %g: %.17g inside a limit, not %.17g", count, temperature, inside.total, limited);
    check(inside.from == from, "%d values at %g: %.17g inside a limit from a value on, not %.17g", count, temperature, inside.from, from);
}

// e^(d / divisor) as the kernels compute it.
float power_of(float divisor, float d) {
    portable::F8 values[portable::kSide], powers[portable::kSide];
    for (portable::F8 &v : values) v = portable::splat(d);
    portable::Power(divisor).raise(values, powers);
    float e[8];
    portable::store(e, powers[portable::kSide - 1]);
    return e[7];
}

// The error that `Power` promises, against doubles.
void check_power(float divisor) {
    const double unit = 0x1p-24;
    double worst = 0;
    for (int32_t i = 0; i <= 100000; i++) {
        const float d = -80.0f * divisor * ((float)i / 100000.0f);
        const double exact = (double)d / (double)divisor, error = std::fabs(power_of(divisor, d) / std::exp(exact) - 1);
        worst = std::max(worst, error - 1.25 * unit * -exact);
    }
    check(worst < 1.7e-7, "divisor %g: an error of %.3g", divisor, worst);
    check(power_of(divisor, 0.0f) == 1.0f, "divisor %g: e^0 is %.9g", divisor, power_of(divisor, 0.0f));
    const float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
    for (float d : {-infinity, -most, -121.0f * 0.6931472f * divisor}) {
        const float e = power_of(divisor, d);
        check(e >= 0 && e <= 0x1p-119f, "divisor %g: e^%g is %.9g", divisor, d, e);
    }
}

}  // namespace

int main() {
    for (float divisor : {1e-6f, 0.3f, 0.7213f, 1.0f, 1.4426f, 1.45f, 100.0f}) check_power(divisor);
    for (int32_t count : {1, 64, 1000, 16385, 151936, 300001})
        for (float spread : {1e-3f, 0.3f, 12.0f, 60.0f})
            for (float temperature : {0.02f, 0.7f, 1.0f, 1.9f}) check_sums(count, spread, temperature);
    return report("sample_sums");
}
