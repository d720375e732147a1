"""The engine in a process of its own: started here, watched, started again when it dies."""

import logging
import signal
import subprocess
from contextlib import suppress
from threading import Event as Flag
from threading import Lock, Thread

from headrace.base.clock import now_s
from headrace.base.config import EngineConfig, WatchConfig
from headrace.base.errors import EngineDeadError, HeadraceError
from headrace.base.faults import error_of
from headrace.base.messages import (
    AddGroup,
    AskPicture,
    AskStats,
    AskTimelines,
    Beat,
    Command,
    Event,
    Failed,
    Fault,
    Ready,
    Shutdown,
)
from headrace.engine.client import OnEvent
from headrace.engine.process.ipc import KEEP_S, Channel, Start
from headrace.engine.process.spawn import Spawned, spawn
from headrace.engine.watch import Watch

_log = logging.getLogger(__name__)
END_S = 5.0
SHORT_LIFE_S = 5.0
FREE_RESTARTS = 10
"""So many deaths after a short life in a row are followed by a new process at once."""
MAX_PAUSE_S = 30.0
BUS_ERROR = " (a model file was cut short while it was in use, or its disk failed)"
MAX_UNSENT_BYTES = 64 << 20
"""So much may wait for a process that does not read; then new requests are refused."""


class RemoteClient:
    """The engine in a child process.

    Args:
        config: concrete settings (`Resolved.pinned`); None: the process starts, and waits for `load`.
        watch: when a process counts as stuck; it is then killed and started again.
        spawned: a process that was started already; None: one is started here.
    """

    def __init__(
        self,
        config: EngineConfig | None = None,
        watch: WatchConfig | None = None,
        *,
        spawned: Spawned | None = None,
    ) -> None:
        self.phases: dict[str, float] = {}
        self._config: EngineConfig
        self._lock = Lock()
        self._channel: Channel | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._beat: Beat | None = None
        self._beat_s = now_s()
        self._is_closing = False
        self.num_restarts = 0
        self._short_lives = 0
        self._ready_s = 0.0
        self._limits = watch or WatchConfig()
        self._watch = Watch(self.beat, self._limits.restart_s)
        self._ended = Flag()
        self._has_ended = Flag()
        """The process has said its last word."""
        self._on_event: OnEvent
        self._take(spawned or spawn())
        if config is not None:
            self.load(config)

    def load(self, config: EngineConfig) -> None:
        """`begin`, then `await_loaded`."""
        self.begin(config)
        self.await_loaded()

    def begin(self, config: EngineConfig) -> None:
        """Name the model, which the process then loads; once."""
        self._config = config
        self._name_model()

    def await_loaded(self) -> None:
        """Wait until the model is loaded.

        Raises:
            HeadraceError: it could not be loaded.
        """
        self._await_ready()

    @property
    def process_id(self) -> int | None:
        """The child's process id."""
        return None if self._process is None else self._process.pid

    def start(self, on_event: OnEvent) -> None:
        """Begin to pass events on."""
        self._on_event = on_event
        Thread(target=self._listen, name="headrace-events", daemon=True).start()
        Thread(target=self._guard, name="headrace-watchdog", daemon=True).start()

    def send(self, command: Command) -> None:
        """Give a command; never waits for the process.

        The ends of requests are kept for a process that is silent, in case it goes on; nothing new is.
        """
        channel = self._channel
        if channel is None or self._beat is None:
            raise EngineDeadError("the engine process is not running; it is being started again")
        if isinstance(command, AddGroup | AskStats | AskPicture | AskTimelines):
            if self.beat() is None:
                raise EngineDeadError("the engine process gives no sign of life; try again later")
            if channel.unsent_bytes > MAX_UNSENT_BYTES:
                raise EngineDeadError("the engine process takes no more requests now; try again later")
        channel.post(command)

    def beat(self) -> Beat | None:
        """The latest beat of a living process; None: it is dead, or silent for too long."""
        is_silent = now_s() - self._beat_s > self._limits.silence_s
        return None if is_silent else self._beat

    def close(self) -> None:
        """Ask the process to end, then make it."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
        self._ended.set()
        channel, process = self._channel, self._process
        if channel is None or process is None:
            return
        try:
            channel.post(Shutdown())
            self._await_end(process)
        except (EngineDeadError, subprocess.TimeoutExpired):
            process.kill()
            process.wait()
        channel.close()

    def _await_end(self, process: subprocess.Popen[bytes]) -> None:
        """Wait for the process: longer for one whose engine has ended and which writes files still.

        Raises:
            subprocess.TimeoutExpired: it did not end in time.
        """
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            if not self._has_ended.is_set():
                raise
            process.wait(KEEP_S)

    def _take(self, spawned: Spawned) -> None:
        self._process = spawned.process
        self._channel = Channel(spawned.sock)

    def _name_model(self) -> None:
        """Tell the process what to load; of one that has ended already, `_await_ready` says so."""
        if self._channel is not None:
            with suppress(EngineDeadError):
                self._channel.post(Start(config=self._config))

    def _await_ready(self) -> Ready:
        """Wait until the model is loaded; a process that takes too long is ended.

        Raises:
            HeadraceError: it could not be loaded; the error of the process.
        """
        load_s = self._limits.load_s
        try:
            first = None if self._channel is None else self._channel.receive(load_s)
        except TimeoutError:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
            raise EngineDeadError(
                f"the engine process had not loaded the model after {load_s:g} s and was ended; "
                f"allow more with --load-s (watch.load_s)"
            ) from None
        if isinstance(first, Ready):
            self.phases = first.phases
            self._ready_s = now_s()
            self._note(Beat(steps=0, has_work=False))
            return first
        code = None if self._process is None else self._process.wait()
        if isinstance(first, Failed):
            raise error_of(first.fault)
        raise EngineDeadError(f"the engine process ended while it loaded the model, {_how(code)}")

    def _note(self, beat: Beat | None) -> None:
        self._beat, self._beat_s = beat, now_s()

    def _listen(self) -> None:
        while True:
            event = self._receive()
            if isinstance(event, Beat):
                self._note(event)
            elif event is not None:
                self._on_event(event)
                if isinstance(event, Failed):
                    event = None
            if event is None and not self._revive():
                return

    def _receive(self) -> Event | None:
        try:
            return None if self._channel is None else self._channel.receive()
        except EngineDeadError:
            return None

    def _revive(self) -> bool:
        """After a death: tell the users, start again; False: closing.

        It never gives up, as whoever watches `/health` may end the server; but a process that keeps dying
        young is started again ever later.
        """
        self._note(None)
        with self._lock:
            if self._is_closing:
                self._has_ended.set()
                return False
        code = self._reap()
        self._on_event(_told(f"the engine process ended {_how(code)} and is being started again"))
        is_young = now_s() - self._ready_s < SHORT_LIFE_S
        self._short_lives = self._short_lives + 1 if is_young else 0
        while not self._ended.wait(self._pause_s()):
            try:
                if not self._relaunch():
                    return False
                self._on_event(self._await_ready())
            except (HeadraceError, OSError) as error:  # no process or socket to be had may pass, too
                self._on_event(_told(f"the engine process could not be started again: {error}"))
                self._short_lives += 1
                continue
            self.num_restarts += 1
            _log.warning("the engine process is up again, as process %s", self.process_id)
            return True
        return False

    def _pause_s(self) -> float:
        extra = self._short_lives - FREE_RESTARTS
        return min(2.0 ** min(extra, 10), MAX_PAUSE_S) if extra > 0 else 0.0

    def _relaunch(self) -> bool:
        """Start again, unless closing: whoever closes then sees either no process or the new one."""
        with self._lock:
            if self._is_closing:
                return False
            self._take(spawn())
            self._name_model()
            return True

    def _reap(self) -> int | None:
        if self._channel is not None:
            self._channel.close()
        if self._process is None:
            return None
        try:
            return self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def _guard(self) -> None:
        """Kill a process that is stuck or silent; `_listen` then sees its end."""
        pause_s = min(1.0, self._limits.silence_s / 2)
        looked_s = now_s()
        while not self._ended.wait(pause_s):
            looked_s, before_s = now_s(), looked_s
            process = self._process
            if process is None or self._beat is None:
                continue
            if looked_s - before_s > pause_s + self._limits.silence_s:
                continue  # it was this process that stood still: what the other one sent has yet to be read
            is_silent = now_s() - self._beat_s > 2 * self._limits.silence_s
            if is_silent or self._watch.stalled_s() > self._limits.restart_s:
                process.kill()


def _how(code: int | None) -> str:
    """How a process ended, from its exit status."""
    if code is None or code >= 0:
        return f"with status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    return f"by signal {name}{BUS_ERROR if name == 'SIGBUS' else ''}"


def _told(message: str) -> Failed:
    """A death, for the users and for the log."""
    _log.warning("%s", message)
    return Failed(fault=Fault(kind="EngineDeadError", message=message))
