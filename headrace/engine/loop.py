"""The engine's loop.

Takes commands, makes steps, sends events. Runs in a thread or in a process of its own.
"""

from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue

from headrace.base.errors import HeadraceError
from headrace.base.faults import fault_of
from headrace.base.ids import RequestId
from headrace.base.messages import (
    AddGroup,
    AskPicture,
    AskStats,
    AskTimelines,
    Beat,
    Command,
    Event,
    Failed,
    Finish,
    Hold,
    News,
    Refused,
    Timelines,
)
from headrace.base.request import Request
from headrace.engine.core import EngineCore
from headrace.engine.grammars.compiling import Compiled, CompileQueue

Send = Callable[[Event], None]


class EngineLoop:
    """Drives a core.

    Args:
        core: what is driven; nobody else may call it while the loop runs.
        send: takes events, called in the loop's thread.
    """

    def __init__(self, core: EngineCore, send: Send) -> None:
        self._core = core
        self._send = send
        self._inbox: SimpleQueue[Command | Compiled] = SimpleQueue()
        self._compiling = CompileQueue(core.structured, self._inbox.put)
        self._is_held = False
        self._is_open = True

    def put(self, command: Command) -> None:
        """Give a command; from any thread."""
        self._inbox.put(command)

    def beat(self) -> Beat:
        """The step counter, for health; from any thread."""
        return Beat(steps=self._core.steps, has_work=self._core.has_steps or not self._inbox.empty())

    def run(self) -> None:
        """Until `Shutdown`, or until the core fails: then the last event is `Failed`."""
        try:
            while self._is_open:
                self._take_commands()
                if self._is_open and not self._is_held and self._core.has_work:
                    self._step()
        except Exception as error:  # noqa: BLE001 - the border of the engine: reported, then the loop ends
            self._send(Failed(fault=fault_of(error)))
        finally:
            self._core.close()

    def _step(self) -> None:
        news = self._core.step()
        if news is None:
            self._wait(self._core.wait_s())
        else:
            self._tell(news)

    def _take_commands(self) -> None:
        if self._is_held or not self._core.has_work:
            self._wait(None)
        while self._is_open:
            try:
                self._obey(self._inbox.get_nowait())
            except Empty:
                return

    def _wait(self, seconds: float | None) -> None:
        """Until a command comes (and is obeyed), at most that long."""
        try:
            command = self._inbox.get(timeout=seconds)
        except Empty:
            return
        self._obey(command)

    def _obey(self, command: Command | Compiled) -> None:
        if isinstance(command, AddGroup):
            self._add(command)
        elif isinstance(command, Compiled):
            self._add_compiled(command)
        elif isinstance(command, Finish):
            self._finish(command)
        elif isinstance(command, AskStats):
            self._send(self._core.stats(command.ask_id))
        elif isinstance(command, AskPicture):
            self._send(replace(self._core.scheduler.picture(), ask_id=command.ask_id))
        elif isinstance(command, AskTimelines):
            found = tuple(filter(None, map(self._core.scheduler.timeline, command.request_ids)))
            self._send(Timelines(ask_id=command.ask_id, timelines=found))
        elif isinstance(command, Hold):
            self._is_held = command.is_held
        else:
            self._is_open = False

    def _add(self, command: AddGroup) -> None:
        try:
            if command.requests[0].sampling.structured is None:
                self._core.add(command.requests)
            else:
                self._core.hold(command.requests)
                self._compiling.start(command)
        except HeadraceError as error:
            self._refuse(command.requests, error)

    def _add_compiled(self, compiled: Compiled) -> None:
        requests, matchers = self._compiling.claim(compiled)
        if compiled.error is None:
            self._core.let_go(requests, matchers)
        elif requests:
            self._core.scheduler.withdraw(r.request_id for r in requests)
            self._refuse(requests, compiled.error)

    def _refuse(self, requests: tuple[Request, ...], error: HeadraceError) -> None:
        names: tuple[RequestId, ...] = tuple(r.request_id for r in requests)
        self._send(Refused(request_ids=names, fault=fault_of(error)))

    def _finish(self, command: Finish) -> None:
        self._tell(self._core.finish(command.request_ids, command.reason))

    def _tell(self, news: News) -> None:
        if not news.deltas:
            return
        if self._compiling.num_wanted:  # some of these may have ended before their grammar was compiled
            self._compiling.drop(delta.request_id for delta in news.deltas if delta.finish is not None)
        self._send(news)
