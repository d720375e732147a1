"""One answer on its way through a grammar."""

from collections.abc import Iterable
from typing import Any

MAX_ERROR_CHARS = 500


class Matcher:
    """The state of one answer. One thread at a time.

    Args:
        inner: the library's matcher, which nobody else uses.
    """

    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def advance(self, tokens: Iterable[int]) -> None:
        """The answer grew. A token that the grammar does not allow makes an `error`, for good."""
        for token in tokens:
            if not self.inner.consume_token(token):
                return

    @property
    def error(self) -> str | None:
        """Why the answer cannot go on: a limit of the library, or a token against the grammar."""
        return error_text(self.inner.get_error()) if self.inner.is_error() else None

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is satisfied by what came so far."""
        return self.inner.is_accepting()


def error_text(message: str) -> str:
    """The library's message without its dumps of state, on one line."""
    kept = message.split("<state>", 1)[0]
    return " ".join(kept.split())[:MAX_ERROR_CHARS] or "the grammar cannot go on"
