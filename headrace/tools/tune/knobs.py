"""What a search may change: settings, the values worth trying, and the bottleneck that each attacks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from headrace.base.config import SettingInfo, all_settings
from headrace.base.errors import RequestError
from headrace.compute.device.kinds.cpu import detect
from headrace.engine.drafts.wish import offered

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
    Knob("device.graphs", (False,), "the step program, where recording it does not pay"),
    Knob("kv.prefix_cache", (False,), "keys of blocks, where no prompt repeats another's beginning"),
    Knob("kv.dtype", ("int8", "f16"), "reading of keys and values, or their capacity", is_lossy=True),
)
THREADS = Knob("device.threads", (), "cores that engine, HTTP process and clients take from each other")
"""Its values are the machine's."""


def knobs(
    *,
    with_lossy: bool,
    only: tuple[str, ...] = (),
    start: Point = DEFAULT,
    drafters: tuple[str, ...] = (),
    num_threads: int = 1,
) -> tuple[Knob, ...]:
    """The knobs that this version has and that may be turned, those that the start sets first.

    Such a knob's values are the others, its default among them: what was switched off may be what lacks.

    `drafters` are more ways of speculating to try, which need a name: `draft=MODEL`, `early-exit=N`...
    `num_threads` are the engine's by default; one fewer is tried, which leaves a core to HTTP and clients.

    Raises:
        RequestError: `only` names another setting. ConfigError: there is no such way of speculating.
    """
    for drafter in drafters:
        offered(drafter)
    known = {f"{s.section}.{s.name}": s.default for s in all_settings()}
    found = tuple(k for k in KNOBS if k.setting in known and (with_lossy or not k.is_lossy))
    if num_threads > 1:
        found += (replace(THREADS, values=(num_threads - 1,)),)
    names = [knob.setting for knob in found]
    unknown = [name for name in only if name not in names]
    if unknown:
        raise RequestError(f"nothing to try for {unknown[0]!r}; known: {', '.join(names)}", param="only")
    found = tuple(knob for knob in found if not only or knob.setting in only)
    found = tuple(
        replace(k, values=(*k.values, *drafters)) if k.setting == "speculate.method" else k for k in found
    )
    set_first = sorted(found, key=lambda knob: knob.setting not in start)
    return tuple(_against(knob, start, known[knob.setting]) for knob in set_first)


def free_threads(flags: Sequence[str]) -> int:
    """The engine's threads by default; 1 where the flags of `headrace serve` say how many."""
    is_given = any(word.partition("=")[0] == "--threads" for word in flags)
    return 1 if is_given else detect().threads


def _against(knob: Knob, start: Point, default: Value | None) -> Knob:
    """The knob with the values that the start does not have."""
    if knob.setting not in start:
        return knob
    values = knob.values if default is None else (default, *knob.values)
    return replace(knob, values=tuple(value for value in values if value != start[knob.setting]))


def lossy_of(point: Point) -> Point:
    """The settings of a point that change answers."""
    lossy = {knob.setting for knob in KNOBS if knob.is_lossy}
    defaults = {f"{s.section}.{s.name}": s.default for s in all_settings()}
    return {name: value for name, value in point.items() if name in lossy and value != defaults[name]}


def split_flags(flags: Sequence[str]) -> tuple[Point, tuple[str, ...]]:
    """Flags of `headrace serve` as the settings of knobs that they are, and the flags that are none.

    Raises:
        RequestError: a value is not of its setting's type.
    """
    turned = {knob.setting for knob in KNOBS}
    by_flag = {f"--{s.flag}": s for s in all_settings() if f"{s.section}.{s.name}" in turned}
    point: dict[str, Value] = {}
    rest: list[str] = []
    words = list(flags)
    while words:
        word = words.pop(0)
        name, has_value, text = word.partition("=")
        info = by_flag.get(name) or by_flag.get(f"--{name.removeprefix('--no-')}")
        if info is None:
            rest.append(word)
            continue
        setting = f"{info.section}.{info.name}"
        if info.type_name == "bool":
            point[setting] = not name.startswith("--no-")
        else:
            value = text if has_value else words.pop(0) if words else ""
            point[setting] = _read(info, name, value)
    return point, tuple(rest)


def _read(info: SettingInfo, flag: str, text: str) -> Value:
    kind = {"int": int, "float": float}.get(info.type_name.partition(" | ")[0], str)
    try:
        return kind(text)
    except ValueError:
        raise RequestError(f"{flag} must be {kind.__name__}, got {text!r}", param="flag") from None


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
