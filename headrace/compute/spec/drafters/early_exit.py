"""Drafts of the target's own first layers, with its last norm and its head.

    draft     embed ─► layers 0 .. N-1 ─────────────────► norm ─► head      per draft
    check     embed ─► layers 0 .. N-1 ─► N .. L-1 ─────► norm ─► head      all drafts at once

There is nothing to hold and nothing to take in: keys and values of the first N layers are those that the
target computed, in its own blocks, also of a prefix that the cache held. A draft's go to the place where the
check writes them again, for all layers and with the same bits: the same kernels compute them from the same
tokens, however many are computed together. What belongs to drafts that are not accepted is overwritten by
the tokens that come instead, as after every check.

Where the target was not trained for it, hidden states after few layers say little; then few drafts agree, and
the controller checks none.

Draft and verify: Zhang et al. 2023 (arXiv:2309.08168); LayerSkip: Elhoushi et al. 2024 (arXiv:2404.16710),
which trains models so that early layers agree.
"""

from collections.abc import Sequence
from dataclasses import replace

from headrace.compute.models.decoder import make_forward
from headrace.compute.runner.work import token_bytes
from headrace.compute.spec.chain import Chain
from headrace.compute.spec.kit import DraftKit
from headrace.compute.spec.proposer import Ask, Needs


class EarlyExit:
    """See the module's page.

    Args:
        kit: whose `source` is the number of layers, from 1 to all.

    Raises:
        ValueError: another number; `engine/drafts` tells the caller before.
    """

    needs = Needs.BLOCKS

    def __init__(self, kit: DraftKit) -> None:
        spec, count = kit.target.spec, int(kit.source)
        if not 1 <= count <= len(spec.layers):
            raise ValueError(f"early exit after {count} of {len(spec.layers)} layers")
        forward = make_forward(replace(spec, layers=spec.layers[:count]), kit.target.weights)
        self._state = kit.state
        program = kit.backend.compile(forward, kit.limits, kit.pool)
        self._chain = Chain(kit, program, kit.pool, spec.vocab_size)
        self._pass_bytes = sum(kit.target.layer_bytes[:count]) + kit.target.head_bytes
        self._token_bytes = token_bytes(replace(kit.pool.geometry, layers=count))

    @property
    def weight_bytes(self) -> int:
        """None: all are the target's."""
        return 0

    @property
    def bytes_read(self) -> int:
        """See `Reads`: each draft reads the first layers and the head once more."""
        return self._chain.num_passes * self._pass_bytes + self._chain.num_keys * self._token_bytes

    def begin(self, slot: int) -> None:
        """Nothing is known of slots."""

    end = begin

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts for each ask; the target has computed all tokens but the last."""
        return self._chain.propose(asks, [int(self._state.num_tokens[ask.slot]) - 1 for ask in asks])


DRAFTER = EarlyExit
