"""A small paged harness: runs a checkpoint on any backend, whole or in chunks, several sequences at once."""

from dataclasses import dataclass, field

import numpy as np

from headrace.compute.models.load import load_model
from headrace.compute.ops.api import ForwardContext, StepLimits


@dataclass
class Sequence:
    slot: int
    table: list[int]
    prompt_len: int
    tokens: list[int] = field(default_factory=list)
    computed: int = 0


class Harness:
    """Runs one checkpoint on one backend. Blocks are handed out in a scrambled order, never returned."""

    def __init__(
        self,
        checkpoint,
        backend,
        *,
        max_len=512,
        block_size=16,
        num_blocks=256,
        dtype="f32",
        slots=8,
        packed=None,
    ):
        self.backend = backend
        self.model = load_model(checkpoint, backend, max_len, max_slots=slots, packed=packed)
        self.width = -(-max_len // block_size)
        self.block_size = block_size
        self.kv = backend.kv_pool(self.model.geometry(block_size, dtype), num_blocks)
        self.model.shift_keys(self.kv)
        limits = StepLimits(max_tokens=max_len, max_rows=slots, max_logits=max_len, table_width=self.width)
        self.program = backend.compile(self.model.forward, limits, self.kv)
        order = np.random.default_rng(5).permutation(num_blocks)
        self._free = [int(b) for b in order]
        self._slots = 0
        self._max_slots = slots

    def open(self, prompt, prompt_len=None):
        slot = self._slots % self._max_slots
        self._slots += 1
        seq = Sequence(slot=slot, table=[], prompt_len=prompt_len or len(prompt), tokens=list(prompt))
        self.model.rope.begin(slot, seq.prompt_len)
        return seq

    def step(self, rows, wanted="last"):
        """Run rows [(sequence, count)]; logits [S, V] of each row's last token, or of all tokens."""
        ids, positions, row_of, starts, key_len, rope_rows, logit_rows = [], [], [], [0], [], [], []
        tables = np.zeros((len(rows), self.width), np.int32)
        for r, (seq, count) in enumerate(rows):
            begin, end = seq.computed, seq.computed + count
            while len(seq.table) * self.block_size < end:
                seq.table.append(self._free.pop())
            here = np.arange(begin, end, dtype=np.int32)
            ids += seq.tokens[begin:end]
            positions.append(here)
            rope_rows.append(self.model.rope.rows(seq.slot, here, seq.prompt_len))
            row_of += [r] * count
            starts.append(starts[-1] + count)
            key_len.append(end)
            logit_rows += list(range(starts[-2], starts[-1])) if wanted == "all" else [starts[-1] - 1]
            tables[r, : len(seq.table)] = seq.table
            seq.computed = end
        i32 = lambda x: np.ascontiguousarray(x, dtype=np.int32)  # noqa: E731
        ctx = ForwardContext(
            token_ids=i32(ids),
            positions=i32(np.concatenate(positions)),
            row_of=i32(row_of),
            query_start=i32(starts),
            key_len=i32(key_len),
            tables=tables,
            rope_rows=i32(np.concatenate(rope_rows)),
            logit_rows=i32(logit_rows),
            kv=self.kv,
        )
        return np.array(self.program.run(ctx), copy=True)

    def logits(self, tokens, chunks=None):
        """Logits of every position [T, V], in one step or in chunks of the given sizes."""
        seq = self.open(tokens)
        sizes = chunks or [len(tokens)]
        assert sum(sizes) == len(tokens)
        return np.concatenate([self.step([(seq, n)], wanted="all") for n in sizes])

    def greedy(self, prompt, count):
        """Prompt, then `count` greedy tokens; returns the new tokens."""
        seq = self.open(prompt)
        logits = self.step([(seq, len(prompt))])
        for _ in range(count):
            seq.tokens.append(int(logits[0].argmax()))
            if len(seq.tokens) < len(prompt) + count:
                logits = self.step([(seq, 1)])
        return seq.tokens[len(prompt) :]


def log_softmax(logits):
    x = logits.astype(np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
