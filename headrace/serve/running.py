"""Requests that are being answered, so that whoever sent one may end it by its id."""

import re
from collections.abc import AsyncIterator, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from headrace.base.terms import caller_terms
from headrace.engine.async_llm import AsyncLLM
from headrace.engine.outputs import RequestOutput
from headrace.serve.stream import close

_PREFIX = re.compile(r"^[a-z]+[-_]")
"""What endpoints put before a request's name to make the id of its answer."""


@dataclass(slots=True)
class Entry:
    """A request of the engine, which is all or a part of one answer."""

    answer_id: str
    engine_id: str
    tenant: str
    is_due: bool = False
    """It is to end, but the engine did not know it yet."""

    def is_called(self, name: str) -> bool:
        """Whether that is the id of the answer, or the name that the client gave the request."""
        return name in {self.answer_id, _PREFIX.sub("", self.answer_id, count=1)}


class Running:
    """The requests of one server. Lives on the event loop.

    Args:
        llm: where they run.
    """

    def __init__(self, llm: AsyncLLM) -> None:
        self._llm = llm
        self._entries: dict[tuple[str, str], Entry] = {}
        """By tenant and engine id."""

    @contextmanager
    def entered(self, answer_id: str, engine_id: str) -> Generator[Entry]:
        """Within, the engine's request `engine_id` can be ended by the id of its answer."""
        entry = Entry(answer_id, engine_id, caller_terms().tenant.name)
        # The engine refuses an id that is in use; a second entry would let its owner end the first request.
        key = (entry.tenant, engine_id)
        is_new = self._entries.setdefault(key, entry) is entry
        try:
            yield entry
        finally:
            if is_new:
                del self._entries[key]

    async def track(
        self, answer_id: str, engine_id: str, outputs: AsyncIterator[RequestOutput]
    ) -> AsyncIterator[RequestOutput]:
        """The outputs of a request, `entered` from the first that is awaited to the end."""
        try:
            with self.entered(answer_id, engine_id) as entry:
                async for output in outputs:
                    yield output
                    if entry.is_due:
                        entry.is_due = not await self._llm.abort(engine_id)
        finally:
            await close(outputs)

    async def cancel(self, name: str) -> bool:
        """End the caller's request; False: the caller has none of that name.

        One that is still being tokenized ends with its first token.
        """
        tenant = caller_terms().tenant.name
        found = [e for e in self._entries.values() if e.tenant == tenant and e.is_called(name)]
        for entry in found:
            entry.is_due = not await self._llm.abort(entry.engine_id)
        return bool(found)
