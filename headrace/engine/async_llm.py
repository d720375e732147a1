"""`AsyncLLM`: the engine for asyncio programs, in its own process or in this one."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import replace
from typing import Any

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig
from headrace.base.errors import AbortedError, HeadraceError
from headrace.base.messages import Picture
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import SamplingParams
from headrace.base.tasks import Pooling
from headrace.base.terms import caller_terms
from headrace.engine.build import OpenedModel, Phases, TextLoading, open_and_build, open_model
from headrace.engine.chat.prompt import DEFAULTS, ChatOptions, ChatPrompt, Messages
from headrace.engine.client import CoreClient, LocalClient
from headrace.engine.frontend import Frontend, Sink, wait_until_idle
from headrace.engine.intake import Ask, Prepared, Prompt
from headrace.engine.outputs import EngineHealth, EngineStats, RequestOutput
from headrace.engine.process.remote import RemoteClient
from headrace.engine.process.spawn import Spawned
from headrace.engine.resolve import Resolved
from headrace.engine.timelines.store import TimelineStore
from headrace.host.text.chat import ChatTemplate
from headrace.host.text.tokenizer import Tokenizer

INLINE_CHARS = 2000
"""Longer prompts are tokenized in a thread, so that the event loop goes on."""
ABORT_S = 5.0


class Mail:
    """Carries items from other threads to queues of an event loop, many per wake-up of the loop.

    The outputs of one step come in one go; waking the loop costs a system call, so only the first does it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._items: deque[tuple[asyncio.Queue[Any], object]] = deque()
        self._is_due = False

    def put(self, queue: "asyncio.Queue[Any]", item: object) -> None:
        """Put an item into a queue of the loop, soon; from any thread."""
        self._items.append((queue, item))
        if self._is_due:
            return  # whoever set it has not begun to deliver: it finds this item too
        self._is_due = True
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody listens any more
            self.loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        self._is_due = False  # first: an item that comes now wakes the loop again
        items = self._items
        while items:
            queue, item = items.popleft()
            queue.put_nowait(item)


class AsyncLLM:
    """An engine that is shared by many tasks of one event loop. Made by `start`.

    Attributes:
        resolved: the concrete settings with reasons.
        tokenizer: the model's tokenizer; None for a model of token ids only.
        chat_template: the model's chat template.
        model_name: the name the model is served under.
        max_model_len: most tokens of prompt and output together.
        defaults: the sampling parameters that apply where a request says nothing.
        phases: seconds of each phase of the start.
    """

    resolved: Resolved
    tokenizer: Tokenizer | None
    chat_template: ChatTemplate
    model_name: str
    max_model_len: int
    defaults: SamplingParams
    phases: dict[str, float]

    def __init__(self, opened: OpenedModel, client: CoreClient, phases: dict[str, float]) -> None:
        self.resolved = opened.resolved
        self.tokenizer = opened.text.tokenizer
        self.chat_template = opened.text.chat_template
        self.model_name = opened.resolved.model.name
        self.max_model_len = opened.resolved.max_model_len
        self.defaults = opened.defaults
        self.phases = phases
        self.client = client
        self.frontend = Frontend(opened, client, keeps_timelines=True)
        self._mail: Mail | None = None

    @classmethod
    async def start(cls, config: EngineConfig, launch: "Launch | None" = None) -> "AsyncLLM":
        """Load the model; spawns the engine process unless `config.serve.in_process`.

        `launch` is that of an engine process that loads the model already.

        Raises:
            HeadraceError: the model cannot be used, or the settings are impossible.
        """
        return await asyncio.to_thread(cls._start, config, launch)

    @classmethod
    def _start(cls, config: EngineConfig, launch: "Launch | None") -> "AsyncLLM":
        client: CoreClient
        if config.serve.in_process:
            phases = Phases()
            opened, core = open_and_build(config, phases)
            client = LocalClient(core, phases.seconds)
        else:
            launch = launch or Launch(config)
            phases, client = launch.phases, launch.client
            opened = launch.result()
        with phases.phase("chat template"):
            opened.text.chat_template.prepare()
        return cls(opened, client, phases.seconds)

    def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        salt: str = "",
        priority: int = 0,
        part_of: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs as they come; closing the iterator (or cancelling its task) aborts the request.

        `part_of` is the id of an answer to several requests; its timeline is then found by this, too.

        Raises:
            HeadraceError: the request was refused. One that fails later says so in its last output.
        """
        ask = Ask(
            prompt=prompt, params=params, request_id=request_id, salt=salt, priority=priority, part_of=part_of
        )
        return self._outputs(ask)

    async def embed(
        self,
        prompt: Prompt,
        pooling: Pooling = Pooling.LAST,
        *,
        request_id: str | None = None,
        salt: str = "",
        priority: int = 0,
        part_of: str = "",
    ) -> RequestOutput:
        """The pooled hidden states of a prompt (`RequestOutput.pooled`); cancelling the task aborts.

        Raises:
            HeadraceError: the request was refused, or failed.
        """
        ask = Ask(
            prompt=prompt,
            params=SamplingParams(),
            request_id=request_id,
            salt=salt,
            priority=priority,
            task=pooling,
            part_of=part_of,
        )
        outputs = self._outputs(ask)
        try:
            output = await anext(outputs)
        finally:
            await outputs.aclose()
        if not output.pooled:
            raise output.error or AbortedError("the request was aborted before its end")
        return output

    async def _outputs(self, ask: Ask) -> AsyncGenerator[RequestOutput, None]:
        queue: asyncio.Queue[RequestOutput | HeadraceError] = asyncio.Queue()
        mail = self._mail_of(asyncio.get_running_loop())

        def sink(item: RequestOutput | HeadraceError) -> None:
            mail.put(queue, item)

        if len(ask.prompt) > INLINE_CHARS or ask.params.bad_words:
            prepared = await self._submit_in_thread(ask, sink)
        else:
            prepared = self.frontend.submit(ask, sink)
        is_first = True
        try:
            while True:
                item = await queue.get()
                if isinstance(item, HeadraceError):
                    raise item
                if is_first and item.error is not None:
                    raise item.error
                is_first = False
                yield item
                if item.finished:
                    return
        finally:
            self.frontend.cancel(prepared)

    def _mail_of(self, loop: asyncio.AbstractEventLoop) -> "Mail":
        if self._mail is None or self._mail.loop is not loop:
            self._mail = Mail(loop)
        return self._mail

    async def _submit_in_thread(self, ask: Ask, sink: Sink) -> Prepared:
        """`Frontend.submit`; a caller who leaves meanwhile leaves no request behind."""
        submission = asyncio.ensure_future(asyncio.to_thread(self.frontend.submit, ask, sink))
        try:
            return await asyncio.shield(submission)
        except asyncio.CancelledError:
            submission.add_done_callback(self._cancel_late)
            raise

    def _cancel_late(self, submission: "asyncio.Future[Prepared]") -> None:
        if not submission.cancelled() and submission.exception() is None:
            self.frontend.cancel(submission.result())

    async def chat_prompt(self, messages: Messages, options: ChatOptions = DEFAULTS) -> ChatPrompt:
        """The prompt of a conversation, made off the event loop.

        Raises:
            RequestError: the template refuses, or does not read an option.
            ContextLengthError: the texts alone are too long.
        """
        return await asyncio.to_thread(self.frontend.intake.chat, messages, options)

    async def chat(
        self,
        messages: Messages,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        salt: str = "",
        priority: int = 0,
        options: ChatOptions = DEFAULTS,
    ) -> AsyncIterator[RequestOutput]:
        """`generate` for a conversation; `options` carry tools, variables of the template and so on.

        Where the model reasons or may call tools, `ChoiceDelta.parts` have the answer taken apart.
        """
        begun_s = now_s()
        prompt = await self.chat_prompt(messages, options.of(params))
        ask = Ask(
            prompt=prompt.ids,
            params=prompt.constrained(params),
            request_id=request_id,
            salt=salt,
            priority=priority,
            plan=prompt.plan,
            begun_s=begun_s,
        )
        outputs = self._outputs(ask)
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()

    async def abort(self, request_id: str) -> bool:
        """End a request of the caller's; True when it was known. Its iterator ends with `abort`."""
        return self.frontend.abort(request_id, caller_terms().tenant.name)

    def health(self) -> EngineHealth:
        """State of the engine, from its step counter; never waits."""
        return self.frontend.health()

    @property
    def num_restarts(self) -> int:
        """How many times the engine process was started again."""
        return self.client.num_restarts if isinstance(self.client, RemoteClient) else 0

    async def stats(self) -> EngineStats:
        """Counters and gauges.

        Raises:
            EngineDeadError: the engine is not running.
        """
        return await self.frontend.stats_soon()

    async def picture(self) -> Picture:
        """Who runs, and what each KV block is.

        Raises:
            EngineDeadError: the engine is not running.
        """
        return await self.frontend.picture()

    @property
    def timelines(self) -> TimelineStore:
        """The timelines of the requests that ended last."""
        return self.frontend.timelines

    async def timeline(self, tenant: str, name: str) -> Timeline | None:
        """Where the time of a tenant's request went, up to now while it runs; None: there is none.

        Raises:
            EngineDeadError: it is running, and the engine does not answer.
        """
        return await self.frontend.timeline(tenant, name)

    async def close(self, drain_s: float = 0.0) -> None:
        """Stop admitting, give running requests `drain_s` seconds, abort the rest, end the engine."""
        self.frontend.stop_admitting()
        if drain_s > 0:
            await asyncio.to_thread(wait_until_idle, self.frontend, drain_s)
        self.frontend.abort_all()
        await asyncio.to_thread(wait_until_idle, self.frontend, ABORT_S)
        await asyncio.to_thread(self.frontend.close)


class Launch:
    """A model on its way into an engine process; the tokenizer is made here meanwhile.

    Args:
        config: the settings.
        spawned: a process that was started already, and imports its modules while headers are read here.

    Raises:
        HeadraceError: the model cannot be used, or the settings are impossible.
    """

    def __init__(self, config: EngineConfig, spawned: Spawned | None = None) -> None:
        self.phases = Phases()
        self.client = RemoteClient(watch=config.watch, spawned=spawned)
        try:
            self._opened = open_model(config, self.phases, with_text=False)
            self._text = TextLoading(config, self._opened.checkpoint)
            self.client.begin(self._opened.resolved.pinned())
        except BaseException:
            self.client.close()
            raise

    def result(self) -> OpenedModel:
        """Wait until the model is loaded and its text side made; closes the client where that fails.

        Raises:
            HeadraceError: it could not be loaded.
        """
        try:
            with self.phases.phase("tokenizer"):
                text = self._text.result()
            with self.phases.phase("chat template"):
                text.chat_template.prepare()
            with self.phases.phase("engine process"):
                self.client.await_loaded()
            return replace(self._opened, text=text)
        except BaseException:
            self.client.close()
            raise
