"""`headrace distill`: text, states, training, a folder, a report."""

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig, SpeculateConfig
from headrace.base.errors import ConfigError
from headrace.base.request import SamplingParams
from headrace.compute.models.decoder import Taps
from headrace.compute.ops.api import I32
from headrace.engine.build import open_model
from headrace.engine.llm import LLM
from headrace.tools.distill.folder import check_folder, write_folder
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.prompts import make_prompts
from headrace.tools.distill.resume import Before, before_of, check_config, check_judged, origin_of
from headrace.tools.distill.states import MAX_TOKENS, MIN_LAYERS, Known, Reader, fused_layers
from headrace.tools.distill.text import BATCH, Sample, answers

WRITE_SHARE = 0.2
"""Of the time, for text to train on; reading states takes what it takes."""
ROUND = 1 << 40
"""Seeds of a round's answers."""
MAX_STATE_BYTES = 2 << 30
"""Of hidden states; texts beyond that are not used."""


class Watcher(Protocol):
    """Sees how far the work is."""

    def phase(self, name: str) -> None:
        """Another part begins."""
        ...

    def move(self, share: float, note: str) -> None:
        """The part is done to this share."""
        ...


def distill(config: EngineConfig, plan: Plan, watcher: Watcher) -> dict[str, Any]:
    """Train heads, write them to `plan.out`, return the report that is written beside them.

    Raises:
        ConfigError: impossible settings, no prompts, or no torch.
        HeadraceError: the model cannot be used.
    """
    trainer_of, set_threads, fitted = _trainer(plan.method)
    check_folder(plan.out)
    config = replace(config, speculate=SpeculateConfig())
    prompts = make_prompts(plan.prompts, plan.seed)
    origin = origin_of(config, plan, prompts)
    target = open_model(config, with_text=False).checkpoint.spec
    taps = taps_of(plan.method, len(target.layers))
    before = before_of(plan, origin, target.vocab_size)
    if before.tensors is not None:
        check_config(plan.out, fitted(target, taps, before.tokens, plan, before.tensors))
    began_s = now_s()
    train, judge, judged = _write(config, plan, watcher, prompts, before)
    watcher.phase("states")
    reader = Reader(config, partial(taps_of, plan.method))
    try:
        held_out = list(_read(reader, judge, watcher))
        texts = list(_read(reader, train, watcher))
        tokens = before.tokens
        if tokens is None:
            tokens = frequent(train, plan.vocab, reader.spec.vocab_size)
        learner = trainer_of(reader, tokens, [*texts, *held_out], plan, before.tensors)
        spec, threads = reader.spec, reader.threads
    finally:
        reader.close()
    watcher.phase("training")
    set_threads(threads)
    seconds = max(60 * plan.minutes - (now_s() - began_s), 0.1 * 60 * plan.minutes)
    trainer = learner(seconds)
    steps = trainer.train(texts, partial(_tell_loss, watcher))
    accepted = acceptance_by_depth(trainer.ranks(held_out))
    known = np.isin(np.concatenate([t.ids[t.num_prompt :] for t in held_out]), tokens)
    report = {
        **origin,
        "temperature": plan.temperature,
        "rounds": before.rounds + 1,
        "training_tokens": before.training_tokens + sum(s.num_answer for s in train),
        "judged": judged,
        "judged_tokens": sum(s.num_answer for s in judge),
        "vocabulary": len(tokens),
        "vocabulary_covers": round(float(known.mean()), 4),
        "steps": before.steps + steps,
        "seconds": round(before.seconds + now_s() - began_s, 1),
        "acceptance_by_depth": [round(share, 4) for share in accepted],
        "tokens_per_step": round(1 + sum(accepted), 3),
    }
    write_folder(plan.out, trainer.config(spec.width, spec.vocab_size), trainer.tensors(), report)
    return report


def acceptance_by_depth(ranks: NDArray[np.int64]) -> list[float]:
    """For each depth, the share of places where all drafts up to it are right.

    Args:
        ranks: of the right tokens [depth, places], 0 the likeliest.
    """
    hits = np.logical_and.accumulate(ranks == 0, axis=0).sum(axis=1)
    return (hits / max(ranks.shape[1], 1)).tolist()


def frequent(samples: Sequence[Sample], most: int, vocab_size: int) -> I32:
    """The `most` tokens that answers use most, ascending.

    Where they use fewer, those with the lowest ids fill up: tokenizers mostly give them to what is frequent.
    """
    counts = Counter(token for sample in samples for token in sample.ids[sample.num_prompt :])
    order = sorted(range(vocab_size), key=lambda token: -counts[token])
    return np.array(sorted(order[:most]), np.int32)


def _write(
    config: EngineConfig, plan: Plan, watcher: Watcher, prompts: Sequence[str], before: Before
) -> tuple[list[Sample], list[Sample], str]:
    """Answers to train on, other ones in each round; greedy ones to other prompts to judge by, their digest.

    Raises:
        ConfigError: others than before to judge by.
    """
    watcher.phase("text")
    num_judge = max(1, min(BATCH, len(prompts) // 8))
    seed = (plan.seed + before.rounds * ROUND) % (1 << 62)
    sampling = SamplingParams(temperature=plan.temperature, seed=seed, max_tokens=plan.max_tokens)
    schedule = (
        config.schedule if config.schedule.max_num_seqs else replace(config.schedule, max_num_seqs=BATCH)
    )
    with _engine(replace(config, schedule=schedule)) as llm:
        greedy = replace(sampling, temperature=0.0)
        judge = list(
            answers(llm, prompts[:num_judge], greedy, 0.0, plan.text_tokens)
        )  # once: they are greedy
        judged = check_judged(plan.out, before, judge)
        train: list[Sample] = []
        began_s, wanted_s = now_s(), WRITE_SHARE * 60 * plan.minutes
        written = 0
        for sample in answers(llm, prompts[num_judge:], sampling, wanted_s, plan.text_tokens):
            train.append(sample)
            written += sample.num_answer
            share = max((now_s() - began_s) / wanted_s, written / plan.text_tokens)
            watcher.move(min(share, 1.0), f"{written} tokens")
    return _useful(train, plan), _useful(judge, plan), judged


def _useful(samples: Sequence[Sample], plan: Plan) -> list[Sample]:
    """Those that all heads can learn from."""
    found = [s for s in samples if s.num_answer > plan.heads + 1 and s.num_prompt < MAX_TOKENS // 2]
    if not found:
        raise ConfigError(
            "the model's answers are too short to train heads on; take other --prompts or more --max-tokens"
        )
    return found


@contextmanager
def _engine(config: EngineConfig) -> Generator[LLM]:
    llm = LLM(config)
    try:
        yield llm
    finally:
        llm.close()


def _read(reader: Reader, samples: Sequence[Sample], watcher: Watcher) -> Iterator[Known]:
    num_bytes = 0
    for i, sample in enumerate(samples, 1):
        known = reader.read(sample.ids, sample.num_prompt)
        num_bytes += sum(states.nbytes for states in known.states)
        if num_bytes > MAX_STATE_BYTES:
            return
        yield known
        watcher.move(i / len(samples), f"{i} texts")


def _tell_loss(watcher: Watcher, share: float, loss: float) -> None:
    watcher.move(share, f"loss {loss:.3f}")


def _trainer(method: str) -> tuple[Any, Callable[[int], None], Any]:
    """What makes a trainer, what sets its threads, and what sees whether earlier heads fit.

    Torch is looked for first, before anything is computed.

    Raises:
        ConfigError: torch is not installed.
    """
    try:
        from headrace.tools.distill.make import (  # noqa: PLC0415 - torch
            fitted,
            make_eagle,
            make_medusa,
            set_threads,
        )
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"training heads needs {error.name}: pip install 'headrace[compress]'", param="heads"
        ) from error
    return make_medusa if method == "medusa" else make_eagle, set_threads, fitted


def taps_of(method: str, layers: int) -> Taps:
    """The states that heads learn from."""
    if method == "medusa":
        return Taps(normed=True)
    if layers < MIN_LAYERS:
        raise ConfigError(
            f"EAGLE heads need a model of {MIN_LAYERS} layers, this has {layers}; take --heads medusa",
            param="heads",
        )
    return Taps(inputs_of=fused_layers(layers), normed=True)
