"""What all routes share: the engine, the served names, the metrics, and whether the server is draining."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from starlette.requests import Request

from headrace.base.clock import now_s, unix_s
from headrace.base.config import ServeConfig
from headrace.base.errors import ContextLengthError, EngineDeadError, NotFoundError, RequestError
from headrace.engine.async_llm import AsyncLLM
from headrace.host.text.tokenizer import Tokenizer
from headrace.serve.batches.worker import Worker
from headrace.serve.faults import DrainingError
from headrace.serve.front.record import Record
from headrace.serve.metrics import ServerMetrics
from headrace.serve.running import Running
from headrace.serve.schema.logprobs import NoVocabulary, Vocabulary

ROOM_BYTES_PER_TOKEN = 16
"""Texts with fewer bytes per token of context are not measured further."""


@dataclass(slots=True, kw_only=True)
class Served:
    """The state of one server; `draining` is the only thing that changes its answers."""

    llm: AsyncLLM
    config: ServeConfig
    metrics: ServerMetrics
    created: int = field(default_factory=lambda: int(unix_s()))
    draining: bool = False
    at_end: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    """What remains to be done when the server ends."""
    batches: Worker | None = None
    """Answers batches; None: this server takes none."""
    running: Running = field(init=False)
    longest_token: int = 0
    """Bytes of the longest token; 0 until it is needed."""
    description: dict[str, Any] | None = None
    """The description of the API; None until it is asked for."""

    def __post_init__(self) -> None:
        """No request yet."""
        self.running = Running(self.llm)

    @property
    def batch_worker(self) -> Worker:
        """What answers batches.

        Raises:
            NotFoundError: this server takes none.
        """
        if self.batches is None:
            raise NotFoundError("this server keeps no files and batches; start it with --batch-dir FOLDER")
        return self.batches

    @property
    def model_name(self) -> str:
        """The name clients use."""
        return self.config.served_model_name or self.llm.model_name

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        found = self.llm.tokenizer
        if found is None:
            raise RequestError("this model brings no tokenizer; start the server with --tokenizer FILE")
        return found

    @property
    def vocabulary(self) -> Vocabulary:
        """How tokens are spelled in answers; without a tokenizer, as nothing."""
        return self.llm.tokenizer or NoVocabulary()

    async def check_room(self, num_bytes: int) -> None:
        """Refuse a text that cannot fit, before it is tokenized: each token has a most of bytes.

        Raises:
            ContextLengthError: it cannot fit.
        """
        limit = self.llm.max_model_len
        if num_bytes <= ROOM_BYTES_PER_TOKEN * limit:
            return
        if not self.longest_token:
            self.longest_token = await asyncio.to_thread(_longest_token, self.tokenizer)
        least = num_bytes // self.longest_token
        if least >= limit:
            raise ContextLengthError(
                f"the prompt has at least {least} tokens; the context limit is {limit} tokens: shorten it"
            )

    def note_sent(self, record: Record) -> None:
        """The timelines of the requests behind an answer end with its last byte."""
        for request_id in record.answered.ended if record.is_whole else ():
            self.llm.timelines.sent(record.key, request_id, now_s())

    def check_model(self, name: str | None) -> None:
        """A request may leave the model out; another name is an error.

        Raises:
            NotFoundError: this server does not serve that model.
        """
        if name is not None and name not in {self.model_name, self.llm.model_name}:
            raise NotFoundError(
                f"no model {name[:100]!r} here; this server has {self.model_name!r}", param="model"
            )

    def admit(self) -> None:
        """Refuse new work while the server stops or the engine is dead.

        Raises:
            DrainingError: the server is stopping.
            EngineDeadError: the engine has stopped.
        """
        if self.draining:
            raise DrainingError("the server is stopping and takes no new requests")
        health = self.llm.health()
        if not health.alive:
            raise EngineDeadError(f"the engine is not running: {health.reason or 'it has stopped'}")


def _longest_token(tokenizer: Tokenizer) -> int:
    return max(1, *(len(tokenizer.token_bytes(i)) for i in range(tokenizer.vocab_size)))


def served(request: Request) -> Served:
    """The state of the server that got this request."""
    return cast("Served", request.app.state.served)


def new_id(request: Request, given: str | None) -> str:
    """The id of a request: the body's `request_id`, else the header `X-Request-Id`, else a random one."""
    header = request.headers.get("x-request-id", "")
    return given or header[:128] or uuid.uuid4().hex
