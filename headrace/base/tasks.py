"""What a request can want besides an answer that is drawn token by token, and how its tokens are drafted."""

from dataclasses import dataclass
from enum import Enum

from headrace.base.errors import RequestError

MAX_BEAM_WIDTH = 64
OFF = "off"
AUTO = "auto"
MAX_DEPTH = 16
"""Most drafts of a row; later ones are hardly ever accepted."""
SOURCES = {"draft": "MODEL", "early-exit": "N", "medusa": "PATH", "eagle": "PATH"}
"""Methods that compute, and what they are made from: `draft=MODEL`."""
MAX_SOURCE_CHARS = 4096
_FORM = "METHOD or METHOD,depth=K, such as ngram or suffix,depth=4"


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


@dataclass(frozen=True, slots=True)
class Speculation:
    """A method of drafting and a depth.

    Text is never changed by it: a draft counts only when it is the token that is drawn anyway.
    """

    method: str = OFF
    """`off`, `auto` (all methods that cost next to nothing), or the name of a proposer."""
    depth: int | None = None
    """Drafts of every row; None: chosen for each row and step by what is measured."""
    source: str = ""
    """What a method of `SOURCES` is made from; empty where a request asks for what the engine has."""

    @property
    def is_on(self) -> bool:
        """Whether anything is drafted."""
        return self.method != OFF

    @property
    def is_late(self) -> bool:
        """Whether drafts are computed at the start of the step that checks them, and only then."""
        return self.method in SOURCES

    @property
    def reads(self) -> bool:
        """Whether a model of its own drafts, which first computes a sequence's tokens."""
        return self.method == "draft"

    @classmethod
    def parse(cls, text: str) -> "Speculation":
        """Read the form `METHOD[=SOURCE][,depth=K]`; which methods there are is not known here.

        Raises:
            RequestError: another form, or a depth out of range.
        """
        head, cut, value = text.rpartition(",depth=")
        if not cut:
            head = text
        method, has_source, source = head.partition("=")
        if method in SOURCES and has_source:
            _check_source(method, source)
        elif not head or not head.isascii() or not head.isprintable() or "=" in head or "," in head:
            raise RequestError(f"speculate must be {_FORM}, got {text!r:.80}", param="speculate")
        if not cut:
            return cls(method, None, source)
        if not (value.isascii() and value.isdigit() and len(value) <= 4):
            raise RequestError(f"speculate must be {_FORM}, got {text!r:.80}", param="speculate")
        if not 1 <= int(value) <= MAX_DEPTH:
            raise RequestError(
                f"speculate: depth must be in [1, {MAX_DEPTH}], got {value}; off drafts nothing",
                param="speculate",
            )
        if method == OFF:
            raise RequestError("speculate: off has no depth; leave it out", param="speculate")
        return cls(method, int(value), source)

    def within(self, offered: "Speculation") -> "Speculation":
        """This wish of a request, where `offered` is what the engine was started with.

        Raises:
            RequestError: the engine does not have the method, or drafts less deep.
        """
        if not self.is_on:
            return self
        if not offered.is_on:
            raise RequestError(
                f"speculate: {self.method} was asked for, but speculation is off here; start with "
                f"--speculate auto, or leave it out",
                param="speculate",
            )
        if self.method != offered.method and (offered.method != AUTO or self.is_late):
            start = f"{self.method}={SOURCES[self.method]}" if self.is_late else "auto"
            raise RequestError(
                f"speculate: {self.method} was asked for, but only {offered.method} runs here; start with "
                f"--speculate {start}, or ask for {offered.method} or off",
                param="speculate",
            )
        if self.source not in ("", offered.source):
            raise RequestError(
                f"speculate: {self.method}={self.source:.80} was asked for, but {self.method} was started "
                f"with something else here; ask for {self.method} or off",
                param="speculate",
            )
        if offered.depth is not None and (self.depth or 0) > offered.depth:
            raise RequestError(
                f"speculate: depth must be at most {offered.depth} here, got {self.depth}", param="speculate"
            )
        return Speculation(self.method, self.depth or offered.depth, offered.source)


def _check_source(method: str, source: str) -> None:
    if not source or len(source) > MAX_SOURCE_CHARS or not source.isprintable():
        raise RequestError(
            f"speculate: {method} needs {method}={SOURCES[method]}, got {source!r:.80}", param="speculate"
        )


NO_SPECULATION = Speculation()
