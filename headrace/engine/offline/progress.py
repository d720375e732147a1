"""A progress bar for lists of prompts."""

import sys
from importlib import import_module
from types import TracebackType
from typing import Self

from headrace.engine.outputs import RequestOutput


class Progress:
    """Counts finished prompts and tokens; draws nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def note(self, output: RequestOutput) -> None:
        """An output came."""


def make_progress(total: int, *, shown: bool) -> Progress:
    """A bar on standard error when that is a terminal, or one that draws nothing."""
    if not (shown and sys.stderr.isatty()):
        return Progress()
    # Imported here: drawing costs more start-up time than the whole loop.
    made: Progress = import_module("headrace.engine.offline.bar").Bar(total)
    return made
