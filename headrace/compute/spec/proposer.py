"""What a proposer of drafts is, and when it is asked.

Two kinds. Those of `proposers/` look at tokens only and cost next to nothing: they are asked at the end of a
step, and how many of their drafts the next row checks is decided afterwards, knowing them. Those of
`drafters/` compute (`Needs.BLOCKS`): they promise as many drafts as are wanted, and are asked at the start of
the step that checks them, for exactly as many as are checked. So the time of drafting is part of the time of
that step, its price covers drafting without knowing of it (`host/sched/drafts`), and nothing is computed that
is not checked.

    step N      rows draw; late drafts are promised            RowResult.num_drafts
    plan N+1    rows get as many as pay, with their blocks     Row.num_drafts, new_blocks
    step N+1    moves, tables; `propose`; the rows check       RowResult.num_unmade: promised and not made

What a drafter works with is `kit.DraftKit`: backend, target, slots, and block tables. KV of its own lies in a
plane beside the target's (`DraftKit.add_plane`): as many blocks, the same ids and tables, moved along with
them, so that copies on write, cached prefixes, forks and preemption need nothing else. A plane may hold less
than the target's: what a drafter finds unfilled it computes.
"""

from collections.abc import Callable, Sequence
from enum import IntFlag
from typing import NamedTuple, Protocol, runtime_checkable

from headrace.base.registry import Registry
from headrace.base.tasks import AUTO, OFF, SOURCES
from headrace.compute.models.decoder import Taps
from headrace.compute.spec.kit import DraftKit
from headrace.compute.spec.states import Seen


class Needs(IntFlag):
    """What a proposer needs besides the tokens."""

    NOTHING = 0
    HIDDEN = 1
    """The target's hidden states."""
    BLOCKS = 2
    """The blocks of the row that will check the drafts: it is asked at the start of that step."""


class Ask(NamedTuple):
    """Drafts wanted for the sequence in a slot."""

    slot: int
    ids: Sequence[int]
    """All its tokens. Between two asks of a stay in a slot it only grows at its end.

    Empty for those that need blocks: `kit.state` has the tokens, `num_tokens` of them.
    """
    most: int
    """Most drafts, at least 1."""


class Owner(NamedTuple):
    """Whose text may be drafted from beyond a request: that of requests with the same API key and salt."""

    tenant: str
    salt: str


class Proposer(Protocol):
    """Guesses the tokens that follow sequences. Wrong guesses cost time and never change a token.

    One thread calls it. It keeps what it knows of a sequence by slot, from the first ask on.
    """

    needs: Needs

    def begin(self, slot: int) -> None:
        """Another sequence is in the slot, or the same one comes back: forget what was known."""
        ...

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask, most likely continuation, at most as many as wanted; none is an answer too."""
        ...

    def end(self, slot: int) -> None:
        """The sequence leaves its slot: free what is held for it."""
        ...


@runtime_checkable
class Lookup(Proposer, Protocol):
    """A proposer that looks at tokens only."""

    auto_place: int
    """Under `auto` the one with the lowest is asked first, the next where it has nothing to say."""


@runtime_checkable
class Watcher(Proposer, Protocol):
    """A proposer that sees the target's hidden states (`Needs.HIDDEN`)."""

    taps: Taps
    """Those that the target's program keeps."""
    most: int
    """Drafts that it can make of a row."""

    def observe(self, seen: Seen) -> None:
        """After every pass of the target, its tokens drawn; `seen` has rows of all slots, also of others."""
        ...


@runtime_checkable
class Remembers(Proposer, Protocol):
    """A proposer that may draft from finished answers of the same owner, and from nobody else's."""

    def remember(self, most_tokens: int) -> None:
        """From now on hold so many tokens of answers, of all owners together."""
        ...

    def belong(self, slot: int, owner: Owner, num_prompt: int) -> None:
        """After `begin`: whose sequence it is, and how many of its tokens are its prompt."""
        ...

    def keep(self, slot: int, answer: Sequence[int]) -> None:
        """Before `end`: the sequence is finished, and this is its answer."""
        ...


@runtime_checkable
class Reads(Protocol):
    """What computes with weights, its own or the target's."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of its own weights, which the target lacks."""
        ...

    @property
    def bytes_read(self) -> int:
        """Bytes that its passes read since start: weights, also the target's, and keys and values."""
        ...


PROPOSERS: Registry[Callable[[], Lookup]] = Registry(
    "method of speculation", "headrace.compute.spec.proposers", "PROPOSER"
)
"""One lookup per file; the file's name is what `--speculate` takes."""

DRAFTERS: Registry[Callable[[DraftKit], Proposer]] = Registry(
    "method of speculation", "headrace.compute.spec.drafters", "DRAFTER"
)
"""One drafter per file; the file's name, with `-` for `_`, is what `--speculate` takes before `=`."""


def methods() -> tuple[str, ...]:
    """Every method that a setting or request may name."""
    built = DRAFTERS.names()
    return (OFF, AUTO, *PROPOSERS.names(), *(name for name in SOURCES if name.replace("-", "_") in built))


def rememberers() -> tuple[str, ...]:
    """The lookups that may draft from finished answers."""
    return tuple(name for name, make in PROPOSERS.all().items() if isinstance(make(), Remembers))
