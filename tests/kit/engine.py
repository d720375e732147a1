"""Engines over tiny checkpoints: made once, then driven step by step through random schedules."""

import json
import random
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from safetensors.numpy import save_file

from headrace.base.config import EngineConfig, KVConfig, ModelConfig, ScheduleConfig, SpeculateConfig
from headrace.base.grammar import Grammar
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.tasks import Pooling
from headrace.compute.models.load import load_model
from headrace.compute.ops.backends.reference import ReferenceBackend
from headrace.compute.sampling.seeds import choice_seed
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.engine.build import make_runner, make_scheduler, model_facts
from headrace.engine.core import CoreSizes, EngineCore
from headrace.engine.grammars.structured import Structured
from headrace.engine.resolve import DeviceFacts, resolve
from headrace.engine.text import Text
from headrace.host.text.chat import ChatTemplate

VOCAB = 96
LENGTH = 192
END = 2


@cache
def _root() -> TemporaryDirectory:
    return TemporaryDirectory(prefix="headrace-engine-")


@cache
def tiny_llama(seed: int = 5, std: float = 0.2) -> Path:
    """A llama checkpoint with random float32 weights (no tokenizer)."""
    width, mlp, layers, heads, kv_heads, head = 32, 64, 2, 4, 2, 16
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return (rng.standard_normal(shape) * std).astype(np.float32)

    tensors = {"model.embed_tokens.weight": draw(VOCAB, width), "lm_head.weight": draw(VOCAB, width)}
    tensors["model.norm.weight"] = 1 + draw(width)
    for i in range(layers):
        at = f"model.layers.{i}."
        tensors[at + "input_layernorm.weight"] = 1 + draw(width)
        tensors[at + "post_attention_layernorm.weight"] = 1 + draw(width)
        tensors[at + "self_attn.q_proj.weight"] = draw(heads * head, width)
        tensors[at + "self_attn.k_proj.weight"] = draw(kv_heads * head, width)
        tensors[at + "self_attn.v_proj.weight"] = draw(kv_heads * head, width)
        tensors[at + "self_attn.o_proj.weight"] = draw(width, heads * head)
        tensors[at + "mlp.gate_proj.weight"] = draw(mlp, width)
        tensors[at + "mlp.up_proj.weight"] = draw(mlp, width)
        tensors[at + "mlp.down_proj.weight"] = draw(width, mlp)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": VOCAB,
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head,
        "max_position_embeddings": LENGTH,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": END,
        "torch_dtype": "float32",
    }
    return write_checkpoint(f"llama-{seed}-{std}", config, tensors)


def write_checkpoint(name: str, config: dict, tensors: dict) -> Path:
    """A checkpoint directory from a configuration and float32 tensors."""
    folder = Path(_root().name) / name
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({k: np.ascontiguousarray(v) for k, v in tensors.items()}, folder / "model.safetensors")
    return folder


def make_backend(name: str, threads: int = 1, *, rounds: bool = False):
    """A backend by name; the native one with its best instruction set."""
    if name == "reference":
        return ReferenceBackend()
    from headrace import _native
    from headrace.compute.ops.backends.native.backend import NativeBackend, NativeOptions

    return NativeBackend(NativeOptions(isa=_native.isas()[0], threads=threads, rounds=rounds))


class TinyTokenizer:
    """Spells the tokens of the tiny llama: three marks, letters and signs, then some longer pieces."""

    CHARS = 'abcdefghijklmnopqrstuvwxyz0123456789 {}[]":,.-\n\\_()<>'
    PIECES = ('{"', '":', '",', "ab", "the", "12", "  ", "true", "false", "null", '"}', "}]", "[1", "é")

    def __init__(self) -> None:
        spelled = [b"", b"", b"", *(c.encode() for c in self.CHARS), *(p.encode() for p in self.PIECES)]
        self._bytes = spelled + [b""] * (VOCAB - len(spelled))
        self.vocab_size, self.bos_id = VOCAB, 1
        self.specials = ()

    def token_bytes(self, token_id: int) -> bytes:
        return self._bytes[token_id] if token_id < VOCAB else b""

    def encode(self, text: str, **_) -> list[int]:
        return [3 + self.CHARS.index(char) for char in text]


@cache
def tiny_text() -> Text:
    """The text side of the tiny llama."""
    return Text(TinyTokenizer(), ChatTemplate(None, {}), frozenset({END}))  # type: ignore[arg-type]


GRAMMARS = (
    Grammar.regex("[a-f]{1,8}"),
    Grammar.regex("[a-z ]*"),
    Grammar.choice(["the", "then 12", "ab"]),
    Grammar.json({"type": "array", "items": {"type": "integer"}, "maxItems": 4}),
    Grammar.json({"type": "object", "properties": {"ab": {"type": "boolean"}}, "required": ["ab"]}),
    Grammar.json_object(whitespace=""),
    Grammar.lark('start: "a" start "b" | "12"'),
    replace(Grammar.json({"type": "boolean"}), lead='start: ("<" /[a-z ]*/ ">")? (@answer | "12")\n'),
)
"""Constraints that the tiny vocabulary can meet."""


class Rig:
    """A loaded model that many small engines share, one after the other."""

    def __init__(
        self,
        path: Path,
        backend: str = "native",
        threads: int = 1,
        length: int = LENGTH,
        *,
        rounds: bool = False,
    ) -> None:
        self.checkpoint = open_checkpoint(path)
        self.backend = make_backend(backend, threads, rounds=rounds)
        self.name, self.threads, self.length = backend, threads, length
        self.text = tiny_text
        self._alone: dict[str, EngineCore] = {}
        self.model = load_model(self.checkpoint, self.backend, length, max_slots=16)

    def core(self, draft: "Rig | None" = None, **options) -> EngineCore:
        """A fresh engine. Options: fields of `Shape`. `draft`: the rig whose model drafts."""
        shape = Shape(**options)
        config = EngineConfig(
            model=ModelConfig(model=str(self.checkpoint.path), max_model_len=None),
            kv=KVConfig(
                block_size=shape.block_size,
                num_blocks=shape.num_blocks,
                prefix_cache=shape.prefix_cache,
                dtype=shape.dtype,
            ),
            schedule=ScheduleConfig(
                policy=shape.policy,
                max_num_seqs=shape.slots,
                max_num_batched_tokens=max(shape.budget, shape.slots),
                chunked_prefill=shape.chunked,
                dynamic_size=2,
                dynamic_window_ms=shape.window_ms,
            ),
            speculate=SpeculateConfig(method=shape.speculate, memory_tokens=shape.memory_tokens),
        )
        device = DeviceFacts(
            backend=self.name,
            isa="",
            threads=self.threads,
            reasons=(),
            memory_bytes=4 << 30,
            memory_reason="",
        )
        facts = replace(model_facts(config, self.checkpoint), max_length=self.length)
        resolved = replace(resolve(config, facts, device), max_num_batched_tokens=shape.budget)
        sizes = CoreSizes(num_blocks=shape.num_blocks, weight_bytes=0, kv_bytes=0)
        runner = make_runner(resolved, self.model, self.backend, None if draft is None else draft.model)
        structured = Structured(self.text, self.checkpoint.spec.vocab_size, self.threads)
        return EngineCore(
            make_scheduler(resolved), runner, sizes, structured, self.model.rope.kv_domain, lambda: None
        )

    def solo(self, request: Request, dtype: str = "f32") -> "Life":
        """The request alone: whole prompt at once, no cache, room for everything."""
        if dtype not in self._alone:
            self._alone[dtype] = self.core(
                prefix_cache=False, num_blocks=64, block_size=16, slots=1, budget=512, dtype=dtype
            )
        return Drive(self._alone[dtype]).run([replace(request, leader=None)])[request.request_id]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of a small engine."""

    block_size: int = 16
    num_blocks: int = 64
    prefix_cache: bool = True
    policy: str = "continuous"
    slots: int = 8
    budget: int = 512
    chunked: bool = True
    dtype: str = "f32"
    speculate: str = "off"
    memory_tokens: int = 0
    window_ms: float = 0.0


@cache
def rig(backend: str = "native", threads: int = 1) -> Rig:
    """The shared rig of a backend over the tiny llama."""
    return Rig(tiny_llama(), backend, threads)


@dataclass
class Life:
    """What a sequence gave."""

    tokens: list = field(default_factory=list)
    logprobs: list = field(default_factory=list)
    prompt_logprobs: list = field(default_factory=list)
    finish: FinishReason | None = None
    error: str | None = None
    cached: int = 0
    preempted: int = 0
    pooled: bytes = b""
    beams: tuple = ()

    @property
    def answer(self):
        """What must equal the solo run."""
        return (self.tokens, self.logprobs, self.prompt_logprobs, self.finish, self.error, self.pooled)


class Drive:
    """Runs an engine step by step, checking its invariants."""

    def __init__(self, core: EngineCore, *, check: bool = True, draft_faults: int = 0) -> None:
        self.core = core
        self._draft_faults = draft_faults
        self.lives: dict[str, Life] = {}
        self._check = check

    def take(self, news) -> None:
        for delta in () if news is None else news.deltas:
            life = self.lives[delta.request_id]
            assert life.finish is None, "news after the end"
            life.tokens += delta.new_ids
            life.logprobs += delta.logprobs
            life.prompt_logprobs += delta.prompt_logprobs
            life.finish, life.error = delta.finish, delta.error
            life.cached = max(life.cached, delta.cached_tokens)
            life.preempted = delta.num_preempted
            life.pooled = delta.pooled
            life.beams = delta.beams

    def run(self, requests, *, arrivals=None, aborts=None) -> dict[str, Life]:
        """All requests to their end. `arrivals`: step of each group's arrival; `aborts`: id -> step."""
        groups: dict[str, list[Request]] = {}
        for request in requests:
            groups.setdefault(request.leader or request.request_id, []).append(request)
        todo = sorted(groups.values(), key=lambda g: (arrivals or {}).get(g[0].request_id, 0))
        aborts = dict(aborts or {})
        step = 0
        while todo or self.core.has_work:
            while todo and (arrivals or {}).get(todo[0][0].request_id, 0) <= step:
                group = todo.pop(0)
                for request in group:
                    self.lives[request.request_id] = Life()
                self.core.add(tuple(group))
            for name in [n for n, at in aborts.items() if at <= step and n in self.lives]:
                del aborts[name]
                self.take(self.core.finish((name,), FinishReason.ABORT))
            if self.core.has_work:
                self.take(self.core.step())
                if self._check:
                    self.core.check()
            step += 1
            assert step < 5000, "no end"
        if self._check:
            self.check_idle()
        return self.lives

    def check_idle(self) -> None:
        """Nothing is held, nothing waits, and no drafter raised what was contained."""
        self.core.check()
        assert self.core.runner.num_draft_faults == self._draft_faults
        gauges = self.core.stats().gauges
        assert gauges["running"] == gauges["waiting"] == gauges["blocks_held"] == 0
        assert gauges["blocks_free"] + gauges["blocks_evictable"] == gauges["blocks_total"]


def random_sampling(rng: random.Random, most: int) -> SamplingParams:
    """Any mixture of sampling options."""

    def maybe(value, default, chance=0.3):
        return value if rng.random() < chance else default

    max_tokens = rng.randint(1, most)
    return SamplingParams(
        temperature=rng.choice([0.0, 0.7, 1.0, 2.0]),
        top_k=maybe(rng.randint(1, 20), 0),
        top_p=maybe(rng.uniform(0.3, 1.0), 1.0),
        min_p=maybe(rng.uniform(0.0, 0.3), 0.0),
        repetition_penalty=maybe(rng.uniform(0.8, 1.8), 1.0),
        presence_penalty=maybe(rng.uniform(-1, 1), 0.0),
        frequency_penalty=maybe(rng.uniform(-1, 1), 0.0),
        logit_bias=maybe(((rng.randrange(VOCAB), 3.0), (rng.randrange(VOCAB), -50.0)), ()),
        allowed_token_ids=maybe(tuple(range(2, VOCAB, 3)), None, 0.15),
        bad_words_ids=maybe(((rng.randrange(VOCAB),), (7, 8)), (), 0.2),
        seed=rng.choice([1, 1, 2, rng.randrange(2**63)]),
        min_tokens=maybe(rng.randint(0, max_tokens), 0),
        max_tokens=max_tokens,
        logprobs=rng.choice([None, 0, 1, 5]),
        prompt_logprobs=maybe(rng.choice([0, 3]), None, 0.15),
    )


EDGES = (1, 2, 15, 16, 17, 31, 32, 33, 47, 48, 49)


def random_requests(
    rng: random.Random,
    most_tokens: int,
    *,
    most_requests: int = 5,
    most_output: int = 12,
    structured: float = 0.0,
) -> list[Request]:
    """A few requests with shared prefixes, some with several choices; each needs at most `most_tokens`.

    `structured`: the share of requests that answer under a grammar.
    """
    base = [rng.randrange(3, VOCAB) for _ in range(64)]
    requests: list[Request] = []
    for i in range(rng.randint(2, most_requests)):
        length = min(rng.choice(EDGES) if rng.random() < 0.6 else rng.randint(1, 50), most_tokens - 2)
        shared = rng.choice([0, length, rng.randint(0, length)])
        prompt = tuple(base[:shared] + [rng.randrange(3, VOCAB) for _ in range(length - shared)])
        sampling = random_sampling(rng, min(most_output, most_tokens - length))
        if rng.random() < 0.15:
            pooling, plain = rng.choice(list(Pooling)), SamplingParams(max_tokens=1, seed=0)
            requests.append(Request(request_id=f"r{i}.0", prompt_ids=prompt, sampling=plain, task=pooling))
            continue
        if structured and rng.random() < structured:
            sampling = replace(sampling, structured=rng.choice(GRAMMARS))
        for k in range(rng.choice([1, 1, 1, 2, 3])):
            own = replace(
                sampling,
                seed=choice_seed(sampling.seed, k),
                prompt_logprobs=sampling.prompt_logprobs if k == 0 else None,
            )
            requests.append(
                Request(
                    request_id=f"r{i}.{k}",
                    prompt_ids=prompt,
                    sampling=own,
                    end_ids=frozenset({END, 11, 12}),
                    leader=f"r{i}.0" if k else None,
                    salt=rng.choice(["", "", "a"]) if k == 0 else requests[-1].salt,
                    priority=rng.choice([0, 0, 0, 1]) if k == 0 else requests[-1].priority,
                )
            )
    return requests


def random_shape(rng: random.Random) -> dict:
    """Sizes that make chunks, preemption and eviction frequent."""
    block = rng.choice([4, 16])
    slots = rng.choice([1, 2, 4, 8])
    chunked = rng.random() < 0.85
    return {
        "block_size": block,
        "num_blocks": rng.choice([16, 20, 40]) if block == 4 else rng.choice([4, 5, 6, 12]),
        "prefix_cache": rng.random() < 0.8,
        "policy": rng.choice(["continuous", "continuous", "static", "dynamic"]),
        "slots": slots,
        "budget": rng.choice([1, 3, 8, 16, 17, 33, 128]),
        "chunked": chunked,
        "dtype": rng.choice(["f16", "f32", "int8", "int16"]),
    }
