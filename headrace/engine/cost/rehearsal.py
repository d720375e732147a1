"""What a model's steps will take here, without its weights: the real kernels run a part of it made of zeros.

Speed does not depend on the values of weights, and a layer costs what its neighbour costs. So the first few
layers, with the header's shapes and number formats, are packed from zeros and run by the real runner; the
coefficients that their steps give are those of the whole model, whose bytes and operations are known.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from headrace.base.clock import cpu_s, now_s
from headrace.base.config import KVConfig, ModelConfig, ScheduleConfig, SpeculateConfig
from headrace.base.ids import BlockId, RequestId, SlotId
from headrace.base.request import Request, SamplingParams
from headrace.base.step import Row, SlotBegin, StepPlan
from headrace.compute.models.load import LoadedModel, load_model
from headrace.compute.ops.api import Backend
from headrace.compute.runner.runner import Runner
from headrace.compute.weights.checkpoint import Checkpoint
from headrace.engine.build import OpenedModel, Phases, make_runner, model_facts, start_backend, step_model
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import CostShape, StepWork
from headrace.engine.resolve import DeviceFacts, resolve

LAYER_BYTES = 192 << 20
"""Weights of the layers that are run, at least (or all layers): more than a cache holds."""
BUDGET_S = 8.0
"""No further step is begun after so long."""
MAX_KEYS = 4096
MAX_ROWS = 32
_BLOCK = 16
_REPEATS = 5
_MOST_REPEATS = 32
STEP_S = 0.12
"""A step is repeated for so long: a few milliseconds would catch the machine at one of its better moments."""
QUIET_SHARE = 0.6
"""Of the compute threads' time; with less of the cores a rehearsal was disturbed."""
TELLING_S = 1e-3
"""Threads of shorter steps mostly wait for each other: they do not say how many cores there were."""
_PASSES = 6
"""The observations of one sitting are gone through so often: which side of the roofline a step is on depends
on the coefficients."""
_STEP_HOST_S = 0.4e-3
_ROW_HOST_S = 25e-6
"""Of a step and a row what does not grow with the layers: inputs, draws, the replay's call."""

Rehearsed = tuple[tuple[StepWork, float], ...]
"""Steps that ran, and their seconds."""


@dataclass(frozen=True, slots=True)
class _Step:
    """Rows as (keys before, count), most telling steps first."""

    rows: tuple[tuple[int, int], ...]


def _decode(rows: int, keys: int) -> _Step:
    return _Step(((keys, 1),) * rows)


_STEPS = (
    _decode(1, 127),
    _Step(((0, 256),)),
    _decode(16, 127),
    _decode(4, 127),
    _Step(((2048, 256),)),
    _decode(1, 2047),
    _decode(2, 127),
    _decode(8, 127),
    _Step(((0, 64),)),
    _Step(((127, 1),) * 4 + ((0, 128),)),
    _decode(32, 127),
    _Step(((0, 512),)),
    _Step(((127, 1),) * 8 + ((512, 64),)),
    _decode(4, 1023),
    _Step(((1024, 512),)),
)


def rehearse(opened: OpenedModel, on_cores: Callable[[float], None] | None = None) -> StepModel:
    """The step model of a model that is not loaded, fitted to steps of a part of it.

    Takes some seconds, and the memory of the part and of its head. The backend is the resolved one; the
    reference backend is rehearsed too, slowly and in few steps.

    Args:
        opened: the model's header and settings.
        on_cores: is told how many cores the steps had, on average: CPU time over time. Is not told when all
            were too short to say.

    Raises:
        ConfigError, CheckpointError: as loading the model would.
    """
    resolved, checkpoint = opened.resolved, opened.checkpoint
    part, layers = thin(checkpoint)
    backend = start_backend(resolved, Phases())
    try:
        model = load_model(part, backend, min(MAX_KEYS, resolved.max_model_len), max_slots=MAX_ROWS)
        runner, room = _runner(opened, part, model, backend)
        fitted = step_model(resolved, part, model.weight_bytes)
        seen, cores = _run(runner, fitted.shape, room, resolved.threads)
    finally:
        backend.close()
    if on_cores is not None and cores:
        on_cores(cores)
    whole = step_model(resolved, checkpoint, resolved.model.weight_bytes(resolved.backend))
    return fit(whole, fitted, seen, len(checkpoint.spec.layers) / layers)


def thin(checkpoint: Checkpoint) -> tuple[Checkpoint, int]:
    """The first layers of a model, all weights zero, and how many these are."""
    weights, spec = checkpoint.weights, checkpoint.spec
    layers = done = 0
    while layers < len(spec.layers) and (done < LAYER_BYTES or layers < 2):
        done += weights.stored_bytes(f"layers.{layers}.")
        layers += 1
    kept = [name for name in weights.names() if not name.startswith("layers.")]
    kept += [name for name in weights.names() for i in range(layers) if name.startswith(f"layers.{i}.")]
    part = replace(
        checkpoint,
        spec=replace(spec, layers=spec.layers[:layers]),
        weights=weights.hollow(kept),
        content_id=f"{checkpoint.content_id}-hollow",
    )
    return part, layers


def fit(whole: StepModel, part: StepModel, seen: Rehearsed, times: float) -> StepModel:
    """Give `whole`, which has `times` as many layers as `part`, the coefficients of the steps seen."""
    for _ in range(_PASSES):
        for work, seconds in seen:
            part.observe(work, seconds)
    for is_decode in (True, False):
        source, target = part.fit_of(_phase(is_decode)), whole.fit_of(_phase(is_decode))
        found = list(source.coefficients)
        found[0] = _grown(found[0], _STEP_HOST_S, times)
        found[1] = _grown(found[1], _ROW_HOST_S, times)
        target.coefficients = found
    return whole


def _phase(is_decode: bool) -> StepWork:
    return StepWork(is_decode, 1, 1, 1.0, 0.0, 1)


def _grown(seconds: float, fixed: float, times: float) -> float:
    return seconds if seconds <= fixed else fixed + (seconds - fixed) * times


def _runner(
    opened: OpenedModel, part: Checkpoint, model: LoadedModel, backend: Backend
) -> tuple[Runner, int]:
    """A runner of the part, and the tokens that its pool holds."""
    resolved = opened.resolved
    length = min(MAX_KEYS, resolved.max_model_len)
    config = replace(
        resolved.config,
        model=ModelConfig(model=resolved.config.model.model, max_model_len=length),
        kv=KVConfig(block_size=_BLOCK, dtype=resolved.config.kv.dtype, num_blocks=MAX_KEYS // _BLOCK + 64),
        schedule=ScheduleConfig(max_num_seqs=MAX_ROWS, max_num_batched_tokens=512),
        speculate=SpeculateConfig(),
    )
    device = DeviceFacts(
        backend=resolved.backend,
        isa=resolved.isa,
        threads=resolved.threads,
        reasons=(),
        memory_bytes=1 << 50,  # what there is was held against the whole model
        memory_reason="",
    )
    return make_runner(resolve(config, model_facts(config, part), device), model, backend), length


def _run(runner: Runner, shape: CostShape, length: int, threads: int) -> tuple[Rehearsed, float]:
    """Run the steps that fit, each several times, and say how many cores they had.

    The median counts, as it does in service; where other work took the cores the least, as it only ever adds.
    """
    began_s = now_s()
    used_s = stepped_s = 0.0
    seen: list[tuple[StepWork, list[float]]] = []
    for step in _STEPS:
        if any(start + count + _MOST_REPEATS >= length for start, count in step.rows):
            continue
        times: list[float] = []
        is_decode = all(count == 1 for _, count in step.rows)
        plan = _enter(runner, step)
        while _wants_more(times) and (not times or now_s() - began_s < BUDGET_S):
            before_s, cpu_before_s = now_s(), cpu_s()
            times.append(runner.run(plan).seconds)
            if times[-1] >= TELLING_S:
                used_s += cpu_s() - cpu_before_s
                stepped_s += now_s() - before_s
            plan = _next(plan) if is_decode else _enter(runner, step)
        if is_decode and len(times) > 1:
            times = times[1:]  # the first gathers what the others find
        seen.append((shape.work_of(plan.rows), times))
        if now_s() - began_s > BUDGET_S:
            break
    cores = used_s / stepped_s if stepped_s else 0.0
    usual = median if cores >= QUIET_SHARE * threads else min
    return tuple((work, usual(times)) for work, times in seen), cores


def _wants_more(times: Sequence[float]) -> bool:
    return len(times) < _REPEATS or (len(times) < _MOST_REPEATS and sum(times) < STEP_S)


def _enter(runner: Runner, step: _Step) -> StepPlan:
    """Sequences of so many tokens enter the slots; their rows. What the KV holds is no matter."""
    begins: list[SlotBegin] = []
    rows: list[Row] = []
    next_block = 0
    for slot, (start, count) in enumerate(step.rows):
        size = -(-(start + count + _MOST_REPEATS) // _BLOCK)
        prompt = (1,) * (start + count)
        request = Request(
            request_id=RequestId(f"rehearsal-{slot}"),
            prompt_ids=prompt,
            sampling=SamplingParams(max_tokens=_MOST_REPEATS + 1, seed=0, temperature=0.0),
        )
        blocks = tuple(BlockId(next_block + i) for i in range(size))
        begins.append(
            SlotBegin(slot=SlotId(slot), lease=slot + 1, request=request, token_ids=prompt, blocks=blocks)
        )
        rows.append(Row(slot=SlotId(slot), lease=slot + 1, start=start, count=count))
        next_block += size
    ends = tuple(SlotId(slot) for slot in range(MAX_ROWS))
    runner.run(StepPlan(step=0, ends=ends))
    runner.run(StepPlan(step=0, begins=tuple(begins)))
    return StepPlan(step=0, rows=tuple(rows))


def _next(plan: StepPlan) -> StepPlan:
    """Each row's next token."""
    return StepPlan(step=0, rows=tuple(replace(row, start=row.start + 1) for row in plan.rows))
