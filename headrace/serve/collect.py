"""From the engine's deltas to whole choices, and from several prompts to one stream of outputs."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from headrace.base.errors import HeadraceError
from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta, RequestOutput, Usage
from headrace.host.text.parts.events import Gathering
from headrace.serve.stream import close

Numbered = tuple[int, RequestOutput]


@dataclass(slots=True)
class WholeChoice:
    """A choice, gathered."""

    text: list[str] = field(default_factory=list[str])
    token_ids: list[int] = field(default_factory=list[int])
    logprobs: list[TokenLogprobs] = field(default_factory=list[TokenLogprobs])
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    parts: Gathering | None = None
    """Content, reasoning and tool calls; None: all is content."""

    def add(self, delta: ChoiceDelta) -> None:
        """Append a delta."""
        self.text.append(delta.text)
        self.token_ids.extend(delta.token_ids)
        self.logprobs.extend(delta.logprobs)
        if delta.parts is not None:
            self.parts = self.parts or Gathering()
            self.parts.add(delta.parts)
        if delta.finish_reason is not None:
            self.finish_reason = delta.finish_reason
            self.stop_reason = delta.stop_reason


@dataclass(slots=True)
class WholeRequest:
    """All choices of one prompt, gathered."""

    num_choices: int
    choices: list[WholeChoice] = field(init=False)
    prompt_ids: tuple[int, ...] = ()
    usage: Usage = field(default_factory=Usage)
    seed: int = 0
    prompt_logprobs: tuple[TokenLogprobs | None, ...] | None = None
    last: RequestOutput | None = None

    def __post_init__(self) -> None:
        """Empty choices."""
        self.choices = [WholeChoice() for _ in range(self.num_choices)]

    def keep_best(self, count: int) -> None:
        """Keep the choices with the highest sums of log-probabilities, best first; all stay as they are."""
        if count < len(self.choices):
            self.choices = sorted(self.choices, key=_cumulative, reverse=True)[:count]

    def add(self, output: RequestOutput) -> None:
        """Append an output.

        Raises:
            HeadraceError: the request failed.
        """
        if output.error is not None:
            raise output.error
        self.prompt_ids, self.usage, self.seed = output.prompt_ids, output.usage, output.seed
        self.last = output
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = output.prompt_logprobs
        for delta in output.choices:
            self.choices[delta.index].add(delta)


def _cumulative(choice: WholeChoice) -> float:
    return sum(token.logprob for token in choice.logprobs)


def total(usages: Sequence[Usage]) -> Usage:
    """Usage of several prompts together."""
    return Usage(
        prompt_tokens=sum(u.prompt_tokens for u in usages),
        completion_tokens=sum(u.completion_tokens for u in usages),
        cached_tokens=sum(u.cached_tokens for u in usages),
        accepted_drafts=sum(u.accepted_drafts for u in usages),
        rejected_drafts=sum(u.rejected_drafts for u in usages),
    )


async def merge(sources: Sequence[AsyncIterator[RequestOutput]]) -> AsyncIterator[Numbered]:
    """Outputs of several requests as they come, each with its source's number; closing closes all.

    An error of one source is raised here and ends all.
    """
    if len(sources) == 1:
        try:
            async for output in sources[0]:
                yield 0, output
        finally:
            await close(sources[0])
        return
    queue: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=4 * len(sources))
    tasks = [asyncio.create_task(_pump(n, s, queue)) for n, s in enumerate(sources)]
    left = len(sources)
    try:
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError, HeadraceError):
                await task


async def _pump(
    n: int, source: AsyncIterator[RequestOutput], queue: "asyncio.Queue[Numbered | Exception | None]"
) -> None:
    try:
        async for output in source:
            await queue.put((n, output))
        await queue.put(None)
    except Exception as err:  # noqa: BLE001 - handed to the reader of the queue, who raises it
        await queue.put(err)
    finally:
        await close(source)


async def first_output(outputs: AsyncIterator[Numbered]) -> Numbered | None:
    """Wait for the first output, so that early errors become a status code; None: there is none.

    Raises:
        HeadraceError: the request was refused, or failed before its first output.
    """
    try:
        first = await anext(outputs, None)
        if first is not None and first[1].error is not None:
            raise first[1].error
    except BaseException:
        await close(outputs)
        raise
    return first
