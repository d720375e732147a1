"""The settings tree: every setting once; flags, files and docs are generated from it.

A value of None means `auto`: `engine/resolve` turns it into a concrete value with a reason. Names of flags
are vLLM's where the meaning is the same. `HEADRACE_SECTION_FIELD` in the environment and
`section: {field: …}` in a YAML file name the same settings.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, cast


def setting(default: Any, text: str, *, flag: str | None = None, choices: tuple[str, ...] = ()) -> Any:
    """A dataclass field of the tree.

    Args:
        default: the default; None means auto.
        text: one sentence: what, unit, who should change it.
        flag: the command-line flag without dashes, when it is not the field's name.
        choices: allowed values, when there are few.
    """
    return field(default=default, metadata={"help": text, "flag": flag, "choices": choices})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model, and how much context a request may use."""

    model: str = setting("smollm2:135m", "catalogue name, .gguf file, checkpoint directory or hub id")
    tokenizer: str | None = setting(None, "tokenizer.json to use instead of the model's own")
    max_model_len: int | None = setting(
        None, "most tokens of a request, prompt and output; auto: the model's own limit"
    )
    seed: int = setting(0, "seed from which the seeds of requests without one are derived")
    load_format: str = setting(
        "auto", "container of the weights", choices=("auto", "gguf", "safetensors", "dummy")
    )
    generation_config: str = setting(
        "auto",
        "whose sampling defaults apply: the model's file (auto) or Headrace's (headrace)",
        choices=("auto", "headrace"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConfig:
    """What computes."""

    backend: str = setting(
        "auto",
        "native (C++ kernels) or reference (numpy, slow); auto takes native when it is built",
        choices=("auto", "native", "reference"),
    )
    isa: str = setting(
        "auto",
        "instruction set of the native kernels",
        choices=("auto", "portable", "avx2", "avx512", "neon", "neondot"),
    )
    threads: int | None = setting(None, "compute threads; auto: cores this process may use")
    weight_cache: str = setting(
        "auto",
        "keep packed weights on disk, so that later starts need not pack; map: use the file's pages, which "
        "processes share; read: copy them into huge pages; auto: map, then copy in the background; off: no",
        choices=("auto", "map", "read", "off"),
    )
    weight_cache_bytes: int = setting(
        32 << 30, "most bytes of packed weights on disk, all models together; the longest unused go first"
    )
    float_activations: str = setting(
        "float32",
        "what matrices in bfloat16 are multiplied with; bfloat16: activations rounded to 8 binary digits, "
        "less precise, and much faster in prefill where the processor has AVX512_BF16; native backend only",
        choices=("float32", "bfloat16"),
    )
    graphs: bool = setting(
        True, "record the step once and replay it fused; off runs every operation on its own"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KVConfig:
    """The KV pool."""

    block_size: int = setting(16, "tokens of a KV block")
    dtype: str = setting(
        "auto",
        "number format of keys and values; int8 holds twice the tokens, int16 reads long prompts faster; "
        "auto: int16 with the native backend, f16 with the reference",
        flag="kv-cache-dtype",
        choices=("auto", "f16", "f32", "int8", "int16"),
    )
    pool_bytes: int | None = setting(
        None,
        "bytes of the KV pool; auto: 85 % of what the memory limit leaves, at most 4 GiB and max_num_seqs "
        "full contexts",
        flag="kv-cache-memory-bytes",
    )
    num_blocks: int | None = setting(None, "blocks of the pool, instead of bytes", flag="num-kv-blocks")
    prefix_cache: bool = setting(
        True, "reuse computed blocks of equal prefixes", flag="enable-prefix-caching"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleConfig:
    """Who runs in which step."""

    policy: str = setting(
        "continuous",
        "batching policy; static and dynamic are baselines to compare with",
        choices=("continuous", "static", "dynamic"),
    )
    max_num_seqs: int | None = setting(None, "most sequences that run together; auto: 64")
    max_num_batched_tokens: int | None = setting(None, "most tokens of a step; auto: 512")
    chunked_prefill: bool = setting(
        True, "split long prompts over steps; off: a prompt runs whole", flag="enable-chunked-prefill"
    )
    prefill_step_ms: float | None = setting(
        None, "longest step, in milliseconds, that prefill may cause while others decode; auto: 200"
    )
    max_queued_requests: int | None = setting(None, "requests that may wait, else 429; auto: 1024")
    max_queued_tokens: int | None = setting(None, "prompt tokens that may wait, else 429; auto: 1000000")
    max_queue_s: float | None = setting(
        None, "longest wait for a first step in seconds, else 429; auto: no bound"
    )
    priority_ageing_s: float = setting(
        10.0, "seconds of waiting that a level of priority is worth, so that nobody starves"
    )
    dynamic_size: int = setting(8, "dynamic policy: requests that start a batch at once")
    dynamic_window_ms: float = setting(50.0, "dynamic policy: longest wait for a batch to fill, milliseconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculateConfig:
    """Several tokens for one reading of the weights."""

    method: str = setting(
        "off",
        "guess the next tokens and check several in a step, which changes no answer: off, auto, ngram, "
        "suffix, draft=MODEL, early-exit=N, medusa=PATH or eagle=PATH; a lookup may stand before one of the "
        "last four (auto,draft=MODEL), then each row takes the one that promises more; and after a comma "
        "depth=K for K guesses in every row instead of as many as pay",
        flag="speculate",
    )
    memory_tokens: int = setting(
        0,
        "tokens of finished answers, about 0.2 KB each, from which suffix and auto may draft later answers "
        "of the same API key and cache_salt; the oldest leave; 0: none",
        flag="speculate-memory-tokens",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """The HTTP server."""

    host: str = setting("127.0.0.1", "address to listen on")
    port: int = setting(8000, "port to listen on; 0 takes a free one and prints it")
    served_model_name: str | None = setting(None, "name in the API; auto: the model's name")
    max_body_bytes: int = setting(16 << 20, "largest request body in bytes, else 413")
    in_process: bool = setting(False, "run the engine inside the HTTP process instead of its own")
    drain_s: float = setting(30.0, "seconds that running requests get after TERM before they are cut")
    write_timeout_s: float = setting(
        60.0, "seconds that a client may leave an answer unread before its connection is cut"
    )
    log_level: str = setting("info", "log level", choices=("debug", "info", "warning", "error"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchConfig:
    """When the engine counts as stuck, and what then."""

    stall_s: float = setting(30.0, "seconds without a step, while there is work, after which /health is red")
    restart_s: float = setting(
        120.0, "seconds without a step, while there is work, after which the engine process is started again"
    )
    silence_s: float = setting(
        10.0, "seconds without a sign of life of the engine process until /health is red; twice: a new one"
    )
    load_s: float = setting(
        600.0,
        "seconds that the engine process may take to load the model; longer: it is ended and tried again",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """Who may use the server."""

    api_key: tuple[str, ...] = setting(
        (), "key that requests must bring; give it again for more keys (in the environment: commas)"
    )
    keys_file: str | None = setting(None, "YAML file of keys with a name, a share and limits each")
    cors_origins: tuple[str, ...] = setting(
        (), "web origins whose pages may call the server, such as https://example.org; *: all"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveConfig:
    """What is told about requests."""

    access_log: bool = setting(False, "write a JSON line per request to the standard error output")
    log_prompts: bool = setting(False, "put the bodies of requests (their first 64 KiB) into the access log")
    timelines: int = setting(
        1000, "requests that ended whose timelines are remembered, about 2 KB each; 0: none"
    )
    otlp_endpoint: str | None = setting(
        None, "URL that OpenTelemetry traces are sent to over HTTP; needs the extra otel"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchConfig:
    """Files and batches."""

    dir: str | None = setting(
        None, "folder of /v1/files and /v1/batches, used by one server; none: not offered", flag="batch-dir"
    )
    max_files: int = setting(1000, "files, and batches, that it may hold, else 429", flag="max-batch-files")
    max_bytes: int = setting(4 << 30, "bytes of all files together, else 429", flag="max-batch-bytes")
    key_share: float = setting(
        0.25, "most of max_files and max_bytes that one API key may take, in (0, 1]", flag="batch-key-share"
    )
    result_days: float = setting(
        30.0, "days after the end of a batch that it and its results are kept", flag="batch-result-days"
    )
    max_file_bytes: int = setting(64 << 20, "largest upload in bytes, else 413", flag="max-batch-file-bytes")
    max_lines: int = setting(50_000, "most lines of a batch, else 400", flag="max-batch-lines")
    max_lines_running: int = setting(
        4, "lines of batches that are answered at a time", flag="max-batch-lines-running"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """The whole tree. `resolve()` turns it into concrete values with reasons."""

    model: ModelConfig = field(default_factory=ModelConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    kv: KVConfig = field(default_factory=KVConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    speculate: SpeculateConfig = field(default_factory=SpeculateConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    watch: WatchConfig = field(default_factory=WatchConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    batch: BatchConfig = field(default_factory=BatchConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """One setting as data, for generators of flags and docs."""

    section: str
    name: str
    flag: str
    type_name: str
    default: Any
    help: str
    choices: tuple[str, ...]


def all_settings() -> tuple[SettingInfo, ...]:
    """Every setting of the tree, in order."""
    found: list[SettingInfo] = []
    for section in fields(EngineConfig):
        tree = cast("Callable[[], Any]", section.default_factory)()
        found.extend(
            SettingInfo(
                section=section.name,
                name=f.name,
                flag=f.metadata["flag"] or f.name.replace("_", "-"),
                type_name=str(f.type)
                if isinstance(f.type, str)
                else getattr(f.type, "__name__", str(f.type)),
                default=getattr(tree, f.name),
                help=f.metadata["help"],
                choices=f.metadata["choices"],
            )
            for f in fields(tree)
        )
    return tuple(found)
