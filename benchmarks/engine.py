"""Headrace in process: the engine's own loop without text, HTTP or a second process."""

import random
import time
from itertools import count
from pathlib import Path

from headrace.base.config import EngineConfig
from headrace.base.ids import BlockId, RequestId
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.step import BlockMove, MoveKind, StepPlan
from headrace.engine.build import build_core, open_model
from headrace.engine.llm import with_overrides

FEW_IDS = 20
"""Token ids below this are left out of made-up prompts: special tokens lie there or at the end."""
KV_BLOCKS = 2048
"""Blocks of the pool: 32,768 tokens, more than any part keeps."""


class Engine:
    """One model, ready to be timed.

    Args:
        model: a `.gguf` file or checkpoint directory.
        settings: settings of the engine by name, besides the defaults.
    """

    def __init__(self, model: Path, **settings: object) -> None:
        config = with_overrides(EngineConfig(), {"model": str(model), "num_blocks": KV_BLOCKS, **settings})
        self.opened = open_model(config, with_text=False)
        self.core = build_core(self.opened)
        self.vocab = self.opened.checkpoint.spec.vocab_size
        self.step_tokens = self.opened.resolved.max_num_batched_tokens
        self._numbers = count()
        self._touch()
        self.prefill_s(min(self.step_tokens, self.opened.resolved.max_model_len - 1), seed=0)  # warms up

    def _touch(self) -> None:
        """Write every block once: memory comes at the first touch, which peers do as they start."""
        blocks = self.opened.resolved.num_blocks
        moves = (BlockMove(kind=MoveKind.COPY, src=BlockId(0), dst=BlockId(b)) for b in range(1, blocks))
        self.core.runner.run(StepPlan(step=0, moves=tuple(moves)))

    def prompt(self, seed: int, tokens: int) -> tuple[int, ...]:
        """Random token ids; the same seed gives the same prompt."""
        rng = random.Random(seed)
        return tuple(rng.randrange(FEW_IDS, self.vocab - 1000) for _ in range(tokens))

    def prefill_s(self, tokens: int, seed: int) -> float:
        """Seconds from the first step to the first token of one new prompt."""
        began = time.perf_counter()
        self._add([self.prompt(seed, tokens)], 1)
        self._drain()
        return time.perf_counter() - began

    def decode_s(self, prompts: list[tuple[int, ...]], steps: int) -> float:
        """Seconds of `steps` steps in which every sequence gets a token, once all prompts are computed.

        Raises:
            RuntimeError: a step did not serve every sequence (the KV pool is too small for them).
        """
        names = self._add(prompts, 4096)
        waiting = set(names)
        while waiting:
            waiting -= set(self._step())
        began = time.perf_counter()
        for _ in range(steps):
            if (served := len(self._step())) != len(names):
                raise RuntimeError(f"a step served {served} of {len(names)} sequences")
        seconds = time.perf_counter() - began
        self.core.finish(names, FinishReason.ABORT)
        self._drain()
        return seconds

    def close(self) -> None:
        self.core.close()

    def _add(self, prompts: list[tuple[int, ...]], most: int) -> list[RequestId]:
        names = [RequestId(f"bench-{next(self._numbers)}") for _ in prompts]
        longest = self.opened.resolved.max_model_len
        for name, prompt in zip(names, prompts, strict=True):
            sampling = SamplingParams(
                temperature=0, max_tokens=min(most, longest - len(prompt)), ignore_eos=True, seed=1
            )
            self.core.add((Request(request_id=name, prompt_ids=prompt, sampling=sampling),))
        return names

    def _step(self) -> list[RequestId]:
        """One step; the sequences that got a token."""
        news = self.core.step()
        return [d.request_id for d in news.deltas if d.new_ids] if news else []

    def _drain(self) -> None:
        while self.core.has_work:
            self.core.step()
