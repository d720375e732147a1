"""What all routes share: the engine, the served names, the metrics, and whether the server is draining."""

import uuid
from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from headrace.base.clock import unix_s
from headrace.base.config import ServeConfig
from headrace.base.errors import EngineDeadError, NotFoundError, RequestError
from headrace.engine.async_llm import AsyncLLM
from headrace.host.text.tokenizer import Tokenizer
from headrace.serve.faults import DrainingError
from headrace.serve.metrics import ServerMetrics
from headrace.serve.schema.logprobs import NoVocabulary, Vocabulary


@dataclass(slots=True, kw_only=True)
class Served:
    """The state of one server; `draining` is the only thing that changes."""

    llm: AsyncLLM
    config: ServeConfig
    metrics: ServerMetrics
    created: int = field(default_factory=lambda: int(unix_s()))
    draining: bool = False

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


def served(request: Request) -> Served:
    """The state of the server that got this request."""
    return cast("Served", request.app.state.served)


def new_id(request: Request, given: str | None) -> str:
    """The id of a request: the body's `request_id`, else the header `X-Request-Id`, else a random one."""
    header = request.headers.get("x-request-id", "")
    return given or header[:128] or uuid.uuid4().hex
