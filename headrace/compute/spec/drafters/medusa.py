"""Heads that each guess one of the next tokens from the target's last hidden state (`heads/medusa`).

    tokens     t0 t1 t2 t3            t3 is drawn and not computed yet; h is the state at t2
    h  ->      head 0: after t3       head 1: the one after that       ...

All heads see the same state, so a draft does not know the one before it. Nothing is kept of a sequence but h.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from headrace.compute.models.decoder import Taps
from headrace.compute.ops.api import F32, ForwardContext, KVPool
from headrace.compute.spec.draw import DraftDraws, Place
from headrace.compute.spec.heads.medusa import load_medusa
from headrace.compute.spec.kit import DraftKit
from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.states import LastStates, Seen


class Medusa:
    """See the module's page.

    Args:
        kit: whose source is the folder of the heads.

    Raises:
        CheckpointError: the heads are broken or not for this target.
    """

    needs = Needs.BLOCKS | Needs.HIDDEN
    taps = Taps(wanted=True)

    def __init__(self, kit: DraftKit) -> None:
        target, backend = kit.target, kit.backend
        shared = kit.shared()
        heads = load_medusa(Path(kit.source), backend, shared)
        limits = replace(kit.limits, max_tokens=kit.limits.max_rows, table_width=1)
        self._programs = [backend.compile(forward, limits, kit.pool) for forward in heads.forwards]
        self._pool, self._num_tokens = kit.pool, kit.state.num_tokens
        self._draws = DraftDraws(kit.state.sampling, backend, target.spec.vocab_size, heads.tokens)
        self._states = LastStates(len(kit.state.num_tokens), target.spec.width)
        self.weight_bytes = heads.weight_bytes
        self.most = len(heads.forwards)
        self._pass_bytes = heads.pass_bytes
        self._num_passes = 0

    @property
    def bytes_read(self) -> int:
        """See `Reads`; a pass is one of the heads, which are alike."""
        return self._num_passes * self._pass_bytes

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._states.forget(slot)

    end = begin

    def observe(self, seen: Seen) -> None:
        """Take over the last states of a pass."""
        self._states.take(seen.rows, seen.kept[-1])

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """One draft of each head, as many as wanted; none where the state is not known."""
        drafts: list[list[int]] = [[] for _ in asks]
        known = [int(self._num_tokens[ask.slot]) for ask in asks]
        # The last token is not computed yet; the one before it was, and its state drew the last.
        todo = [i for i, ask in enumerate(asks) if self._states.is_at(ask.slot, known[i] - 2)]
        for depth, program in enumerate(self._programs):
            todo = [i for i in todo if asks[i].most > depth]
            if not todo:
                break
            states = self._states.get([asks[i].slot for i in todo])
            self._num_passes += 1
            logits = program.run(_context(states, self._pool))
            places = [Place(asks[i].slot, drafts[i], known[i]) for i in todo]
            drawn = self._draws.draw(places, logits)
            for i, token in zip(todo, drawn, strict=True):
                if token is not None:
                    drafts[i].append(token)
            todo = [i for i, token in zip(todo, drawn, strict=True) if token is not None]
        return drafts


def _context(states: F32, pool: KVPool) -> ForwardContext:
    """A pass over states [R, width], each a sequence of its own; no token and no block is looked at."""
    count = len(states)
    order = np.arange(count + 1, dtype=np.int32)
    nothing = np.zeros(count, np.int32)
    return ForwardContext(
        token_ids=nothing,
        positions=nothing,
        row_of=order[:-1],
        query_start=order,
        key_len=np.ones(count, np.int32),
        tables=np.zeros((count, 1), np.int32),
        rope_rows=nothing,
        logit_rows=order[:-1],
        kv=pool,
        given=(states,),
    )


DRAFTER = Medusa
