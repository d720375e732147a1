// Checks of a step's inputs: whatever passes cannot make a kernel leave its memory.
#include <stdexcept>
#include <string>

#include "headrace/program.h"
#include "model_memory.h"

namespace headrace {
namespace {

[[noreturn]] void fail(const std::string &message) { throw std::invalid_argument(message); }

void expect_range(const char *what, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
        fail(std::string(what) + " is " + std::to_string(value) + "; allowed: " + std::to_string(low) + " to " + std::to_string(high));
}

void expect_indices(const char *what, const int32_t *values, int32_t count, int64_t limit) {
    for (int32_t i = 0; i < count; i++) expect_range(what, values[i], 0, limit - 1);
}

}  // namespace

void Program::check(const StepInputs &inputs) const {
    if (!finished_) fail("the program is not finished");
    const Batch &batch = inputs.batch;
    expect_range("the number of tokens", batch.num_tokens, 1, limits_.max_tokens);
    expect_range("the number of rows", batch.num_rows, 1, limits_.max_rows);
    expect_range("the number of logit rows", inputs.num_logits, 0, limits_.max_logits);
    expect_range("the width of the block tables", batch.table_width, 1, limits_.table_width);
    check_row_lists(inputs);
    check_sequences(batch);
}

void Program::check_row_lists(const StepInputs &inputs) const {
    const int32_t tokens = inputs.batch.num_tokens;
    expect_indices("a token id", inputs.batch.token_ids, tokens, vocab_);
    expect_indices("a row of the angle tables", inputs.rope_rows, tokens, angle_rows_);
    expect_indices("a logit row", inputs.logit_rows, inputs.num_logits, tokens);
    for (int32_t i = 1; i < inputs.num_logits; i++)
        if (inputs.logit_rows[i] <= inputs.logit_rows[i - 1]) fail("logit rows must ascend");
}

void Program::check_sequences(const Batch &batch) const {
    const int32_t block_size = kv_->shape().block_size;
    if (batch.query_start[0] != 0 || batch.query_start[batch.num_rows] != batch.num_tokens)
        fail("query starts must run from 0 to the number of tokens");
    for (int32_t r = 0; r < batch.num_rows; r++) {
        const int64_t begin = batch.query_start[r], end = batch.query_start[r + 1], keys = batch.key_len[r];
        if (begin >= end || begin < 0 || end > batch.num_tokens) fail("query starts must ascend, every row with at least one token");
        expect_range("a key length", keys, end - begin, int64_t(batch.table_width) * block_size);
        for (int64_t t = begin; t < end; t++) {
            if (batch.row_of[t] != r) fail("the rows of tokens do not agree with the query starts");
            if (batch.positions[t] != keys - (end - t)) fail("positions must be the last ones of their row's keys");
        }
        expect_indices("a block", batch.tables + int64_t(r) * batch.table_width,
                       static_cast<int32_t>((keys + block_size - 1) / block_size), kv_->shape().num_blocks);
    }
}

}  // namespace headrace
