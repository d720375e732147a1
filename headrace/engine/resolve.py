"""Settings, model and device to concrete values, each with its reason; a pure function.

What cannot work fails here, with what would fit, before a byte of weights is loaded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from headrace.base.config import AccessConfig, EngineConfig
from headrace.base.errors import ConfigError, ShapeError
from headrace.base.tasks import EARLY_EXIT, OFF, Speculation
from headrace.compute.ops.api import KVGeometry, StepLimits
from headrace.compute.ops.facts import backend_facts
from headrace.compute.ops.heads import HeadSizes
from headrace.compute.spec.kit import draft_limits
from headrace.engine.drafts.early_exit import about_exit
from headrace.engine.drafts.wish import MEMORY, about_draft, about_memory, offered, reason_of
from headrace.engine.settings.activations import note_activations
from headrace.engine.settings.notes import Notes, Setting
from headrace.engine.sizing import NOTHING_BESIDE, Beside, HeadPasses, PoolPlan, StepShape, plan_pool

DEFAULT_SEQS = 64
DEFAULT_STEP_TOKENS = 512
DEFAULT_PREFILL_STEP_MS = 200.0
DEFAULT_QUEUED_REQUESTS = 1024
DEFAULT_QUEUED_TOKENS = 1_000_000
MAX_AGEING_S = 3600.0
MAX_SEQS = 4096
MIN_WATCH_S = 1.0
"""Signs of life come four times a second, at rest once a second or four times in `silence_s`."""
MAX_STEP_TOKENS = 1 << 20
REPORT_LOGITS = 64
"""Logits rows per pass for prompt log-probabilities (each is V floats)."""
STEP_DRAFTS = 32
"""Drafts of a step, all rows together; each is a row of logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """What must be known of a model to resolve settings; read from headers, weights stay on disk."""

    name: str
    description: str
    max_length: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_size: int
    stored_bytes: int
    parameters: int
    width: int = 0
    mlp_width: int = 0
    """The widest layer's."""
    draft: "ModelFacts | None" = None
    """The model that drafts for it."""

    def weight_bytes(self, backend: str) -> int:
        """Memory of the weights: as stored in packed form, or float32 where a backend keeps no other."""
        return self.stored_bytes if backend_facts(backend).keeps_weights else 4 * self.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadFacts(ModelFacts):
    """The same of trained heads."""

    passes: HeadPasses


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """What must be known of the machine."""

    backend: str
    isa: str
    threads: int
    reasons: tuple[str, ...]
    """Why this backend, instruction set and number of threads."""
    memory_bytes: int
    """What this process may still take."""
    memory_reason: str
    heads: HeadSizes = field(default_factory=HeadSizes)
    """Head sizes that the backend's attention takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """Concrete values. `settings` is the table that start-up prints."""

    config: EngineConfig
    model: ModelFacts
    threads: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    kv_bytes: int
    limits: Mapping[str, float]
    """`prefill_step_s`, `max_queued_requests`, `max_queued_tokens`."""
    backend: str
    isa: str
    settings: tuple[Setting, ...]

    @property
    def geometry(self) -> KVGeometry:
        """Shape of the KV pool."""
        return geometry_of(self.config, self.model)

    @property
    def speculation(self) -> Speculation:
        """What applies to requests that ask for nothing else."""
        return offered(self.config.speculate.method)

    @property
    def max_step_drafts(self) -> int:
        """Most drafts of a step."""
        return STEP_DRAFTS if self.speculation.is_on else 0

    @property
    def step_limits(self) -> StepLimits:
        """The largest step. Without chunked prefill a prompt runs whole, however long."""
        tokens = self.max_num_batched_tokens
        if not self.config.schedule.chunked_prefill:
            tokens = max(tokens, self.max_model_len)
        return StepLimits(
            max_tokens=tokens,
            max_rows=self.max_num_seqs,
            max_logits=_num_logits(self.max_num_seqs, tokens, self.max_step_drafts),
            table_width=-(-self.max_model_len // self.config.kv.block_size),
        )

    @property
    def step_shape(self) -> StepShape:
        """What the memory of the largest step depends on."""
        return _step_shape(
            self.config, self.model, self.max_num_seqs, self.max_num_batched_tokens, self.max_model_len
        )

    @property
    def beside(self) -> Beside:
        """Memory of a draft model."""
        return _beside(self.config, self.model, self.backend, self.step_shape)

    def pinned(self) -> EngineConfig:
        """The settings with concrete values, so that another process resolves them to the same."""
        config = self.config
        return replace(
            config,
            access=AccessConfig(),  # keys are none of its business
            model=replace(config.model, max_model_len=self.max_model_len),
            device=replace(config.device, backend=self.backend, threads=self.threads),
            kv=replace(config.kv, num_blocks=self.num_blocks),
            schedule=replace(
                config.schedule,
                max_num_seqs=self.max_num_seqs,
                max_num_batched_tokens=self.max_num_batched_tokens,
            ),
        )

    def table(self) -> str:
        """The settings, one per line."""
        rows = [("setting", "asked", "value", "why")]
        rows += [(s.name, s.asked, s.value, s.reason) for s in self.settings]
        widths = [max(len(row[i]) for row in rows) for i in range(3)]
        lines = ["  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]) for row in rows]
        return "\n".join(lines)


def geometry_of(config: EngineConfig, model: ModelFacts) -> KVGeometry:
    """Shape of the KV pool that these settings ask for."""
    return KVGeometry(
        layers=model.layers,
        kv_heads=model.kv_heads,
        head_size=model.head_size,
        block_size=config.kv.block_size,
        dtype=config.kv.dtype,
    )


def _with_kv_format(config: EngineConfig, backend: str, notes: Notes) -> EngineConfig:
    """The settings with a concrete format of keys and values."""
    asked = config.kv.dtype
    if asked != "auto":
        notes.add("kv.dtype", asked, asked, "asked for")
        return config
    facts = backend_facts(backend)
    notes.add("kv.dtype", asked, facts.kv_dtype, facts.kv_reason)
    return replace(config, kv=replace(config.kv, dtype=facts.kv_dtype))


def resolve(config: EngineConfig, model: ModelFacts, device: DeviceFacts) -> Resolved:
    """Concrete values with reasons.

    Raises:
        ConfigError: impossible values or combinations; the message says what would fit.
    """
    notes = Notes()
    notes.add("model", config.model.model, model.name, model.description)
    _note_device(config, device, notes)
    _check_watch(config)
    config = _with_kv_format(config, device.backend, notes)
    schedule = config.schedule
    seqs = notes.pick(
        "schedule.max_num_seqs",
        schedule.max_num_seqs,
        DEFAULT_SEQS,
        "decoding gains little from more rows on a CPU",
        MAX_SEQS,
    )
    if not 1 <= config.kv.block_size <= 1024:
        raise ConfigError(f"kv.block_size must be in [1, 1024], got {config.kv.block_size}")
    geometry = geometry_of(config, model)
    _check_heads(model, device)
    length = _context(config, model)
    tokens = _step_tokens(config, seqs, notes)
    step = _step_shape(config, model, seqs, tokens, length[0])
    weight_bytes = model.weight_bytes(device.backend)
    beside = _beside(config, model, device.backend, step)
    pool = plan_pool(config.kv, geometry, weight_bytes, device.memory_bytes, step, beside)
    length = _fit_context(config, length, pool, geometry)
    is_cut = config.model.max_model_len is None and length[0] < model.max_length
    notes.add("model.max_model_len", config.model.max_model_len, length[0], length[1], falls_short=is_cut)
    notes.add("kv.num_blocks", config.kv.num_blocks, pool.num_blocks, pool.reason)
    weight_bytes += beside.weight_bytes
    block_bytes = geometry.block_bytes + beside.block_bytes
    kv_bytes = pool.num_blocks * block_bytes
    notes.add("kv.pool_bytes", config.kv.pool_bytes, kv_bytes, f"{pool.num_blocks} x {block_bytes}")
    notes.add("memory", None, f"{device.memory_bytes >> 20} MiB", device.memory_reason)
    parts = (
        f"weights {weight_bytes >> 20} MiB, KV pool {kv_bytes >> 20} MiB, the rest for processes and steps"
    )
    planned = weight_bytes + kv_bytes + step.working_bytes + beside.step_bytes
    notes.add("memory, planned", None, f"{planned >> 20} MiB", parts)
    _note_speculation(config, model, notes)
    return Resolved(
        config=config,
        model=model,
        threads=device.threads,
        max_model_len=length[0],
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        num_blocks=pool.num_blocks,
        kv_bytes=kv_bytes,
        limits=_limits(config, notes),
        backend=device.backend,
        isa=device.isa,
        settings=tuple(notes.settings),
    )


def _note_device(config: EngineConfig, device: DeviceFacts, notes: Notes) -> None:
    asked, reasons = config.device, [*device.reasons, "", "", ""]
    is_slow = asked.backend == "auto" and not backend_facts(device.backend).is_fast
    notes.add("device.backend", asked.backend, device.backend, reasons[0], falls_short=is_slow)
    notes.add("device.isa", asked.isa, device.isa, reasons[1])
    notes.add("device.threads", asked.threads, device.threads, reasons[2])
    note_activations(asked, device.backend, notes)


def _step_shape(config: EngineConfig, model: ModelFacts, seqs: int, tokens: int, length: int) -> StepShape:
    return StepShape(
        tokens=tokens if config.schedule.chunked_prefill else max(tokens, length),
        logits=_num_logits(seqs, tokens, STEP_DRAFTS if config.speculate.method != OFF else 0),
        slots=seqs,
        length=length,
        width=model.width,
        mlp_width=model.mlp_width,
        vocab_size=model.vocab_size,
    )


def _num_logits(seqs: int, tokens: int, drafts: int) -> int:
    """Rows of logits of a pass: a token and its drafts for everybody, or a piece of a reported prompt."""
    return max(seqs + drafts, min(REPORT_LOGITS, tokens))


def _note_speculation(config: EngineConfig, model: ModelFacts, notes: Notes) -> None:
    asked, draft = config.speculate.method, model.draft
    found = offered(asked)
    notes.add("speculate.method", asked, asked, reason_of(found) + about_exit(found, model.layers))
    if tokens := config.speculate.memory_tokens:
        notes.add(MEMORY, tokens, tokens, about_memory(found, tokens))
    if draft is not None:
        about = about_draft(draft.description, is_small=draft.parameters < model.parameters)
        notes.add("draft model", found.source, draft.name, about)


def _beside(config: EngineConfig, model: ModelFacts, backend: str, step: StepShape) -> Beside:
    draft = model if offered(config.speculate.method).method == EARLY_EXIT else model.draft
    if draft is None:
        return NOTHING_BESIDE
    limits = draft_limits(-(-step.length // config.kv.block_size), step.slots)
    widths = draft.width, draft.mlp_width, draft.vocab_size
    found = Beside.of(draft.weight_bytes(backend), geometry_of(config, draft), limits, widths)
    if isinstance(draft, HeadFacts):
        return Beside.of_heads(found, limits, widths, draft.passes, step)
    return Beside(step_bytes=found.step_bytes) if draft is model else found


def _check_heads(model: ModelFacts, device: DeviceFacts) -> None:
    try:
        for each in (model, model.draft or model):
            device.heads.check(each.head_size)
    except ShapeError as error:
        raise ConfigError(error.message, param="device.backend") from error


def _check_watch(config: EngineConfig) -> None:
    for name in ("stall_s", "restart_s", "silence_s", "load_s"):
        value = getattr(config.watch, name)
        if not value >= MIN_WATCH_S:
            raise ConfigError(f"watch.{name} must be at least {MIN_WATCH_S:g}, got {value:g}")


def _context(config: EngineConfig, model: ModelFacts) -> tuple[int, str]:
    asked = config.model.max_model_len
    if asked is None:
        return model.max_length, "the model's own limit"
    if not 2 <= asked <= model.max_length:
        raise ConfigError(
            f"model.max_model_len must be in [2, {model.max_length}], got {asked}; "
            f"{model.name} was made for at most {model.max_length} tokens",
            param="model.max_model_len",
        )
    return asked, "asked for"


def _fit_context(
    config: EngineConfig, length: tuple[int, str], pool: PoolPlan, geometry: KVGeometry
) -> tuple[int, str]:
    """The context limit must fit the pool: shorten what is auto, refuse what was asked for."""
    capacity = pool.num_blocks * geometry.block_size
    if length[0] <= capacity:
        return length
    if config.model.max_model_len is not None:
        need = -(-length[0] // geometry.block_size)
        raise ConfigError(
            f"model.max_model_len {length[0]} needs {need} KV blocks ({need * geometry.block_bytes} bytes), "
            f"the pool has {pool.num_blocks} ({pool.reason}); the largest context that fits is {capacity}: "
            f"lower model.max_model_len to it, or raise kv.pool_bytes",
            param="model.max_model_len",
        )
    if capacity < 2:
        raise ConfigError(f"a KV pool of {capacity} tokens cannot serve a request; raise kv.pool_bytes")
    return capacity, f"the KV pool holds {capacity} tokens; the model could use {length[0]}"


def _step_tokens(config: EngineConfig, seqs: int, notes: Notes) -> int:
    schedule = config.schedule
    tokens = notes.pick(
        "schedule.max_num_batched_tokens",
        schedule.max_num_batched_tokens,
        max(DEFAULT_STEP_TOKENS, seqs),
        "enough rows to keep the matrix kernels busy",
        MAX_STEP_TOKENS,
    )
    if tokens < seqs:
        raise ConfigError(
            f"schedule.max_num_batched_tokens {tokens} is below schedule.max_num_seqs {seqs}: not every "
            f"running sequence could decode in a step; raise it to {seqs} or lower schedule.max_num_seqs",
            param="schedule.max_num_batched_tokens",
        )
    return tokens


def _limits(config: EngineConfig, notes: Notes) -> dict[str, float]:
    schedule = config.schedule
    asked_ms = schedule.prefill_step_ms
    step_ms = DEFAULT_PREFILL_STEP_MS if asked_ms is None else asked_ms
    if not step_ms > 0:
        raise ConfigError(f"schedule.prefill_step_ms must be positive, got {step_ms}")
    if schedule.dynamic_size < 1 or not schedule.dynamic_window_ms >= 0:
        raise ConfigError(
            f"schedule.dynamic_size must be at least 1 and schedule.dynamic_window_ms not negative, got "
            f"{schedule.dynamic_size} and {schedule.dynamic_window_ms}"
        )
    if schedule.max_queue_s is not None and not schedule.max_queue_s > 0:
        raise ConfigError(f"schedule.max_queue_s must be positive, got {schedule.max_queue_s:g}")
    if not 0 <= schedule.priority_ageing_s <= MAX_AGEING_S:
        raise ConfigError(
            f"schedule.priority_ageing_s must be in [0, {MAX_AGEING_S:g}], got {schedule.priority_ageing_s:g}"
        )
    notes.add(
        "schedule.prefill_step_ms",
        asked_ms,
        f"{step_ms:g}",
        "bounds the gap between tokens of running requests" if asked_ms is None else "asked for",
    )
    found: dict[str, float] = {"prefill_step_s": step_ms / 1000}
    defaults = {"max_queued_requests": DEFAULT_QUEUED_REQUESTS, "max_queued_tokens": DEFAULT_QUEUED_TOKENS}
    for name, default in defaults.items():
        asked = getattr(schedule, name)
        value = default if asked is None else asked
        if value < 0:
            raise ConfigError(f"schedule.{name} must not be negative, got {value}")
        found[name] = value
        notes.add(f"schedule.{name}", asked, value, "bounds the wait" if asked is None else "asked for")
    return found
