"""What a search may change: settings, the values worth trying, and the bottleneck that each attacks."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.base.config import all_settings
from headrace.base.errors import RequestError

Value = bool | int | float | str
Point = Mapping[str, Value]
"""Settings that differ from the defaults, by `section.field`."""
DEFAULT: Point = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Knob:
    """A setting and the values that are tried besides its default."""

    setting: str
    """`section.field`."""
    values: tuple[Value, ...]
    attacks: str
    is_lossy: bool = False
    """It changes answers, if little; tried only when that is allowed."""


KNOBS = (
    Knob(
        "speculate.method", ("auto",), "memory traffic of decode: several tokens for one reading of weights"
    ),
    Knob("schedule.prefill_step_ms", (100.0, 400.0), "prompts that hold up the answers of others"),
    Knob(
        "schedule.max_num_batched_tokens", (256, 1024), "prompts that hold up others, or short prefill steps"
    ),
    Knob("schedule.max_num_seqs", (16, 32), "steps that grow with the batch, or slots that lack"),
    Knob("schedule.chunked_prefill", (False,), "overhead of chunks, where nobody waits"),
    Knob("schedule.policy", ("dynamic",), "batches that fill too slowly"),
    Knob("kv.prefix_cache", (False,), "keys of blocks, where no prompt repeats another's beginning"),
    Knob("kv.dtype", ("int8", "f16"), "reading of keys and values, or their capacity", is_lossy=True),
)


def knobs(*, with_lossy: bool, only: tuple[str, ...] = ()) -> tuple[Knob, ...]:
    """The knobs that this version has and that may be turned.

    Raises:
        RequestError: `only` names another setting.
    """
    known = {f"{s.section}.{s.name}" for s in all_settings()}
    found = tuple(k for k in KNOBS if k.setting in known and (with_lossy or not k.is_lossy))
    names = [knob.setting for knob in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise RequestError(f"nothing to try for {unknown[0]!r}; known: {', '.join(names)}", param="only")
    return tuple(knob for knob in found if not only or knob.setting in only)


def flags_of(point: Point) -> tuple[str, ...]:
    """The flags of `headrace serve` that set it."""
    flag_by_name = {f"{s.section}.{s.name}": s.flag for s in all_settings()}
    flags: list[str] = []
    for name, value in sorted(point.items()):
        flag = flag_by_name[name]
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", f"{value:g}" if isinstance(value, float) else str(value)]
    return tuple(flags)
