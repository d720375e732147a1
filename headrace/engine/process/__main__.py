"""The engine process: `python -m headrace.engine.process FD [MODEL FORMAT]`. Ends when its parent does."""

import gc
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import dataclass
from threading import Event as Flag
from threading import Thread, current_thread
from threading import enumerate as enumerate_threads

from headrace.base.clock import now_s
from headrace.base.errors import EngineDeadError
from headrace.base.faults import fault_of
from headrace.base.messages import Failed, Ready, Shutdown
from headrace.compute.weights.catalogue import present
from headrace.compute.weights.checkpoint import Checkpoint, open_checkpoint
from headrace.engine.build import Phases, build_core, open_model
from headrace.engine.loop import EngineLoop
from headrace.engine.process.ipc import KEEP_S, Channel, Start

BEAT_S = 0.25
IDLE_BEAT_S = 1.0
"""Between signs of life of an engine that has nothing to do, at most; new work is seen that much later."""


def main(arguments: list[str]) -> int:
    """Load the model that the first message names, then serve commands until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    phases = Phases()
    model, load_format = arguments[1:3] if len(arguments) > 2 else ("", "")
    with phases.phase("headers"):
        early = _open_early(model, load_format)
    start = channel.receive()
    if not isinstance(start, Start):
        return 2
    ears = _Ears(channel)
    Thread(target=ears.listen, name="listen", daemon=True).start()
    if load_format != start.config.model.load_format:
        early = None
    try:
        core = build_core(open_model(start.config, phases, with_text=False, early=early), phases)
    except Exception as error:  # noqa: BLE001 - the border of the process: reported to the parent
        channel.send(Failed(fault=fault_of(error)))
        return 1
    gc.collect()
    gc.freeze()  # what is loaded stays: collections amid a step need not walk through it
    loop = EngineLoop(core, channel.send)
    ears.loop = loop
    channel.send(Ready(process_id=os.getpid(), phases=phases.seconds))
    ended = Flag()
    idle_s = min(IDLE_BEAT_S, start.config.watch.silence_s / 4)
    Thread(target=_beat, args=(channel, loop, ended, idle_s), name="beat", daemon=True).start()
    loop.run()
    ended.set()
    if ears.is_told_to_end:  # after a failure the parent wants a new process at once
        channel.close()  # tells the parent that the engine has ended and only files are written
        _await_threads(now_s() + KEEP_S)
    return 0


def _open_early(model: str, load_format: str) -> Checkpoint | None:
    """The model, opened while the parent finds out how it is to be loaded; what is wrong shows later."""
    path = present(model) if model else None
    if path is not None:
        with suppress(Exception):  # raised again, and reported, when it is to be loaded
            return open_checkpoint(path, load_format)
    return None


def _await_threads(until_s: float) -> None:
    """Wait for threads that the end of a program waits for: who writes packed weights."""
    for thread in enumerate_threads():
        if thread is not current_thread() and not thread.daemon:
            thread.join(max(0.0, until_s - now_s()))


@dataclass(slots=True)
class _Ears:
    """Listens to the parent from the first moment, also while the model loads."""

    channel: Channel
    loop: EngineLoop | None = None
    is_told_to_end: bool = False

    def listen(self) -> None:
        """Pass commands on; without a parent there is nobody to work for."""
        while True:
            try:
                command = self.channel.receive()
            except EngineDeadError:
                os._exit(3)
            if command is None or self.loop is None:  # gone, or wants the end before it was told `Ready`
                os._exit(0)
            self.is_told_to_end = isinstance(command, Shutdown)
            self.loop.put(command)
            if self.is_told_to_end:
                return


def _beat(channel: Channel, loop: EngineLoop, ended: Flag, idle_s: float) -> None:
    pause_s = BEAT_S
    while not ended.wait(pause_s):
        beat = loop.beat()
        pause_s = BEAT_S if beat.has_work else idle_s
        try:
            channel.send(beat)
        except EngineDeadError:
            if not ended.is_set():
                os._exit(0)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads that wait for the parent need not be waited for
