"""What the `tokenizers` library raises over files and texts, as errors of ours."""

from collections.abc import Generator
from contextlib import contextmanager

from headrace.base.errors import CheckpointError


@contextmanager
def refused(what: str, *passed: type[Exception]) -> Generator[None]:
    """Turns what the library raises into a CheckpointError: `what` and the library's words.

    It raises bare Exception for what it checks; where it does not, it panics, which is no Exception.

    Args:
        what: what is refused and why, without the library's words.
        *passed: kinds that are left as they are.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, *passed):
        raise
    except BaseException as fault:
        raise CheckpointError(f"{what}: {fault}") from fault
