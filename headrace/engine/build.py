"""Puts the parts together, and times each phase so that a slow start explains itself.

`open_model` reads headers and the tokenizer and resolves the settings (cheap; every process that talks to an
engine does it); `build_core` loads the weights and makes the loop's core (the process that computes).
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Thread

from headrace.base.clock import now_s
from headrace.base.config import DeviceConfig, EngineConfig, ModelConfig, ScheduleConfig, ServeConfig
from headrace.base.registry import Registry
from headrace.base.request import SamplingParams
from headrace.base.tasks import MAX_DEPTH
from headrace.compute.device.kinds.cpu import memory
from headrace.compute.device.limits import machine_limits
from headrace.compute.models.decoder import make_forward
from headrace.compute.models.load import LoadedModel, load_model
from headrace.compute.ops.api import Backend
from headrace.compute.ops.bind import choose, choose_backend, head_sizes
from headrace.compute.ops.facts import backend_facts
from headrace.compute.runner.hidden import HiddenPass
from headrace.compute.runner.runner import Runner, RunnerParts
from headrace.compute.runner.state import DeviceState
from headrace.compute.runner.work import Work, token_bytes
from headrace.compute.weights.catalogue import locate, packed_dir
from headrace.compute.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.compute.weights.packed.cache import PackedCache
from headrace.engine.core import CoreSizes, EngineCore
from headrace.engine.cost.meter import StepMeter
from headrace.engine.cost.model import StepModel
from headrace.engine.cost.shape import CostShape
from headrace.engine.drafts.draft_model import open_draft
from headrace.engine.drafts.early_exit import check_exit
from headrace.engine.drafts.heads import head_facts
from headrace.engine.drafts.make import Drafted, make_drafting
from headrace.engine.drafts.tokens import check_same_tokens
from headrace.engine.grammars.structured import Structured
from headrace.engine.resolve import DeviceFacts, ModelFacts, Resolved, resolve
from headrace.engine.settings.activations import rounds
from headrace.engine.text import NO_TEXT, Text, load_text
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.scheduler import Scheduler
from headrace.host.sched.view import BatchPolicy

FLOAT_TYPES = frozenset({"f32", "f16", "bf16"})
"""Formats of matrices that are multiplied in float32."""
POLICIES: Registry[Callable[[ScheduleConfig], BatchPolicy]] = Registry(
    "batching policy", "headrace.host.sched.policy", "POLICY"
)


@dataclass(slots=True)
class Phases:
    """Seconds of each phase of the start, in order."""

    seconds: dict[str, float] = field(default_factory=dict[str, float])

    @contextmanager
    def phase(self, name: str) -> Generator[None, None, None]:
        """Time a block of code."""
        began_s = now_s()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + now_s() - began_s


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model whose headers are read and whose settings are resolved; no weights yet."""

    checkpoint: Checkpoint
    text: Text
    resolved: Resolved
    defaults: SamplingParams
    draft: Checkpoint | None = None
    """The model that drafts for it."""


def open_model(
    config: EngineConfig,
    phases: Phases | None = None,
    *,
    with_text: bool = True,
    early: Checkpoint | None = None,
) -> OpenedModel:
    """Find the model, read its headers and tokenizer, resolve the settings.

    `early` is a checkpoint that was opened in the hope that it is the one.

    Raises:
        NotFoundError: no such model.
        DownloadError: it could not be fetched.
        CheckpointError: broken, or asking for something Headrace lacks.
        ConfigError: impossible settings.
    """
    phases = phases or Phases()
    with phases.phase("locate"):
        path = locate(config.model.model)
    with phases.phase("headers"):
        is_it = early is not None and early.path == path
        checkpoint = early if early and is_it else open_checkpoint(path, config.model.load_format)
        draft = open_draft(config)
        check_exit(config, checkpoint.spec)
    with phases.phase("resolve"):
        facts = model_facts(config, checkpoint)
        if draft is not None:
            drafting = replace(config, serve=ServeConfig(), model=ModelConfig(model=str(draft.path)))
            facts = replace(facts, draft=model_facts(drafting, draft))
        else:
            facts = replace(facts, draft=head_facts(config.speculate.method, facts))
        resolved = resolve(config, facts, device_facts(config))
    with phases.phase("tokenizer"):
        text = text_of(config, checkpoint) if with_text else NO_TEXT
    return OpenedModel(
        checkpoint=checkpoint,
        text=text,
        resolved=resolved,
        defaults=sampling_defaults(config, checkpoint),
        draft=draft,
    )


class TextLoading:
    """The text side of a model, made in a thread while others load its weights."""

    def __init__(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        self._made: Text | None = None
        self._error: Exception | None = None
        self._thread = Thread(target=self._make, args=(config, checkpoint), name="headrace-text")
        self._thread.start()

    def result(self) -> Text:
        """Wait for it.

        Raises:
            CheckpointError: the tokenizer is broken.
        """
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._made or NO_TEXT

    def _make(self, config: EngineConfig, checkpoint: Checkpoint) -> None:
        try:
            self._made = text_of(config, checkpoint)
        except Exception as error:  # noqa: BLE001 - raised in the thread that asks for the result
            self._error = error


def open_and_build(config: EngineConfig, phases: Phases) -> tuple[OpenedModel, EngineCore]:
    """`open_model` and `build_core` together; the tokenizer is made while the weights load.

    Raises:
        HeadraceError: see both.
    """
    opened = open_model(config, phases, with_text=False)
    # before the tokenizer, which keeps the interpreter's lock: its imports would wait
    backend = start_backend(opened.resolved, phases)
    text = TextLoading(config, opened.checkpoint)
    core = build_core(opened, phases, text.result, backend)
    try:
        with phases.phase("tokenizer"):
            return replace(opened, text=text.result()), core
    except Exception:
        core.close()
        raise


def model_facts(config: EngineConfig, checkpoint: Checkpoint) -> ModelFacts:
    """What `resolve` must know of the model; no weight is read."""
    spec, about = checkpoint.spec, checkpoint.description
    attention = spec.layers[0].attention
    parameters = int(about.get("parameters", 0))
    stored = int(about.get("file_bytes", 0)) or 4 * parameters
    return ModelFacts(
        name=config.serve.served_model_name or _name(config.model.model, checkpoint.path),
        description=f"{spec.family}, {parameters / 1e6:.0f} M parameters, {checkpoint.format}",
        max_length=spec.max_length,
        vocab_size=spec.vocab_size,
        layers=len(spec.layers),
        kv_heads=attention.kv_heads,
        head_size=attention.head_size,
        stored_bytes=stored,
        parameters=parameters,
        width=spec.width,
        mlp_width=max(layer.mlp_width for layer in spec.layers),
    )


def device_facts(config: EngineConfig) -> DeviceFacts:
    """What `resolve` must know of the machine.

    Raises:
        ConfigError: the backend or instruction set asked for cannot run here.
    """
    choice = choose(config.device.backend, config.device.isa, config.device.threads)
    room = memory()
    return DeviceFacts(
        backend=choice.name,
        isa=choice.isa,
        threads=choice.threads,
        reasons=choice.reasons,
        memory_bytes=room.available_bytes,
        memory_reason=room.reason,
        heads=head_sizes(choice.name),
    )


def sampling_defaults(config: EngineConfig, checkpoint: Checkpoint) -> SamplingParams:
    """What applies where a request says nothing: the model's file over the built-in values."""
    given = checkpoint.generation
    if config.model.generation_config != "auto":
        return SamplingParams()
    named = {
        name: getattr(given, name)
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        if getattr(given, name) is not None
    }
    return replace(SamplingParams(), **named)


def start_backend(resolved: Resolved, phases: Phases) -> Backend:
    """The backend of the resolved settings.

    Raises:
        ConfigError: it cannot start.
    """
    with phases.phase("backend"):
        device = resolved.config.device
        wanted = resolved.backend, resolved.isa, resolved.threads
        return choose_backend(*wanted, graphs=device.graphs, rounds=rounds(device))


def build_core(
    opened: OpenedModel,
    phases: Phases | None = None,
    text: Callable[[], Text] | None = None,
    backend: Backend | None = None,
) -> EngineCore:
    """Load the weights and make the core; grammars take the model's text side from `text`.

    `backend` is one that `start_backend` made; None: make it here.

    Raises:
        CheckpointError: weights that the backend lacks or that are broken.
        ConfigError: the backend cannot start, or a draft model has other tokens.
    """
    phases = phases or Phases()
    resolved, device = opened.resolved, opened.resolved.config.device
    backend = backend or start_backend(resolved, phases)
    text = text or partial(text_of, resolved.config, opened.checkpoint)
    length, slots, packed = resolved.max_model_len, resolved.max_num_seqs, packed_cache(device)
    with phases.phase("weights"):
        model = load_model(opened.checkpoint, backend, length, max_slots=slots, packed=packed)
    draft: LoadedModel | None = None
    if opened.draft is not None:
        with phases.phase("draft model"):
            sizes = model.spec.vocab_size, opened.draft.spec.vocab_size
            name, source = resolved.speculation.source, opened.draft.tokenizer_source
            check_same_tokens(text().tokenizer, source, sizes, name)
            draft = load_model(opened.draft, backend, length, max_slots=slots, packed=packed)
    with phases.phase("compile"):
        runner = make_runner(resolved, model, backend, draft)
    with phases.phase("scheduler"):
        scheduler = make_scheduler(resolved)
    sizes = CoreSizes(
        num_blocks=resolved.num_blocks,
        weight_bytes=model.weight_bytes + runner.draft_weight_bytes,
        kv_bytes=resolved.kv_bytes,
        num_slots=resolved.max_num_seqs,
    )
    structured = Structured(text, opened.checkpoint.spec.vocab_size, resolved.threads)
    with phases.phase("limits"):
        meter = StepMeter(step_model(resolved, opened.checkpoint, model.weight_bytes))
    core = EngineCore(scheduler, runner, sizes, structured, model.rope.kv_domain, backend.close)
    core.meter = meter
    return core


def step_model(resolved: Resolved, checkpoint: Checkpoint, weight_bytes: int) -> StepModel:
    """What predicts the steps of a model here; measures the machine's limits when they are not known yet."""
    geometry, kind = resolved.geometry, checkpoint.weights.matrix("layers.0.gate.weight").type_name
    shape = CostShape.of(
        Work.of(checkpoint.spec),
        weight_bytes,
        token_bytes(geometry),
        is_float=kind in FLOAT_TYPES,
        in_pairs=kind == "bf16" and rounds(resolved.config.device),
    )
    probe = backend_facts(resolved.backend).is_fast
    return StepModel(shape, machine_limits(resolved.threads, resolved.isa, probe=probe))


def text_of(config: EngineConfig, checkpoint: Checkpoint) -> Text:
    """The text side of a model.

    Raises:
        CheckpointError: the tokenizer is broken.
    """
    return load_text(checkpoint.tokenizer_source, checkpoint.generation, config.model.tokenizer)


def packed_cache(device: DeviceConfig) -> PackedCache | None:
    """Where packed weights are kept, by the settings."""
    if device.weight_cache == "off":
        return None
    return PackedCache(mode=device.weight_cache, limit_bytes=device.weight_cache_bytes, folder=packed_dir())


def make_scheduler(resolved: Resolved, clock: Callable[[], float] = now_s) -> Scheduler:
    """The scheduler with its ledger and policy; `clock` gives monotonic seconds."""
    config, limits = resolved.config, resolved.limits
    return Scheduler(
        KVLedger(resolved.num_blocks, config.kv.block_size, config.kv.prefix_cache, clock),
        POLICIES.get(config.schedule.policy)(config.schedule),
        ScheduleLimits(
            max_num_seqs=resolved.max_num_seqs,
            max_num_batched_tokens=resolved.max_num_batched_tokens,
            chunked_prefill=config.schedule.chunked_prefill,
            prefill_step_s=limits["prefill_step_s"],
            max_queued_requests=int(limits["max_queued_requests"]),
            max_queued_tokens=int(limits["max_queued_tokens"]),
            max_model_len=resolved.max_model_len,
            max_queue_s=config.schedule.max_queue_s,
            ageing_s=config.schedule.priority_ageing_s,
            max_background_seqs=min(config.batch.max_lines_running, resolved.max_num_seqs),
        ),
        clock,
        Depth(resolved.speculation, resolved.max_step_drafts) if resolved.speculation.is_on else None,
    )


def make_runner(
    resolved: Resolved, model: LoadedModel, backend: Backend, draft: LoadedModel | None = None
) -> Runner:
    """The runner with its pool, program and slots; `draft` is the model that drafts."""
    limits = resolved.step_limits
    pool = backend.kv_pool(resolved.geometry, resolved.num_blocks)
    model.shift_keys(pool)
    max_drafts = MAX_DEPTH if resolved.speculation.is_on else 0
    state = DeviceState(
        resolved.max_num_seqs, resolved.max_model_len, limits.table_width, model.spec.vocab_size, max_drafts
    )
    drafted = Drafted(model=model, backend=backend, pool=pool, state=state)
    memory_tokens = resolved.config.speculate.memory_tokens
    drafting = make_drafting(resolved.speculation, drafted, draft, memory_tokens)
    forward = model.forward
    if drafting is not None and drafting.watches:
        forward = make_forward(model.spec, model.weights, drafting.taps)
    measures = model.rope.kind != "static"
    each = replace(limits, max_logits=limits.max_tokens)  # a mean wants the hidden state of every token
    hidden = HiddenPass(backend.compile(model.hidden, each, pool))
    return Runner(
        RunnerParts(
            backend=backend,
            program=backend.compile(forward, limits, pool),
            pool=pool,
            state=state,
            max_tokens=limits.max_tokens,
            max_logits=limits.max_logits,
            max_drafts=max_drafts,
            slot_begins=model.rope.begin if measures else None,
            rope_rows=model.rope.rows if measures else None,
            drafting=drafting,
            weight_bytes=model.weight_bytes,
            work=Work.of(model.spec),
        ),
        hidden,
    )


def _name(asked: str, path: Path) -> str:
    """A catalogue name or hub id as it is; of a path its last part."""
    return path.stem if Path(asked).exists() else asked
