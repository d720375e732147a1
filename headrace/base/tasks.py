"""What a request can want besides an answer that is drawn token by token, and how its tokens are drafted."""

from dataclasses import dataclass
from enum import Enum

from headrace.base.errors import RequestError

MAX_BEAM_WIDTH = 64
OFF = "off"
AUTO = "auto"
MAX_DEPTH = 16
"""Most drafts of a row; later ones are hardly ever accepted."""
EARLY_EXIT = "early-exit"
LAYERS = "N"
"""The source of a method that drafts with the model's own first layers."""
SOURCES = {"draft": "MODEL", EARLY_EXIT: LAYERS, "medusa": "PATH", "eagle": "PATH"}
"""Methods that compute, and what they are made from: `draft=MODEL`."""
MAX_SOURCE_CHARS = 4096
_FORM = "METHOD or METHOD,depth=K, such as ngram or suffix,depth=4, or a lookup first, as in auto,draft=MODEL"


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
    """A method of drafting, or a lookup beside one that computes, and a depth.

    Text is never changed by it: a draft counts only when it is the token that is drawn anyway.
    """

    method: str = OFF
    """`off`, `auto` (all lookups, which cost next to nothing), or the name of a proposer."""
    depth: int | None = None
    """Drafts of every row; None: chosen for each row and step by what is measured."""
    source: str = ""
    """What a method of `SOURCES` is made from; empty where a request asks for what the engine has."""
    beside: str = ""
    """The lookup, or `auto`, that drafts too where `method` is one of `SOURCES`; empty: none does."""

    @property
    def lookup(self) -> str:
        """The lookup that drafts, or `auto`; empty: none does."""
        return self.beside if self.is_late else self.method if self.is_on else ""

    @property
    def names(self) -> tuple[str, ...]:
        """What drafts: the lookup first."""
        return (self.beside, self.method) if self.beside else (self.method,)

    @property
    def is_on(self) -> bool:
        """Whether anything is drafted."""
        return self.method != OFF

    @property
    def is_late(self) -> bool:
        """Whether drafts are computed at the start of the step that checks them; a lookup may be beside."""
        return self.method in SOURCES

    @property
    def reads(self) -> bool:
        """Whether a model of its own drafts, which first computes a sequence's tokens."""
        return self.method == "draft"

    @classmethod
    def parse(cls, text: str) -> "Speculation":
        """Read the form `[LOOKUP,]METHOD[=SOURCE][,depth=K]`; which methods there are is not known here.

        Raises:
            RequestError: another form, or a depth out of range.
        """
        head, cut, value = text.rpartition(",depth=")
        if not cut:
            head = text
        name, has_source, source = head.partition("=")
        beside, has_beside, method = name.rpartition(",")
        if method not in SOURCES:
            beside, has_beside, method = "", "", name
        names = (beside, method) if has_beside else (method,)
        is_named = all(n and n.isascii() and n.isprintable() and not {"=", ","} & set(n) for n in names)
        if not is_named or beside in (OFF, *SOURCES) or (has_source and method not in SOURCES):
            raise RequestError(f"speculate must be {_FORM}, got {text!r:.80}", param="speculate")
        if has_source:
            _check_source(method, source)
        return cls(method, _depth_of(text, method, value) if cut else None, source, beside)

    def within(self, offered: "Speculation") -> "Speculation":
        """This wish of a request, where `offered` is what the engine was started with.

        Raises:
            RequestError: the engine does not have the method, or drafts less deep.
        """
        if not self.is_on:
            return self
        if not offered.is_on:
            raise RequestError(
                f"speculate: {','.join(self.names)} was asked for, but speculation is off here; start with "
                f"--speculate auto, or leave it out",
                param="speculate",
            )
        if not self._is_part_of(offered):
            start = f"{self.method}={SOURCES[self.method]}" if self.is_late else "auto"
            start = f"{self.beside},{start}" if self.beside else start
            runs = "only {} runs" if len(offered.names) == 1 else "only {} run"
            raise RequestError(
                f"speculate: {','.join(self.names)} was asked for, but "
                f"{runs.format(' and '.join(offered.names))} here; start with "
                f"--speculate {start}, or ask for {' or '.join(offered.names)} or off",
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
        source = offered.source if self.is_late else ""
        return Speculation(self.method, self.depth or offered.depth, source, self.beside)

    def _is_part_of(self, offered: "Speculation") -> bool:
        if self.is_late and self.method != offered.method:
            return False
        return self.lookup in ("", offered.lookup) or offered.lookup == AUTO


def _depth_of(text: str, method: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) <= 4):
        raise RequestError(f"speculate must be {_FORM}, got {text!r:.80}", param="speculate")
    if not 1 <= int(value) <= MAX_DEPTH:
        raise RequestError(
            f"speculate: depth must be in [1, {MAX_DEPTH}], got {value}; off drafts nothing",
            param="speculate",
        )
    if method == OFF:
        raise RequestError("speculate: off has no depth; leave it out", param="speculate")
    return int(value)


def _check_source(method: str, source: str) -> None:
    if not source or len(source) > MAX_SOURCE_CHARS or not source.isprintable():
        raise RequestError(
            f"speculate: {method} needs {method}={SOURCES[method]}, got {source!r:.80}", param="speculate"
        )


NO_SPECULATION = Speculation()
