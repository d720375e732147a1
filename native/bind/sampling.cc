// Drawing tokens and log-probabilities: rows are taken by threads one at a time; a row's result depends on itself only.
#include <algorithm>
#include <atomic>
#include <optional>

#include "arrays.h"

namespace headrace::bind {
namespace {

constexpr size_t kScratchExtra = 64 << 10;

using Logits = nb::ndarray<float, nb::ndim<2>, nb::device::cpu>;

struct LogitRows { float *data; int32_t rows, vocab; size_t ld; };

LogitRows check_logits(const Logits &logits) {
    if (logits.shape(1) < 1) fail("logits need columns");
    if (logits.stride(1) != 1 || logits.stride(0) < 0) fail("rows of logits must be contiguous");
    return {logits.data(), to_int32("the rows of logits", logits.shape(0)), to_int32("the vocabulary", logits.shape(1)),
            static_cast<size_t>(logits.stride(0))};
}

template <class A> const auto *column(const A &array, const char *name, int32_t rows) {
    if (array.shape(0) != static_cast<size_t>(rows)) fail(std::string(name) + " needs one entry per row of logits");
    return array.data();
}

// Entries of row s are [start[s], start[s + 1]); ids are below the vocabulary.
void check_csr(const char *name, const Array<int32_t, 1> &start, const Array<int32_t, 1> &ids, size_t values, const LogitRows &rows) {
    const auto wrong = [name](const char *what) { fail(std::string(name) + ": " + what); };
    if (start.shape(0) != static_cast<size_t>(rows.rows) + 1) wrong("start needs one entry more than there are rows");
    if (ids.shape(0) != values) wrong("ids and values have different lengths");
    if (start.data()[0] != 0 || static_cast<size_t>(start.data()[rows.rows]) != ids.shape(0)) wrong("start must run from 0 to the number of ids");
    for (int32_t s = 0; s < rows.rows; s++)
        if (start.data()[s] > start.data()[s + 1]) wrong("start must not descend");
    for (size_t i = 0; i < ids.shape(0); i++)
        if (ids.data()[i] < 0 || ids.data()[i] >= rows.vocab) wrong("an id is outside the vocabulary");
}

// The arrays of a SampleBatch, checked against the logits. Holds references, so the data stays.
struct BatchArrays {
    BatchArrays(nb::handle batch, const LogitRows &rows)
        : positions(array_attribute<int32_t, 1>(batch, "positions")), top_k(array_attribute<int32_t, 1>(batch, "top_k")),
          num_logprobs(array_attribute<int32_t, 1>(batch, "num_logprobs")), seeds(array_attribute<uint64_t, 1>(batch, "seeds")),
          temperature(array_attribute<float, 1>(batch, "temperature")), top_p(array_attribute<float, 1>(batch, "top_p")),
          min_p(array_attribute<float, 1>(batch, "min_p")), penalties(array_attribute<float, 2>(batch, "penalties")) {
        column(positions, "positions", rows.rows);
        column(top_k, "top_k", rows.rows);
        column(num_logprobs, "num_logprobs", rows.rows);
        column(seeds, "seeds", rows.rows);
        column(temperature, "temperature", rows.rows);
        column(top_p, "top_p", rows.rows);
        column(min_p, "min_p", rows.rows);
        column(penalties, "penalties", rows.rows);
        if (penalties.shape(1) != 3) fail("penalties need three columns");
        read_optional(batch, rows);
        for (int32_t s = 0; s < rows.rows; s++) {
            const int32_t k = num_logprobs.data()[s];
            if (k < -1 || k > rows.vocab) fail("num_logprobs must lie between -1 and the vocabulary");
            max_logprobs = std::max(max_logprobs, k);
            wants_logprobs = wants_logprobs || k >= 0;
        }
    }

    SampleArgs row(int32_t s, const LogitRows &rows) const {
        SampleArgs args = {};
        args.logits = rows.data + s * rows.ld;
        args.vocab = rows.vocab;
        if (maxima) args.maxima = maxima->data() + size_t(s) * maxima->shape(1);
        args.temperature = temperature.data()[s];
        args.top_k = top_k.data()[s];
        args.top_p = top_p.data()[s];
        args.min_p = min_p.data()[s];
        args.repetition = penalties.data()[3 * s];
        args.presence = penalties.data()[3 * s + 1];
        args.frequency = penalties.data()[3 * s + 2];
        args.seed = seeds.data()[s];
        args.position = positions.data()[s];
        args.num_logprobs = num_logprobs.data()[s];
        if (seen_start) {
            const int32_t begin = seen_start->data()[s];
            args.seen_ids = seen_ids->data() + begin;
            args.seen_counts = seen_counts->data() + begin;
            args.num_seen = seen_start->data()[s + 1] - begin;
        }
        if (bias_start) {
            const int32_t begin = bias_start->data()[s];
            args.bias_ids = bias_ids->data() + begin;
            args.bias_values = bias_values->data() + begin;
            args.num_bias = bias_start->data()[s + 1] - begin;
        }
        if (mask_row && mask_row->data()[s] >= 0) args.allowed = masks->data() + size_t(mask_row->data()[s]) * masks->shape(1);
        return args;
    }

    bool is_plain() const { return !seen_start && !bias_start && !mask_row && !wants_logprobs; }

    void set_maxima(std::optional<Array<float, 2>> given, const LogitRows &rows) {
        maxima = std::move(given);
        if (!maxima) return;
        column(*maxima, "maxima", rows.rows);
        if (maxima->shape(1) != (static_cast<size_t>(rows.vocab) + kMaximaGroup - 1) / kMaximaGroup) fail("maxima need one column per 64 tokens of the vocabulary");
    }

    // Whether every row is found by looking at its maxima: less work than waking a thread.
    bool is_light(const LogitRows &rows) const {
        if (!maxima || !is_plain()) return false;
        for (int32_t s = 0; s < rows.rows; s++)
            if (!(temperature.data()[s] < 1e-6f)) return false;
        return true;
    }

    int32_t max_logprobs = 0;
    bool wants_logprobs = false;

  private:
    void read_optional(nb::handle batch, const LogitRows &rows) {
        if (!batch.attr("maxima").is_none()) set_maxima(array_attribute<float, 2>(batch, "maxima"), rows);
        if (nb::object seen = batch.attr("seen"); !seen.is_none()) {
            seen_start = array_attribute<int32_t, 1>(seen, "start");
            seen_ids = array_attribute<int32_t, 1>(seen, "ids");
            seen_counts = array_attribute<int32_t, 1>(seen, "counts");
            check_csr("seen", *seen_start, *seen_ids, seen_counts->shape(0), rows);
        }
        if (nb::object bias = batch.attr("bias"); !bias.is_none()) {
            bias_start = array_attribute<int32_t, 1>(bias, "start");
            bias_ids = array_attribute<int32_t, 1>(bias, "ids");
            bias_values = array_attribute<float, 1>(bias, "values");
            check_csr("bias", *bias_start, *bias_ids, bias_values->shape(0), rows);
        }
        if (nb::object allowed = batch.attr("allowed"); !allowed.is_none()) {
            mask_row = array_attribute<int32_t, 1>(allowed, "row");
            masks = array_attribute<uint32_t, 2>(allowed, "masks");
            column(*mask_row, "allowed.row", rows.rows);
            if (masks->shape(1) != (static_cast<size_t>(rows.vocab) + 31) / 32) fail("masks need one bit per token of the vocabulary");
            for (int32_t s = 0; s < rows.rows; s++)
                if (mask_row->data()[s] < -1 || mask_row->data()[s] >= static_cast<int64_t>(masks->shape(0))) fail("allowed.row names a mask that is not there");
        }
    }

    Array<int32_t, 1> positions, top_k, num_logprobs;
    Array<uint64_t, 1> seeds;
    Array<float, 1> temperature, top_p, min_p;
    Array<float, 2> penalties;
    std::optional<Array<int32_t, 1>> seen_start, seen_ids, seen_counts, bias_start, bias_ids, mask_row;
    std::optional<Array<float, 1>> bias_values;
    std::optional<Array<uint32_t, 2>> masks;
    std::optional<Array<float, 2>> maxima;
};

struct Results {
    Results(int32_t rows, int32_t k) : max_k(k) {
        const size_t s = rows;
        arrays = nb::make_tuple(new_array(tokens, {s}), new_array(logprobs, {s}), new_array(ranks, {s}), new_array(errors, {s}),
                                new_array(top_ids, {s, size_t(k)}), new_array(top_logprobs, {s, size_t(k)}));
        std::fill(top_ids, top_ids + s * k, -1);
    }
    int32_t max_k;
    int32_t *tokens, *ranks, *errors, *top_ids;
    float *logprobs, *top_logprobs;
    nb::tuple arrays;
};

// f(row, scratch) for every row; each thread takes the next row.
// `alone`: this thread does all, as waking the others costs more than it gives.
template <class F> void for_rows(Runtime &runtime, const LogitRows &rows, bool alone, F f) {
    nb::gil_scoped_release release;
    std::lock_guard<std::mutex> lock(runtime.scratch_mutex);
    const size_t slice = round_up(4 * size_t(rows.vocab) + kScratchExtra, kAlign);
    const size_t wanted = checked_product({slice, size_t(runtime.pool->size())});
    if (!runtime.scratch || runtime.scratch->size() < wanted) runtime.scratch = std::make_unique<Region>(wanted);
    std::atomic<int32_t> next{0};
    const auto work = [&](int thread, int) {
        float *scratch = reinterpret_cast<float *>(runtime.scratch->data() + slice * thread);
        for (int32_t s; (s = next.fetch_add(1)) < rows.rows;) f(s, scratch);
    };
    if (alone || rows.rows == 1) work(0, 1);
    else if (rows.rows > 1) runtime.pool->run(work);
}

nb::tuple sample(Runtime &runtime, const Logits &logits, nb::handle batch) {
    const LogitRows rows = check_logits(logits);
    const BatchArrays arrays(batch, rows);
    Results results(rows.rows, arrays.max_logprobs);
    for_rows(runtime, rows, arrays.is_light(rows), [&](int32_t s, float *scratch) {
        SampleArgs args = arrays.row(s, rows);
        args.scratch = scratch;
        args.top_ids = results.top_ids + size_t(s) * results.max_k;
        args.top_logprobs = results.top_logprobs + size_t(s) * results.max_k;
        runtime.kernels->sample(&args);
        results.tokens[s] = args.token;
        results.logprobs[s] = args.logprob;
        results.ranks[s] = args.rank;
        results.errors[s] = args.error;
    });
    return results.arrays;
}

// Draws tokens and nothing else, again and again, with the arrays of one batch. They are taken over once: for greedy rows that
// costs more than drawing.
class Sampler {
  public:
    Sampler(nb::handle batch, int32_t rows, int32_t vocab) : rows_(rows), vocab_(vocab), arrays_(batch, {nullptr, rows, vocab, 0}) {
        if (!arrays_.is_plain()) fail("a sampler draws for batches without seen tokens, biases, masks and log-probabilities");
    }
    nb::tuple operator()(Runtime &runtime, const Logits &logits, std::optional<Array<float, 2>> maxima) {
        const LogitRows rows = check_logits(logits);
        if (rows.rows != rows_ || rows.vocab != vocab_) fail("logits of another shape than the sampler was made for");
        arrays_.set_maxima(std::move(maxima), rows);
        int32_t *tokens, *errors;
        nb::tuple result = nb::make_tuple(new_array(tokens, {size_t(rows_)}), new_array(errors, {size_t(rows_)}));
        for_rows(runtime, rows, arrays_.is_light(rows), [&](int32_t s, float *scratch) {
            SampleArgs args = arrays_.row(s, rows);
            args.scratch = scratch;
            args.num_logprobs = -1;
            runtime.kernels->sample(&args);
            tokens[s] = args.token;
            errors[s] = args.error;
        });
        return result;
    }

  private:
    int32_t rows_, vocab_;
    BatchArrays arrays_;
};

nb::tuple logprobs(Runtime &runtime, const Logits &logits, const Array<int32_t, 1> &tokens, int32_t k) {
    const LogitRows rows = check_logits(logits);
    const int32_t *wanted = column(tokens, "tokens", rows.rows);
    if (k < 0 || k > rows.vocab) fail("k must lie between 0 and the vocabulary");
    for (int32_t s = 0; s < rows.rows; s++)
        if (wanted[s] < 0 || wanted[s] >= rows.vocab) fail("a token is outside the vocabulary");
    Results results(rows.rows, k);
    for_rows(runtime, rows, false, [&](int32_t s, float *) {
        results.tokens[s] = wanted[s];
        runtime.kernels->logprobs(rows.data + s * rows.ld, rows.vocab, wanted[s], k, &results.logprobs[s], &results.ranks[s],
                                  results.top_ids + size_t(s) * k, results.top_logprobs + size_t(s) * k);
    });
    return results.arrays;
}

}  // namespace

void bind_sampling(nb::module_ &module, nb::class_<Runtime> &runtime) {
    nb::class_<Sampler>(module, "Sampler")
        .def(nb::init<nb::handle, int32_t, int32_t>(), nb::arg("batch"), nb::arg("rows"), nb::arg("vocab"))
        .def("__call__", &Sampler::operator(), nb::arg("runtime"), nb::arg("logits").noconvert(), nb::arg("maxima").noconvert().none(),
             "runtime, logits, maxima or None -> tokens, errors");
    runtime.def("sample", &sample, nb::arg("logits").noconvert(), nb::arg("batch"), "logits, batch -> tokens, logprobs, ranks, errors, top_ids, top_logprobs")
        .def("logprobs", &logprobs, nb::arg("logits").noconvert(), nb::arg("tokens").noconvert(), nb::arg("k"), "logits, tokens, k -> the same");
}

}  // namespace headrace::bind
