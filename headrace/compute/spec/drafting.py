"""Drafts for the rows of a runner: which proposers serve a slot, and the tokens they work on.

A slot may have both: drafts that lookups made at the end of a step, and a promise of a drafter that computes.
Which of them a row checks is decided elsewhere (`Row.is_late`).

Nothing is kept for a slot before drafts are wanted for it, so that requests without speculation cost nothing.
A proposer that raises makes no drafts, and nothing else changes (`faults`).
"""

from collections.abc import Mapping, Sequence
from functools import partial

from headrace.base.clock import now_s
from headrace.base.request import Request
from headrace.base.step import NOTHING_DRAFTED, Drafted
from headrace.base.tasks import AUTO, OFF, Speculation
from headrace.compute.models.decoder import NO_TAPS, Taps
from headrace.compute.runner.mover import Plane
from headrace.compute.spec.faults import Faults
from headrace.compute.spec.proposer import Ask, Lookup, Needs, Owner, Proposer, Reads, Remembers, Watcher
from headrace.compute.spec.states import Seen


class Drafting:
    """Proposers and the drafts that slots hold.

    Args:
        proposers: by name.
        offered: what applies to requests that ask for nothing else.
        planes: what the proposers keep per block.
        memory_tokens: tokens of finished answers that each proposer may remember, if it can.

    Raises:
        ValueError: a proposer needs hidden states and does not take them.
    """

    def __init__(
        self,
        proposers: Mapping[str, Proposer],
        offered: Speculation,
        planes: Sequence[Plane] = (),
        memory_tokens: int = 0,
    ) -> None:
        for name, proposer in proposers.items():
            if proposer.needs & Needs.HIDDEN and not isinstance(proposer, Watcher):
                raise ValueError(
                    f"proposer {name!r} needs hidden states and cannot be told of them (`Watcher`)"
                )
        self._offered = offered
        self.planes = tuple(planes)
        lookups = [p for p in proposers.values() if isinstance(p, Lookup)]
        self._order_by_method: dict[str, tuple[Proposer, ...]] = {OFF: ()}
        for name, proposer in proposers.items():
            self._order_by_method[name] = (proposer,)
        lookups.sort(key=lambda p: p.auto_place)
        self._order_by_method[AUTO] = tuple(lookups)
        self._lookups_by_slot: dict[int, tuple[Proposer, ...]] = {}
        self._drafter_by_slot: dict[int, Proposer] = {}
        self._ids_by_slot: dict[int, list[int]] = {}
        self.held: dict[int, list[int]] = {}
        """Drafts of lookups by slot, of the step before."""
        self._held_by: dict[int, str] = {}
        self._spent_s = 0.0
        self._name_by_proposer = {id(proposer): name for name, proposer in proposers.items()}
        self._faults = Faults(self._name_by_proposer)
        self._readers = [p for p in proposers.values() if isinstance(p, Reads)]
        self._bytes_told = 0
        self._watchers = [p for p in proposers.values() if isinstance(p, Watcher)]
        self._most_by_proposer = {id(watcher): watcher.most for watcher in self._watchers}
        self._rememberers = [p for p in proposers.values() if memory_tokens and isinstance(p, Remembers)]
        for proposer in self._rememberers:
            proposer.remember(memory_tokens)
        self.watches = bool(self._watchers)
        """Whether any proposer is to be told of hidden states."""

    @property
    def weight_bytes(self) -> int:
        """Bytes of weights that only draft."""
        return sum(reader.weight_bytes for reader in self._readers)

    @property
    def num_faults(self) -> int:
        """How often a proposer raised."""
        return self._faults.count

    @property
    def taps(self) -> Taps:
        """The hidden states that the target has to keep."""
        return self._watchers[0].taps if self._watchers else NO_TAPS

    def observe(self, seen: Seen) -> None:
        """A pass of the target is over, its tokens are drawn."""
        began_s = now_s()
        for watcher in self._watchers:
            if not self._faults.is_off(watcher):
                slots = [row.slot for row in seen.rows if self._drafter_by_slot.get(row.slot) is watcher]
                self._faults.attempt(watcher, slots, partial(watcher.observe, seen))
        self._spent_s += now_s() - began_s

    def begin(self, slot: int, request: Request) -> None:
        """A sequence enters a slot. Nothing is kept for those of which no drafts are ever wanted."""
        names = request.drafts_within(self._offered).names
        asked = [p for name in names for p in self._order_by_method.get(name, ())]
        order = [p for p in asked if not self._faults.is_off(p)]
        self._lookups_by_slot[slot] = tuple(p for p in order if not p.needs & Needs.BLOCKS)
        for proposer in order:
            if proposer.needs & Needs.BLOCKS:
                self._drafter_by_slot[slot] = proposer
            self._faults.attempt(proposer, (), partial(proposer.begin, slot))
        owner, num_prompt = Owner(request.terms.tenant.name, request.salt), len(request.prompt_ids)
        for proposer in self._rememberers:
            if proposer in order:
                self._faults.attempt(proposer, (slot,), partial(proposer.belong, slot, owner, num_prompt))

    def remembers(self, slot: int) -> bool:
        """Whether anybody wants the answer of the slot's sequence, once it is finished (`keep`)."""
        return any(p in self._lookups_by_slot.get(slot, ()) for p in self._rememberers)

    def keep(self, slot: int, answer: Sequence[int]) -> None:
        """The sequence is finished with this answer, and about to leave its slot."""
        for proposer in self._rememberers:
            if proposer in self._lookups_by_slot.get(slot, ()) and not self._faults.is_off(proposer):
                self._faults.attempt(proposer, (slot,), partial(proposer.keep, slot, answer))

    def end(self, slot: int) -> None:
        """The sequence leaves its slot."""
        drafter = self._drafter_by_slot.pop(slot, None)
        for proposer in (*self._lookups_by_slot.pop(slot, ()), *([] if drafter is None else [drafter])):
            self._faults.attempt(proposer, (), partial(proposer.end, slot))
        self._ids_by_slot.pop(slot, None)
        self._drop(slot)

    def _drop(self, slot: int) -> Sequence[int]:
        self._held_by.pop(slot, None)
        return self.held.pop(slot, ())

    def has_lookups(self, slot: int) -> bool:
        """Whether drafts for the slot are made at the end of a step."""
        return bool(self._lookups_by_slot.get(slot))

    def promised(self, slot: int, wanted: int) -> Drafted:
        """What the slot's next row can check: who made the drafts that it holds, and how many late ones."""
        drafter = self._drafter_by_slot.get(slot)
        by = self._held_by.get(slot, "")
        if drafter is None or self._faults.is_off(drafter):
            return Drafted(by) if by else NOTHING_DRAFTED
        return Drafted(by, min(wanted, self._most_by_proposer.get(id(drafter), wanted)))

    def propose_late(self, wanted: Sequence[tuple[int, int]]) -> dict[int, list[int]]:
        """Make the drafts of these (slot, most), whose blocks are there; by slot."""
        began_s = now_s()
        asks_by_proposer: dict[int, tuple[Proposer, list[Ask]]] = {}
        for slot, most in wanted:
            proposer = self._drafter_by_slot[slot]
            asks_by_proposer.setdefault(id(proposer), (proposer, []))[1].append(Ask(slot, (), most))
        made: dict[int, list[int]] = {}
        for proposer, asks in asks_by_proposer.values():
            for ask, drafts in zip(asks, self._ask(proposer, asks), strict=True):
                made[ask.slot] = drafts
        self._spent_s += now_s() - began_s
        return made

    def _ask(self, proposer: Proposer, asks: list[Ask]) -> list[list[int]]:
        """Drafts of each ask, at most as many as wanted; none where the proposer fails or is switched off."""
        made = None
        if not self._faults.is_off(proposer):
            slots = [ask.slot for ask in asks]
            made = self._faults.attempt(proposer, slots, partial(_proposed, proposer, asks))
        return [[] for _ in asks] if made is None else made

    def agree(self, slot: int, tokens: Sequence[int]) -> tuple[int, int]:
        """Compare drawn tokens with the drafts held for them, checked or not.

        Returns:
            (drafts that can be judged, those of them that agree before the first that does not).
        """
        held = self._drop(slot)
        count = min(len(held), len(tokens))
        for i in range(count):
            if held[i] != tokens[i]:
                return count, i
        return count, count

    def grow(self, slot: int, known: int, tokens: Sequence[int]) -> bool:
        """Add drawn tokens to a slot's sequence of `known` tokens; False: give all of them to `know`.

        Of every row of a sequence for which drafts were ever wanted, so that all tokens are copied once.
        """
        ids = self._ids_by_slot.get(slot)
        if ids is None or len(ids) != known:
            return False
        ids.extend(tokens)
        return True

    def know(self, slot: int, ids: list[int]) -> None:
        """Take over all tokens of a slot's sequence."""
        self._ids_by_slot[slot] = ids

    def take_seconds(self) -> float:
        """Seconds that making drafts took since the last call."""
        spent_s, self._spent_s = self._spent_s, 0.0
        return spent_s

    def take_bytes(self) -> int:
        """Bytes that making drafts read since the last call."""
        told, self._bytes_told = self._bytes_told, sum(reader.bytes_read for reader in self._readers)
        return self._bytes_told - told

    def propose(self, wanted: Sequence[tuple[int, int]]) -> list[int]:
        """Make the drafts of these (slot, most) and hold them; returns how many each has."""
        began_s = now_s()
        counts = self._propose(wanted)
        self._spent_s += now_s() - began_s
        return counts

    def _propose(self, wanted: Sequence[tuple[int, int]]) -> list[int]:
        open_asks = [Ask(slot, self._ids_by_slot[slot], most) for slot, most in wanted]
        rank = 0
        while open_asks:
            by_proposer: dict[int, tuple[Proposer, list[Ask]]] = {}
            for ask in open_asks:
                order = self._lookups_by_slot.get(ask.slot, ())
                if rank < len(order):
                    by_proposer.setdefault(id(order[rank]), (order[rank], []))[1].append(ask)
            open_asks = []
            for proposer, asks in by_proposer.values():
                for ask, drafts in zip(asks, self._ask(proposer, asks), strict=True):
                    if drafts:
                        self.held[ask.slot] = drafts
                        self._held_by[ask.slot] = self._name_by_proposer[id(proposer)]
                    else:
                        open_asks.append(ask)
            rank += 1
        return [len(self.held.get(slot, ())) for slot, _ in wanted]


def _proposed(proposer: Proposer, asks: Sequence[Ask]) -> list[list[int]]:
    """A proposer's drafts, cut to what was wanted."""
    made = zip(asks, proposer.propose(asks), strict=True)
    return [drafts[: ask.most] for ask, drafts in made]
