// Norms, rotation, gated activations, sums and KV writes: against double precision, and the same bits on every
// instruction set, for odd widths and for any share of rows and columns.
#include "kernel_test.h"

using namespace headrace;
using namespace kernel_test;

namespace {

struct Shape { int32_t rows, width; };

const Shape kShapes[] = {{1, 1}, {3, 5}, {2, 8}, {4, 31}, {5, 64}, {2, 100}, {3, 576}, {1, 1537}};

// Runs f on every set and compares the whole output with the first set's bits; returns those.
template <class F> std::vector<float> on_all(const char *what, size_t size, F f) {
    std::vector<float> first;
    for (const Kernels *k : kernel_sets()) {
        std::vector<float> out(size, -77.0f);
        f(*k, out.data());
        if (first.empty()) first = out;
        check(same_bits(out, first), "%s: %s differs from portable", what, k->name);
    }
    return first;
}

void near(const char *what, double got, double want, double tolerance) {
    check(std::fabs(got - want) <= tolerance * std::fmax(1.0, std::fabs(want)), "%s: %.9g, not %.9g", what, got, want);
}

void check_norms() {
    Random random(1);
    for (const Shape s : kShapes) {
        const size_t ld = s.width + 3;
        const std::vector<float> x = random.normals(s.rows * ld, 2.0f), w = random.normals(s.width);
        const auto whole = on_all("rms_norm", s.rows * ld, [&](const Kernels &k, float *y) {
            k.rms_norm(x.data(), ld, w.data(), 1e-5f, s.width, 0, s.rows, y, ld);
        });
        const auto parts = on_all("rms_norm by rows", s.rows * ld, [&](const Kernels &k, float *y) {
            for (int32_t r = s.rows; r-- > 0;) k.rms_norm(x.data(), ld, w.data(), 1e-5f, s.width, r, r + 1, y, ld);
        });
        check(same_bits(whole, parts), "rms_norm depends on its share");
        for (int32_t r = 0; r < s.rows; r++) {
            double squares = 0;
            for (int32_t i = 0; i < s.width; i++) squares += (double)x[r * ld + i] * x[r * ld + i];
            const double scale = 1 / std::sqrt(squares / s.width + 1e-5);
            for (int32_t i = 0; i < s.width; i++) near("rms_norm", whole[r * ld + i], x[r * ld + i] * scale * w[i], 1e-6);
            check(whole[r * ld + s.width] == -77.0f, "rms_norm writes past the row");
        }
        const int32_t heads = 3;
        const std::vector<float> h = random.normals((size_t)s.rows * heads * s.width);
        const auto normed = on_all("head_norm", h.size(), [&](const Kernels &k, float *y) {
            std::memcpy(y, h.data(), h.size() * sizeof(float));
            k.head_norm(y, (size_t)heads * s.width, w.data(), 1e-6f, heads, s.width, 0, s.rows);
        });
        std::vector<float> one(s.width);
        kernel_sets()[0]->rms_norm(&h[s.width], s.width, w.data(), 1e-6f, s.width, 0, 1, one.data(), s.width);
        check(std::memcmp(one.data(), &normed[s.width], s.width * sizeof(float)) == 0, "head_norm is not rms_norm of a head");
    }
}

void check_rope() {
    Random random(2);
    for (const int32_t half : {1, 4, 8, 20, 32, 48, 64, 128}) {
        const int32_t rows = 5, heads = 2, head_size = 2 * half + (half % 3) * 8;
        std::vector<float> cosines, sines;
        for (int32_t p = 0; p < 40; p++)
            for (int32_t i = 0; i < half; i++) {
                const double angle = p * std::pow(10000.0, -(double)i / half);
                cosines.push_back((float)std::cos(angle));
                sines.push_back((float)std::sin(angle));
            }
        const int32_t positions[rows] = {0, 39, 7, 7, 1};
        const size_t ld = (size_t)heads * head_size + 2;
        const std::vector<float> x = random.normals(rows * ld);
        const auto y = on_all("rope", x.size(), [&](const Kernels &k, float *out) {
            std::memcpy(out, x.data(), x.size() * sizeof(float));
            k.rope(out, ld, cosines.data(), sines.data(), positions, heads, head_size, half, 0, 3);
            k.rope(out, ld, cosines.data(), sines.data(), positions, heads, head_size, half, 3, rows);
        });
        for (int32_t r = 0; r < rows; r++)
            for (int32_t h = 0; h < heads; h++) {
                const float *a = &x[r * ld + h * head_size], *b = &y[r * ld + h * head_size];
                for (int32_t i = 0; i < half; i++) {
                    const double c = cosines[positions[r] * half + i], s = sines[positions[r] * half + i];
                    near("rope", b[i], a[i] * c - a[i + half] * s, 3e-7);
                    near("rope", b[i + half], a[i + half] * c + a[i] * s, 3e-7);
                }
                for (int32_t i = 2 * half; i < head_size; i++) check(a[i] == b[i], "rope turns dims past 2 * half");
            }
    }
}

void check_activations() {
    Random random(3);
    const float extremes[] = {0.0f, -0.0f, 1e-30f, 90.0f, -90.0f, -120.0f, 1e4f, -1e4f, -87.4f, -86.5f, 3.4e38f};
    for (const Shape s : kShapes)
        for (const int32_t kind : {0, 1}) {
            std::vector<float> gate = random.normals((size_t)s.rows * s.width, 3.0f), up = random.normals(gate.size());
            for (size_t i = 0; i < gate.size(); i += 7) gate[i] = extremes[i / 7 % (kind ? 8 : 11)];
            const auto whole = on_all("glu", gate.size(), [&](const Kernels &k, float *y) {
                k.glu(gate.data(), up.data(), s.width, y, s.width, kind, 0, s.rows, 0, s.width);
            });
            const auto parts = on_all("glu by columns", gate.size(), [&](const Kernels &k, float *y) {
                for (int32_t c = 0; c < s.width; c += 13)
                    k.glu(gate.data(), up.data(), s.width, y, s.width, kind, 0, s.rows, c, c + 13 < s.width ? c + 13 : s.width);
            });
            check(same_bits(whole, parts), "glu depends on its share");
            for (size_t i = 0; i < gate.size(); i++) {
                const double x = gate[i], u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
                const double want = (kind ? x / (1 + std::exp(-2 * u)) : x / (1 + std::exp(-x))) * up[i];
                if (std::fabs(want) > 3.4e38) check(std::isinf(whole[i]), "an overflow must show");
                else near(kind ? "gelu" : "silu", whole[i], want, 1e-6);
            }
        }
}

void check_sums_and_caps() {
    Random random(4);
    for (const Shape s : kShapes) {
        const size_t ld = s.width + 1;
        const std::vector<float> a = random.normals(s.rows * ld, 20.0f), b = random.normals(s.rows * ld);
        const auto sum = on_all("add", a.size(), [&](const Kernels &k, float *y) {
            k.add(a.data(), ld, b.data(), ld, y, ld, s.width, 0, s.rows);
        });
        const auto capped = on_all("softcap", a.size(), [&](const Kernels &k, float *y) {
            std::memcpy(y, a.data(), a.size() * sizeof(float));
            k.softcap(y, ld, 30.0f, s.width, 0, s.rows);
        });
        for (int32_t r = 0; r < s.rows; r++)
            for (int32_t i = 0; i < s.width; i++) {
                const size_t at = r * ld + i;
                check(sum[at] == a[at] + b[at], "add");
                near("softcap", capped[at], 30 * std::tanh(a[at] / 30.0), 5e-7);
            }
    }
}

// Halves are rounded to nearest even, subnormals and overflow included, wherever a token lands.
void check_kv_write() {
    const int32_t dims = 24, kv_heads = 2, tokens = 19;
    Random random(5);
    std::vector<float> k = random.normals((size_t)tokens * kv_heads * dims), v = random.normals(k.size());
    const float special[] = {65504, 65519, 65520, 1e9f, -1e9f, 6e-8f, 2.9e-8f, 3.1e-8f, 1e-5f, -0.0f, 1.00048828125f, 2049};
    for (size_t i = 0; i < v.size(); i += 3) v[i] = special[i / 3 % 12], k[i + 1] = special[i / 3 % 12];
    std::vector<int32_t> positions, row_of, ids(tokens, 0);
    for (int32_t t = 0; t < tokens; t++) positions.push_back(5 + t), row_of.push_back(0);
    const int32_t starts[2] = {0, tokens}, lens[1] = {5 + tokens};
    for (const int32_t block : {1, 4, 16, 24, 32})
        for (const KVType type : {KVType::F16, KVType::F32, KVType::I8, KVType::I16}) {
            std::vector<int32_t> table;
            for (int32_t b = 0; b * block < lens[0]; b++) table.push_back(30 - b);
            const Batch batch = {1, tokens, ids.data(), positions.data(), row_of.data(), starts, lens, table.data(),
                                 (int32_t)table.size()};
            const KVUnit layout = kv_unit(type, block, dims);
            const size_t bytes = (size_t)31 * kv_heads * layout.per_block * layout.bytes;
            on_all("kv_write", bytes / 4, [&](const Kernels &kernels, float *pool) {
                const KVLayer kv = {type, block, kv_heads, dims, (uint8_t *)pool};
                const size_t ld = (size_t)kv_heads * dims;
                for (int32_t t = 0; t < 4; t++)
                    kernels.kv_write(&batch, &kv, k.data(), ld, v.data(), ld, t / 2 * 7, t < 2 ? 7 : tokens, t % 2, t % 2 + 1);
                if (type != KVType::F32) return;
                const int32_t unit = block % 16 ? block : 16, p = 20;                // one token by the written layout
                const size_t per_block = (size_t)block * kv_heads * dims * 2;
                const float *u = pool + table[p / block] * per_block +
                                 ((size_t)1 * (block / unit) + p % block / unit) * 2 * unit * dims;
                const size_t from = ((size_t)(p - 5) * kv_heads + 1) * dims;
                for (int32_t d = 0; d < dims; d++) {
                    check(u[d * unit + p % unit] == k[from + d], "K of block %d", block);
                    check(u[unit * dims + p % unit * dims + d] == v[from + d], "V of block %d", block);
                }
            });
        }
}

}  // namespace

int main() {
    check_norms();
    check_rope();
    check_activations();
    check_sums_and_caps();
    check_kv_write();
    return report("elementwise");
}
