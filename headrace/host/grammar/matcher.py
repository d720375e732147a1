"""One answer on its way through a grammar."""

from collections.abc import Iterable
from typing import Any

MAX_ERROR_CHARS = 500


class Matcher:
    """The state of one answer. One thread at a time.

    Args:
        inner: the library's matcher, which nobody else uses.
        num_bytes: its memory, about.

    Attributes:
        fault: how the library failed, which is not the grammar's doing; None: it did not.
    """

    __slots__ = ("fault", "inner", "num_bytes")

    def __init__(self, inner: Any, num_bytes: int = 0) -> None:
        self.inner = inner
        self.num_bytes = num_bytes
        self.fault: str | None = None

    def advance(self, tokens: Iterable[int]) -> None:
        """The answer grew. A token that the grammar does not allow makes an `error`, for good."""
        if self.fault is not None:
            return
        try:
            for token in tokens:
                if not self.inner.consume_token(token):
                    return
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            self.fail(error)

    def fill(self, address: int, num_bytes: int) -> bool:
        """Write the mask of the next token to memory of the caller; False: there is none, see `error`."""
        if self.fault is not None:
            return False
        try:
            self.inner.unsafe_compute_mask_ptr(address, num_bytes)
            return not self.inner.is_error()
        except BaseException as error:  # noqa: BLE001 - the border of a request; the library's panics too
            self.fail(error)
            return False

    def fail(self, error: BaseException) -> None:
        """The library failed: the answer cannot go on."""
        self.fault = error_text(f"{type(error).__name__}: {error}")

    @property
    def error(self) -> str | None:
        """Why the answer cannot go on: a limit of the library, or a token against the grammar."""
        if self.fault is not None:
            return self.fault
        return error_text(self.inner.get_error()) if self.inner.is_error() else None

    @property
    def is_complete(self) -> bool:
        """Whether the grammar is satisfied by what came so far."""
        return self.inner.is_accepting()


def error_text(message: str) -> str:
    """The library's message without its dumps of state, on one line."""
    kept = message.split("<state>", 1)[0]
    return " ".join(kept.split())[:MAX_ERROR_CHARS] or "the grammar cannot go on"
