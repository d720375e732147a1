"""What a training goes on from: heads that were written before, if they are those that are asked for."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.base.config import EngineConfig
from headrace.base.errors import ConfigError
from headrace.compute.ops.api import I32
from headrace.compute.weights.formats.safetensors import read_json
from headrace.tools.distill.folder import read_folder
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.text import Sample

_WORDS = {"method": "--heads", "model": "model", "prompts": "--prompts with the digest"}
_COUNTS = ("rounds", "training_tokens", "steps", "seconds")
_MOST = 1 << 62


@dataclass(frozen=True, slots=True)
class Before:
    """What was trained before; nothing without `resume`."""

    rounds: int = 0
    training_tokens: int = 0
    steps: int = 0
    seconds: float = 0.0
    judged: str | None = None
    """Digest of the texts to judge by."""
    tensors: Mapping[str, NDArray[Any]] | None = None
    tokens: I32 | None = None


def digest_of(values: Sequence[Any]) -> str:
    """A digest of texts or samples, in hex."""
    return blake2b(json.dumps(values).encode(), digest_size=16).hexdigest()


def origin_of(config: EngineConfig, plan: Plan, prompts: Sequence[str]) -> dict[str, Any]:
    """What the report says heads were made with: all that the texts to judge by depend on."""
    return {
        "method": plan.method,
        "model": config.model.model,
        "seed": plan.seed,
        "depth": plan.heads,
        "max_tokens": plan.max_tokens,
        "prompts": digest_of(prompts),
    }


def before_of(plan: Plan, origin: Mapping[str, Any], vocab_size: int) -> Before:
    """What `plan.out` holds, if it is to be gone on with.

    Raises:
        ConfigError: nothing, heads made with other things, or a broken report.
        CheckpointError: the heads are broken.
    """
    if not plan.resume:
        return Before()
    report, tensors = read_folder(plan.out)
    for key, wanted in origin.items():
        found = report.get(key)
        if type(found) is not type(wanted) or found != wanted:
            words = _WORDS.get(key, "--" + key.replace("_", "-"))
            raise _refusal(
                f"the heads in {plan.out} were made with {words} {found!r:.80}, asked for is {wanted!r:.80}",
                "ask for the same, which the texts to judge by depend on",
            )
    counts: list[Any] = [report.get(key) for key in _COUNTS]
    for key, value in zip(_COUNTS, counts, strict=True):
        kinds = (int, float) if key == "seconds" else (int,)
        if type(value) not in kinds or not 0 <= value <= _MOST:
            what = "a number" if key == "seconds" else "a whole number"
            raise _refusal(
                f"{plan.out / 'report.json'}: {key!r} must be {what} in [0, {_MOST}], got {value!r:.80}",
                "mend it",
            )
    judged = report.get("judged")
    if type(judged) is not str:
        raise _refusal(f"{plan.out / 'report.json'}: 'judged' must be a text, got {judged!r:.80}", "mend it")
    return Before(*counts, judged=judged, tensors=tensors, tokens=tokens_of(plan, tensors, vocab_size))


def tokens_of(plan: Plan, tensors: Mapping[str, NDArray[Any]], vocab_size: int) -> I32:
    """The vocabulary of heads of `plan.out`, ascending.

    Args:
        plan: what is asked for.
        tensors: those of the heads.
        vocab_size: of the model that they draft for.

    Raises:
        ConfigError: they have none, or one for another model.
    """
    name = "token_map" if plan.method == "medusa" else "d2t"
    found = tensors.get(name)
    if found is not None and found.dtype == np.int64 and found.ndim == 1 and len(found):
        tokens = found if plan.method == "medusa" else found + np.arange(len(found))
        if tokens[0] >= 0 and tokens[-1] < vocab_size and (np.diff(tokens) > 0).all():
            return tokens.astype(np.int32)
    raise _refusal(
        f"{plan.out}: {name!r} must give different tokens below {vocab_size} in ascending order, as int64",
        "take the model that they were trained with",
    )


def check_config(out: Path, wanted: Mapping[str, Any]) -> None:
    """Refuse heads that compute something else although their shapes are the same.

    Args:
        out: their folder.
        wanted: `config.json` as it would be written.

    Raises:
        ConfigError: theirs is another.
        CheckpointError: it is missing or broken.
    """
    path = out / "config.json"
    found = read_json(path)
    for key in sorted(wanted.keys() | found.keys()):
        one, other = found.get(key), wanted.get(key)
        if one != other:
            raise _refusal(
                f"{path}: {key!r} is {one!r:.80}, that of heads to go on from must be {other!r:.80}",
                "take the model that they were trained with",
            )


def check_judged(out: Path, before: Before, judge: Sequence[Sample]) -> str:
    """The digest of the texts to judge by.

    Raises:
        ConfigError: those of the heads to go on from were others, so that reports could not be compared.
    """
    digest = digest_of(judge)
    if before.judged not in (None, digest):
        raise _refusal(
            f"the model answers otherwise than when the heads in {out} were trained",
            "take the files of the model, the release and the --kv-dtype that they were trained with",
        )
    return digest


def _refusal(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"{what}; {remedy}, or leave --resume out to begin anew", param="resume")
