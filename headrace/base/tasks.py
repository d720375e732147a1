"""What a request can want besides an answer that is drawn token by token."""

from dataclasses import dataclass
from enum import Enum

from headrace.base.errors import RequestError

MAX_BEAM_WIDTH = 64


class Pooling(Enum):
    """How the hidden states of a prompt become one vector."""

    LAST = "last"
    """That of the last token."""
    MEAN = "mean"
    """The mean over all tokens."""


def pooling_of(name: str) -> Pooling:
    """A pooling by name.

    Raises:
        RequestError: no such pooling.
    """
    try:
        return Pooling(name)
    except ValueError:
        known = ", ".join(kind.value for kind in Pooling)
        raise RequestError(f"unknown pooling {name!r:.80}; known: {known}", param="pooling") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class BeamSearch:
    """The most likely answers, found by following the `width` best beginnings; see docs/beam.md.

    Raises:
        RequestError: a value is out of range; `param` names it.
    """

    width: int
    """Beginnings that are followed, and answers that are found; 1 to 64."""
    length_penalty: float = 1.0
    """An answer's score is its log-probability divided by its length to this power; in [-8, 8]."""
    early_stopping: bool = False
    """End as soon as `width` answers are complete; else when no better one can come."""

    @property
    def num_offers(self) -> int:
        """Next tokens that each beam offers."""
        return 2 * self.width

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not 1 <= self.width <= MAX_BEAM_WIDTH:
            raise RequestError(
                f"a beam search follows 1 to {MAX_BEAM_WIDTH} beams, got {self.width}", param="beam_width"
            )
        if not -8.0 <= self.length_penalty <= 8.0:
            raise RequestError(
                f"length_penalty must be in [-8, 8], got {self.length_penalty}", param="length_penalty"
            )
