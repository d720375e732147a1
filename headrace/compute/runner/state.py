"""Per-slot arrays that live over steps: tokens, block tables, leases."""

from collections.abc import Sequence

import numpy as np

from headrace.base.step import Row, SlotBegin
from headrace.compute.sampling.batch import SamplingState


class DeviceState:
    """What the runner knows of the sequence in each slot. Changed by the runner only.

        tokens[slot]  [ prompt .... | output ... | drafts ]
                      [ num_tokens[slot] ....... ]

    Args:
        num_slots: slots.
        max_length: most tokens of a sequence.
        table_width: most blocks of a sequence.
        vocab: number of tokens.
        max_drafts: most drafts of a row.
    """

    def __init__(
        self, num_slots: int, max_length: int, table_width: int, vocab: int, max_drafts: int = 0
    ) -> None:
        self.tokens = np.zeros((num_slots, max_length + max_drafts + 1), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int64)
        self.num_prompt = np.zeros(num_slots, np.int64)
        self.num_drafts = np.zeros(num_slots, np.int64)
        self.tables = np.zeros((num_slots, table_width), np.int32)
        self.num_blocks = np.zeros(num_slots, np.int64)
        self.lease = np.full(num_slots, -1, np.int64)
        self.prompt_logprobs = np.full(num_slots, -1, np.int64)
        self.sampling = SamplingState(num_slots, vocab)

    def end(self, slot: int) -> None:
        """The sequence leaves its slot."""
        self.lease[slot] = -1
        self.sampling.end(slot)

    def begin(self, begin: SlotBegin) -> None:
        """A sequence enters a slot with all its tokens and blocks.

        Raises:
            ValueError: the slot is taken.
        """
        slot, ids = int(begin.slot), begin.token_ids
        if self.lease[slot] != -1:
            raise ValueError(f"slot {slot} is still in use by lease {self.lease[slot]}")
        self.tokens[slot, : len(ids)] = ids
        self.num_tokens[slot] = len(ids)
        self.num_prompt[slot] = len(begin.request.prompt_ids)
        self.num_drafts[slot] = 0
        self.tables[slot, : len(begin.blocks)] = begin.blocks
        self.num_blocks[slot] = len(begin.blocks)
        self.lease[slot] = begin.lease
        wanted = begin.request.sampling.prompt_logprobs
        self.prompt_logprobs[slot] = -1 if wanted is None else wanted
        self.sampling.begin(slot, begin.request, ids[len(begin.request.prompt_ids) :])

    def update(self, row: Row) -> None:
        """Take over the row's changes of the block table.

        Raises:
            ValueError: the row belongs to another lease.
        """
        slot = int(row.slot)
        if self.lease[slot] != row.lease:
            raise ValueError(
                f"row of lease {row.lease} for slot {slot}, which lease {self.lease[slot]} holds"
            )
        for index, block in row.swapped:
            self.tables[slot, index] = block
        if row.new_blocks:
            first = self.num_blocks[slot]
            self.tables[slot, first : first + len(row.new_blocks)] = row.new_blocks
            self.num_blocks[slot] += len(row.new_blocks)

    def append(self, slot: int, tokens: Sequence[int]) -> None:
        """The sequence grew by accepted tokens; its drafts are gone."""
        first = self.num_tokens[slot]
        self.tokens[slot, first : first + len(tokens)] = tokens
        self.num_tokens[slot] += len(tokens)
        self.num_drafts[slot] = 0
        self.sampling.add(slot, tokens)

    def draft(self, slot: int, drafts: Sequence[int]) -> None:
        """Put drafts behind the sequence, for the next row to check."""
        first = self.num_tokens[slot]
        self.tokens[slot, first : first + len(drafts)] = drafts
        self.num_drafts[slot] = len(drafts)
