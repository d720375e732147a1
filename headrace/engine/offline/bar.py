"""The progress bar that is drawn."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress as RichProgress

from headrace.base.clock import now_s
from headrace.engine.offline.progress import Progress
from headrace.engine.outputs import RequestOutput


class Bar(Progress):
    """Draws a bar on standard error."""

    def __init__(self, total: int) -> None:
        self._bar = RichProgress(console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task("prompts", total=total)
        self._tokens = 0
        self._began_s = now_s()

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

    def note(self, output: RequestOutput) -> None:
        """Move the bar."""
        self._tokens += sum(len(c.token_ids) for c in output.choices)
        rate = self._tokens / max(now_s() - self._began_s, 1e-6)
        self._bar.update(
            self._task, advance=float(output.finished), description=f"prompts, {rate:.0f} tokens/s"
        )
