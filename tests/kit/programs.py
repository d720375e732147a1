"""The tiny model as a step program, and splits of prompts into rows and chunks."""

import numpy as np

from headrace.compute.ops.api import StepLimits
from tests.kit.steps import Rows, TinyModel

BLOCK, NUM_BLOCKS, WIDTH = 4, 40, 12
LIMITS = StepLimits(max_tokens=40, max_rows=6, max_logits=40, table_width=WIDTH)
PROMPT = np.random.default_rng(4).integers(0, TinyModel.vocab, 37)


class Tiny:
    """The tiny model on one backend."""

    def __init__(self, model, backend, dtype="f16", block_size=BLOCK):
        self.backend = backend
        self.kv = backend.kv_pool(model.geometry(block_size, dtype), NUM_BLOCKS)
        self.program = backend.compile(model.forward(backend), LIMITS, self.kv)

    def run(self, rows, ids, logits=None):
        return np.array(self.program.run(Rows(rows, WIDTH, list(ids), logits).context(self.kv)))


def check_splits(model, tiny: Tiny, times: int) -> None:
    """Prompts in any rows and chunks, with any logits wanted, give the bits of a run alone."""
    rng = np.random.default_rng(7)
    prompts = [rng.integers(0, model.vocab, n) for n in (1, 7, 16, 30)]
    alone = [Tiny(model, tiny.backend).run([(0, len(p), list(range(10)))], p) for p in prompts]
    for _ in range(times):
        order = rng.permutation(NUM_BLOCKS)
        tables = [order[10 * i : 10 * i + 10].tolist() for i in range(4)]
        done = [0] * 4
        while any(done[i] < len(prompts[i]) for i in range(4)):
            rows, ids, expected = [], [], []
            for i in rng.permutation(4):
                left = len(prompts[i]) - done[i]
                count = int(rng.integers(0, min(left, LIMITS.max_tokens - len(ids)) + 1))
                if count == 0:
                    continue
                rows.append((done[i], count, tables[i]))
                ids += prompts[i][done[i] : done[i] + count].tolist()
                expected.append(alone[i][done[i] : done[i] + count])
                done[i] += count
            if rows:
                wanted = np.concatenate(expected)
                assert tiny.run(rows, ids).tobytes() == wanted.tobytes()
                some = np.flatnonzero(rng.random(len(ids)) < 0.3).tolist()
                assert tiny.run(rows, ids, some).tobytes() == wanted[some].tobytes()
