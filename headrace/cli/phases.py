"""A bar for work in several parts."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress, TaskID


class Phased:
    """Draws a bar per part on standard error."""

    def __init__(self) -> None:
        self._bar = Progress(console=Console(stderr=True), transient=True)
        self._task: TaskID | None = None
        self._name = ""

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def phase(self, name: str) -> None:
        """Another part begins."""
        if self._task is not None:
            self._bar.update(self._task, completed=1.0)
        self._name, self._task = name, self._bar.add_task(name, total=1.0)

    def move(self, share: float, note: str) -> None:
        """The part is done to this share."""
        if self._task is not None:
            self._bar.update(self._task, completed=share, description=f"{self._name}, {note}")
