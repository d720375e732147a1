"""`AsyncLLM`: the engine for asyncio programs, in its own process or in this one."""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from headrace.base.config import EngineConfig
from headrace.base.request import SamplingParams
from headrace.engine.outputs import EngineHealth, EngineStats, RequestOutput


class AsyncLLM:
    """An engine that is shared by many tasks of one event loop.

    Attributes:
        resolved: the concrete settings with reasons (`resolve.Resolved`).
        tokenizer: the model's tokenizer.
        chat_template: the model's chat template, or None.
        model_name: the name the model is served under.
        max_model_len: most tokens of prompt and output together.
        defaults: the `SamplingParams` that apply where a request says nothing.
    """

    resolved: Any
    tokenizer: Any
    chat_template: Any
    model_name: str
    max_model_len: int
    defaults: SamplingParams

    @classmethod
    async def start(cls, config: EngineConfig) -> "AsyncLLM":
        """Load the model; spawns the engine process unless `config.serve.in_process`."""
        raise NotImplementedError

    def generate(
        self,
        prompt: str | Sequence[int],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        salt: str = "",
        priority: int = 0,
    ) -> AsyncIterator[RequestOutput]:
        """Outputs as they come. Errors before the first output are raised; closing the iterator aborts."""
        raise NotImplementedError

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        *,
        request_id: str | None = None,
        salt: str = "",
        priority: int = 0,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncIterator[RequestOutput]:
        """`generate` for a conversation.

        `template_kwargs` go to `ChatTemplate.encode` (tools, add_generation_prompt …).
        """
        raise NotImplementedError

    async def abort(self, request_id: str) -> bool:
        """End a request; True when it was known."""
        raise NotImplementedError

    def health(self) -> EngineHealth:
        """State of the engine, from its step counter; never waits."""
        raise NotImplementedError

    async def stats(self) -> EngineStats:
        """Counters and gauges."""
        raise NotImplementedError

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop admitting, give running requests `drain_s` seconds, abort the rest, end the engine."""
        raise NotImplementedError
