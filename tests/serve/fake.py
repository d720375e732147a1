"""A scripted engine behind the real server: says exactly what a test wants, when it wants."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from headrace.base.config import AccessConfig, EngineConfig, ObserveConfig, ServeConfig
from headrace.base.errors import ContextLengthError, HeadraceError
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import SamplingParams
from headrace.base.terms import Terms, caller_terms
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.chat.prompt import ChatOptions, ChatPrompt
from headrace.engine.outputs import ChoiceDelta, EngineHealth, EngineStats, RequestOutput, Usage
from headrace.engine.settings.notes import Setting
from headrace.engine.timelines.store import TimelineStore
from headrace.serve.address import bind, url_of
from headrace.serve.app import build_app
from headrace.serve.connection import http_config
from headrace.serve.server import HttpServer


class ByteTokenizer:
    """A token per byte; 256 ends."""

    vocab_size = 257

    def encode(self, text: str, *, add_special: bool = True, parse_special: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b"<end>"

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode(errors="replace")


class RoleTemplate:
    """`role:text|` for each message."""

    def encode(self, tokenizer: Any, messages: Any, **kwargs: Any) -> list[int]:
        return tokenizer.encode("".join(f"{m['role']}:{m['content']}|" for m in messages))


@dataclass
class Seen:
    """A request as the engine got it, and what became of it."""

    prompt: Any
    params: SamplingParams
    request_id: str
    salt: str
    priority: int
    kwargs: dict[str, Any] = field(default_factory=dict)
    options: ChatOptions = field(default_factory=ChatOptions)
    closed: bool = False
    terms: Terms = field(default_factory=caller_terms)


Script = Callable[[Seen], AsyncIterator[tuple[ChoiceDelta, ...] | HeadraceError]]


SETTINGS = (
    Setting(name="model", asked="/secret/model", value="fake", reason="a script"),
    Setting(name="model.max_model_len", asked="auto", value="64", reason="it is small", falls_short=True),
    Setting(name="schedule.max_num_seqs", asked="8", value="8", reason="asked for"),
)


@dataclass
class FakeLLM:
    """An `AsyncLLM` whose answers come from `script`."""

    script: Script
    defaults: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.7, max_tokens=None))
    model_name: str = "fake"
    max_model_len: int = 64
    state: EngineHealth = field(
        default_factory=lambda: EngineHealth(alive=True, making_progress=True, ready=True)
    )
    seen: list[Seen] = field(default_factory=list)
    tokenizer: ByteTokenizer = field(default_factory=ByteTokenizer)
    chat_template: RoleTemplate = field(default_factory=RoleTemplate)
    closed: bool = False
    num_restarts: int = 0
    timelines: TimelineStore = field(default_factory=lambda: TimelineStore(100))
    resolved: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(settings=SETTINGS))

    async def generate(
        self, prompt: Any, params: SamplingParams, **more: Any
    ) -> AsyncIterator[RequestOutput]:
        if len(prompt) > 8 * self.max_model_len:
            raise ContextLengthError("the prompt is too long", param="prompt")
        ids = tuple(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)
        seen = Seen(prompt, params, more.get("request_id", ""), more.get("salt", ""), more.get("priority", 0))
        async for output in self._run(seen, ids):
            yield output

    async def chat(
        self, messages: Any, params: SamplingParams, *, options: ChatOptions, **more: Any
    ) -> AsyncIterator[RequestOutput]:
        ids = tuple(self.chat_template.encode(self.tokenizer, messages))
        seen = Seen(
            messages,
            params,
            more["request_id"],
            more["salt"],
            more["priority"],
            dict(options.template_kwargs),
            options,
        )
        async for output in self._run(seen, ids):
            yield output

    async def chat_prompt(self, messages: Any, options: ChatOptions) -> ChatPrompt:
        ids = self.chat_template.encode(self.tokenizer, messages, **options.template_kwargs)
        return ChatPrompt(ids=tuple(ids), plan=None)

    async def _run(self, seen: Seen, ids: tuple[int, ...]) -> AsyncIterator[RequestOutput]:
        self.seen.append(seen)
        tokens, open_choices = 0, set(range(seen.params.n))
        seed = 7 if seen.params.seed is None else seen.params.seed
        try:
            async for news in self.script(seen):
                error = news if isinstance(news, HeadraceError) else None
                deltas = () if isinstance(news, HeadraceError) else news
                tokens += sum(len(d.token_ids) for d in deltas)
                open_choices -= {d.index for d in deltas if d.finish_reason is not None}
                yield RequestOutput(
                    request_id=seen.request_id,
                    prompt_ids=ids,
                    choices=deltas,
                    finished=not open_choices,
                    usage=Usage(prompt_tokens=len(ids), completion_tokens=tokens, cached_tokens=3),
                    seed=seed,
                    error=error,
                )
        finally:
            seen.closed = True

    async def abort(self, request_id: str) -> bool:
        return False

    async def timeline(self, tenant: str, name: str) -> Timeline | None:
        return self.timelines.find(tenant, name)

    def health(self) -> EngineHealth:
        return self.state

    async def stats(self) -> EngineStats:
        return EngineStats(
            counters={"generated_tokens": 5.0, "prompt_tokens": 9.0, "preemptions": 1.0},
            gauges={"running": 2.0, "waiting": 1.0, "blocks_total": 10.0, "blocks_held": 4.0},
        )

    async def close(self, drain_s: float = 0.0) -> None:
        self.closed = True


def word(text: str, index: int = 0, **more: Any) -> ChoiceDelta:
    """A delta of a text, a token per byte."""
    return ChoiceDelta(index=index, text=text, token_ids=tuple(text.encode()), **more)


async def hello(seen: Seen) -> AsyncIterator[tuple[ChoiceDelta, ...]]:
    """Every choice says hello, then stops."""
    for text in ("Hel", "lo ", "wörld"):
        yield tuple(word(text, i) for i in range(seen.params.n))
        await asyncio.sleep(0)
    yield tuple(ChoiceDelta(index=i, finish_reason="stop") for i in range(seen.params.n))


class LiveServer:
    """The real application on a real socket, in a thread."""

    def __init__(
        self,
        llm: FakeLLM,
        access: AccessConfig | None = None,
        observe: ObserveConfig | None = None,
        **settings: Any,
    ) -> None:
        config = ServeConfig(port=0, **settings)
        tree = EngineConfig(serve=config, access=access or AccessConfig(), observe=observe or ObserveConfig())
        self.llm = llm
        self._sock = bind(config)
        app, self.state = build_app(cast("AsyncLLM", llm), tree)
        self.url = url_of(self._sock)
        unread = self.state.metrics.waits.unread
        quiet = http_config(app, replace(config, log_level="error"), unread)
        self._server = HttpServer(quiet, self._on_started)
        self._started = threading.Event()
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._sock]}, daemon=True
        )

    def __enter__(self) -> "LiveServer":
        self._thread.start()
        assert self._started.wait(10), "the server did not come up"
        return self

    def _on_started(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._started.set()

    def __exit__(self, *_: object) -> None:
        self._server.force_exit = True
        self._loop.call_soon_threadsafe(self._server.end)
        self._thread.join(5)
        self._sock.close()
