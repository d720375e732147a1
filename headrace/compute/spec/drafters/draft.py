"""Drafts of a smaller model, whose keys and values lie in a plane beside the target's.

What the model has computed of a sequence is known by slot (`_Seen`) and by block: a block that holds keys and
values of a whole block of tokens is stamped with the key of all tokens up to its end. So a sequence that
finds its prompt in the prefix cache, forks, or comes back after preemption finds what the draft model
computed before, and nobody else needs to know: a stamp that does not fit means that the tokens are computed
again.

Prompts are taken in when drafts are first wanted, not with the target's chunks: where drafting does not pay,
and for answers that end before it begins, the draft model then costs nothing. They are taken in `INTAKE`
tokens at a time, in steps whose rows check no drafts, so that nobody waits long.

Speculative decoding with a draft model: Leviathan, Kalman and Matias 2023 (arXiv:2211.17192), Chen et al.
2023 (arXiv:2302.01318).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.compute.ops.api import KVPool
from headrace.compute.runner.work import token_bytes
from headrace.compute.spec.chain import Chain
from headrace.compute.spec.kit import CATCH_UP, INTAKE, DraftKit
from headrace.compute.spec.proposer import Ask, Needs


@dataclass(slots=True)
class _Seen:
    """What the model has computed of the sequence in a slot."""

    num_computed: int = 0
    """Tokens of the sequence, drafts apart."""
    stamps: list[int] = field(default_factory=list[int])
    """Of its whole blocks among them."""
    drafts: list[int] = field(default_factory=list[int])
    """Computed behind these tokens."""


class _Stamps:
    """The stamp of each block; 0: the block holds nothing that could be named."""

    def __init__(self, num_blocks: int) -> None:
        self._stamps = [0] * num_blocks

    def __getitem__(self, block: int) -> int:
        return self._stamps[block]

    def __setitem__(self, block: int, stamp: int) -> None:
        self._stamps[block] = stamp

    def copy(self, src: int, dst: int) -> None:
        """See `Plane.copy`."""
        self._stamps[dst] = self._stamps[src]

    def fill(self, block: int, value: float) -> None:
        """See `Plane.fill`."""
        del value
        self._stamps[block] = 0


class DraftModel:
    """See the module's page.

    Args:
        kit: with the draft model.

    Raises:
        ValueError: there is none.
    """

    needs = Needs.BLOCKS

    def __init__(self, kit: DraftKit) -> None:
        model = kit.model
        if model is None:
            raise ValueError("the method draft was chosen and no draft model was loaded")
        geometry = kit.pool.geometry
        pool: KVPool = kit.add_plane(model.geometry(geometry.block_size, geometry.dtype))
        model.shift_keys(pool)
        self._state = kit.state
        self._block_size = geometry.block_size
        self._chain = Chain(
            kit, kit.backend.compile(model.forward, kit.limits, pool), pool, model.spec.vocab_size
        )
        self._seen_by_slot: dict[int, _Seen] = {}
        self._stamps = _Stamps(kit.pool.num_blocks)
        kit.planes.append(self._stamps)
        self.weight_bytes = model.weight_bytes
        self._token_bytes = token_bytes(pool.geometry)
        self.num_taken_in = 0
        """Tokens of sequences computed since start, drafts apart."""

    @property
    def bytes_read(self) -> int:
        """See `Reads`."""
        return self._chain.num_passes * self.weight_bytes + self._chain.num_keys * self._token_bytes

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._seen_by_slot.pop(slot, None)

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask; none for those whose tokens have to be taken in first."""
        seen = [self._look(ask.slot) for ask in asks]
        lengths = [int(self._state.num_tokens[ask.slot]) for ask in asks]
        lacks = [length - s.num_computed for length, s in zip(lengths, seen, strict=True)]
        ready = [i for i, lack in enumerate(lacks) if lack <= CATCH_UP]
        self._take_in([(a.slot, s) for a, s, n in zip(asks, seen, lacks, strict=True) if n > CATCH_UP])
        starts = [seen[i].num_computed for i in ready]
        for i in ready:
            self._unstamp(asks[i].slot, seen[i], lacks[i] + asks[i].most - 1)
        made = self._chain.propose([asks[i] for i in ready], starts)
        found: list[list[int]] = [[] for _ in asks]
        for i, drafts in zip(ready, made, strict=True):
            found[i] = drafts
            seen[i].num_computed += lacks[i]
            seen[i].drafts = drafts[:-1]
            self.num_taken_in += lacks[i]
        return found

    def _take_in(self, waiting: list[tuple[int, _Seen]]) -> None:
        """Compute tokens of these slots, as many as a step may; one is left of each to draw behind."""
        left, pieces = INTAKE, list[tuple[int, int, int]]()
        for slot, seen in waiting:
            self._find(slot, seen)  # another may have computed them since
            count = min(int(self._state.num_tokens[slot]) - 1 - seen.num_computed, left)
            if count > 0:
                pieces.append((slot, seen.num_computed, count))
                self._unstamp(slot, seen, count)
                seen.num_computed += count
                left -= count
        self._chain.take_in(pieces)
        for slot, seen in waiting:
            self._stamp(slot, seen)
        self.num_taken_in += INTAKE - left

    def _look(self, slot: int) -> _Seen:
        """What is known of a slot by now: of the drafts before, those that were accepted are computed."""
        seen = self._seen_by_slot.get(slot)
        if seen is None:
            seen = self._seen_by_slot[slot] = _Seen()
            self._find(slot, seen)
            return seen
        ids, at = self._state.tokens[slot], seen.num_computed
        last = int(self._state.num_tokens[slot]) - 1  # drawn with the row's last logits, never computed
        for draft in seen.drafts:
            if at >= last or ids[at] != draft:
                break
            at += 1
        seen.num_computed, seen.drafts = at, []
        self._stamp(slot, seen)
        return seen

    def _find(self, slot: int, seen: _Seen) -> None:
        """Pass over the blocks that hold what would be computed; one token is left to draw behind."""
        table, size = self._state.tables[slot], self._block_size
        most = (int(self._state.num_tokens[slot]) - 1) // size
        while len(seen.stamps) < most:
            stamp = self._next_stamp(slot, seen)
            if self._stamps[int(table[len(seen.stamps)])] != stamp:
                break
            seen.stamps.append(stamp)
        seen.num_computed = max(seen.num_computed, len(seen.stamps) * size)

    def _stamp(self, slot: int, seen: _Seen) -> None:
        """Name what the whole blocks of a slot hold."""
        table = self._state.tables[slot]
        for block in range(len(seen.stamps), seen.num_computed // self._block_size):
            stamp = self._next_stamp(slot, seen)
            seen.stamps.append(stamp)
            self._stamps[int(table[block])] = stamp

    def _next_stamp(self, slot: int, seen: _Seen) -> int:
        first = len(seen.stamps) * self._block_size
        tokens = self._state.tokens[slot, first : first + self._block_size].tobytes()
        return hash((seen.stamps[-1] if seen.stamps else 0, tokens)) or 1

    def _unstamp(self, slot: int, seen: _Seen, count: int) -> None:
        """The next `count` tokens are written: what their blocks held is gone."""
        table, size = self._state.tables[slot], self._block_size
        for block in range(seen.num_computed // size, -(-(seen.num_computed + count) // size)):
            self._stamps[int(table[block])] = 0


DRAFTER = DraftModel
