"""The engine as its users see it: commands in, events out. `LocalClient` runs it in a thread."""

import atexit
from collections.abc import Callable
from threading import Thread, current_thread
from typing import Protocol

from headrace.base.errors import EngineDeadError
from headrace.base.faults import fault_of
from headrace.base.messages import Beat, Command, Event, Failed, Shutdown
from headrace.engine.core import EngineCore
from headrace.engine.loop import EngineLoop

OnEvent = Callable[[Event], None]


class CoreClient(Protocol):
    """A running engine."""

    phases: dict[str, float]
    """Seconds of each phase of its start."""

    def start(self, on_event: OnEvent) -> None:
        """Begin; events come in a thread of the client."""
        ...

    def send(self, command: Command) -> None:
        """Give a command; from any thread.

        Raises:
            EngineDeadError: the engine is not running.
        """
        ...

    def beat(self) -> Beat | None:
        """The latest step counter; None: the engine is not running."""
        ...

    def close(self) -> None:
        """End the engine and wait for it; idempotent."""
        ...


class LocalClient:
    """The engine in a thread of this process.

    Args:
        core: what the thread drives.
        phases: seconds of each phase of the start.
    """

    def __init__(self, core: EngineCore, phases: dict[str, float]) -> None:
        self.phases = phases
        self._core = core
        self._on_event: OnEvent = _ignore
        self._loop = EngineLoop(core, self._tell)
        self._has_failed = False
        self._thread = Thread(target=self._run, name="headrace-engine", daemon=True)

    def start(self, on_event: OnEvent) -> None:
        """Begin the loop."""
        self._on_event = on_event
        self._thread.start()
        # A thread inside the kernels must not meet the end of the interpreter: that aborts the process.
        atexit.register(self.close)

    def send(self, command: Command) -> None:
        """Give a command to the loop."""
        if self._has_failed or not self._thread.is_alive():
            raise EngineDeadError("the engine has stopped")
        self._loop.put(command)

    def beat(self) -> Beat | None:
        """The step counter, read from outside the loop."""
        return self._loop.beat() if self._thread.is_alive() and not self._has_failed else None

    def close(self) -> None:
        """End the loop after its current step."""
        atexit.unregister(self.close)
        if self._thread.is_alive():
            self._loop.put(Shutdown())
            if self._thread is not current_thread():  # the garbage collector closes from any thread
                self._thread.join()

    def _run(self) -> None:
        try:
            self._loop.run()
        except Exception as error:  # noqa: BLE001 - a thread has no caller: the users are told
            self._tell(Failed(fault=fault_of(error)))

    def _tell(self, event: Event) -> None:
        if isinstance(event, Failed):
            # First: the thread lives on while it frees the core, and nobody would answer what comes now.
            self._has_failed = True
        self._on_event(event)


def _ignore(event: Event) -> None:
    del event
