"""Many requests of one call: submitted under the queue's limits, collected, given back in order."""

from collections.abc import Sequence
from queue import SimpleQueue

from headrace.base.errors import HeadraceError
from headrace.engine.frontend import Frontend
from headrace.engine.intake import Ask
from headrace.engine.offline.gather import Gathered
from headrace.engine.offline.progress import Progress
from headrace.engine.outputs import RequestOutput

Outputs = SimpleQueue[RequestOutput | HeadraceError]


class Batch:
    """One call with a list of requests.

    A long list is not thrown at the queue at once: half of what may wait is in flight, so that a list never
    meets its own overload.
    """

    def __init__(self, frontend: Frontend, progress: Progress) -> None:
        limits = frontend.opened.resolved.limits
        self._frontend = frontend
        self._progress = progress
        self._most_sequences = max(1, int(limits["max_queued_requests"]) // 2)
        self._most_tokens = max(1, int(limits["max_queued_tokens"]) // 2)
        self._queue: Outputs = SimpleQueue()
        self._order: list[Gathered] = []
        self._open: dict[str, Gathered] = {}

    def run(self, asks: Sequence[Ask]) -> list[Gathered]:
        """Finished requests in the order of `asks`.

        Raises:
            HeadraceError: a request was refused or failed; the others are aborted.
        """
        try:
            with self._progress:
                for ask in asks:
                    while self._is_full():
                        self._collect()
                    self._submit(ask)
                while self._open:
                    self._collect()
        finally:
            for gathered in self._open.values():
                self._frontend.cancel(gathered.prepared)
        return self._order

    def _is_full(self) -> bool:
        sequences = sum(len(g.prepared.requests) for g in self._open.values())
        tokens = sum(len(g.prepared.prompt_ids) for g in self._open.values())
        return sequences >= self._most_sequences or (bool(self._open) and tokens >= self._most_tokens)

    def _submit(self, ask: Ask) -> None:
        prepared = self._frontend.submit(ask, self._queue.put)
        gathered = Gathered(prepared, ask.prompt if isinstance(ask.prompt, str) else None)
        self._order.append(gathered)
        self._open[prepared.request_id] = gathered

    def _collect(self) -> None:
        output = raised(self._queue.get())
        if output.error is not None:
            raise output.error
        self._open[output.request_id].add(output)
        self._progress.note(output)
        if output.finished:
            del self._open[output.request_id]


def raised(item: RequestOutput | HeadraceError) -> RequestOutput:
    """The output; an error is raised."""
    if isinstance(item, HeadraceError):
        raise item
    return item
