"""Tests of the tests: a comparison with solo runs must catch each small fault in runner and sampler."""

import random
from collections.abc import Callable

import numpy as np
import pytest

from headrace.base.request import Request, SamplingParams
from headrace.base.step import BlockMove
from headrace.compute.runner import decode, draws, inputs, mover, passes, runner, state
from headrace.compute.sampling import batch as sampling_batch
from headrace.compute.sampling import state as sampling_state
from tests.kit.engine import VOCAB, Drive, random_requests, random_shape, rig

Patch = pytest.MonkeyPatch
SCHEDULES = 60


def wrap_gather(patch: Patch, change: Callable) -> None:
    plain = inputs.Inputs.gather

    def gather(self, pieces):
        return change(plain(self, pieces), pieces, self)

    patch.setattr(inputs.Inputs, "gather", gather)


def position_off_by_one(patch: Patch) -> None:
    """Only resumed rows are shifted: RoPE is relative, a shift of everything could not be seen."""

    def change(ctx, pieces, _):
        for i, piece in enumerate(pieces):
            if piece.start and piece.count > 1:
                here = slice(ctx.query_start[i], ctx.query_start[i + 1])
                ctx.rope_rows = ctx.rope_rows.copy()
                ctx.rope_rows[here] -= 1
        return ctx

    wrap_gather(patch, change)


def wrong_token_after_chunk(patch: Patch) -> None:
    def change(ctx, pieces, self):
        for i, piece in enumerate(pieces):
            if piece.start and piece.count > 1:
                at = ctx.query_start[i]
                ctx.token_ids[at] = self._state.tokens[piece.slot, piece.start - 1]
        return ctx

    wrap_gather(patch, change)


def key_length_one_short(patch: Patch) -> None:
    """Rows of chunks do not see their last block."""

    def change(ctx, pieces, _):
        for i, piece in enumerate(pieces):
            if piece.start and piece.count > 1:
                ctx.tables[i, 0] = ctx.tables[i, -1]
        return ctx

    wrap_gather(patch, change)


def table_of_the_neighbour(patch: Patch) -> None:
    def change(ctx, pieces, _):
        if len(pieces) > 1:
            ctx.tables[-1, 0] = ctx.tables[0, 0]
        return ctx

    wrap_gather(patch, change)


def stale_table_of_the_slot(patch: Patch) -> None:
    """A new sequence keeps the first block of the slot's last one."""
    plain = state.DeviceState.begin

    def begin(self, start):
        old = self.tables[start.slot, 0]
        used = self.num_blocks[start.slot] > 0
        plain(self, start)
        if used:
            self.tables[start.slot, 0] = old

    patch.setattr(state.DeviceState, "begin", begin)


def missed_copy(patch: Patch) -> None:
    patch.setattr(runner, "apply", lambda moves, pool: None)


def copy_in_the_wrong_direction(patch: Patch) -> None:
    def apply(moves, pool):
        mover.apply([BlockMove(kind=m.kind, src=m.dst, dst=m.src) for m in moves], pool)

    patch.setattr(runner, "apply", apply)


def logits_of_the_row_before(patch: Patch) -> None:
    plain = inputs.logit_rows

    def rows(pieces, query_start):
        out = plain(pieces, query_start).copy()
        chunks = np.diff(query_start)[[i for i, p in enumerate(pieces) for _ in range(p.logits)]] > 1
        out[chunks] -= 1
        return out

    patch.setattr(inputs, "logit_rows", rows)


def chunks_draw_too_early(patch: Patch) -> None:
    """The last chunk leaves its last token out of the drawing position."""
    plain = passes._whole

    def whole(index, row):
        piece = plain(index, row)
        return (
            piece
            if row.count == 1 or not row.start
            else type(piece)(piece.row, piece.slot, piece.start - 1, piece.count, piece.draws, piece.reports)
        )

    patch.setattr(passes, "_whole", whole)


def wrap_batch(patch: Patch, change: Callable) -> None:
    plain = sampling_batch.SamplingState.batch

    def batch(self, drawn, slots, positions):
        return change(plain(self, drawn, slots, positions), slots)

    patch.setattr(sampling_batch.SamplingState, "batch", batch)


def noise_by_batch_row(patch: Patch) -> None:
    def change(made, slots):
        made.positions = np.arange(len(slots), dtype=np.int32)
        return made

    wrap_batch(patch, change)


def noise_by_slot(patch: Patch) -> None:
    def change(made, slots):
        made.seeds = made.seeds + slots.astype(np.uint64)
        return made

    wrap_batch(patch, change)


def seeds_shared(patch: Patch) -> None:
    def change(made, slots):
        made.seeds = np.full_like(made.seeds, made.seeds[0])
        return made

    wrap_batch(patch, change)


def temperature_of_the_neighbour(patch: Patch) -> None:
    def change(made, slots):
        made.temperature = np.roll(made.temperature, 1)
        return made

    wrap_batch(patch, change)


def mask_of_the_neighbour(patch: Patch) -> None:
    def change(made, slots):
        if made.allowed is not None:
            made.allowed.row = np.roll(made.allowed.row, 1)
        return made

    wrap_batch(patch, change)


def penalties_forget_output_after_preemption(patch: Patch) -> None:
    plain = sampling_state.SeenCounts.__init__
    patch.setattr(
        sampling_state.SeenCounts,
        "__init__",
        lambda self, prompt, output: plain(self, [*prompt, *output], ()),
    )


def penalties_of_the_slots_last_owner(patch: Patch) -> None:
    plain = sampling_batch.SamplingState.begin

    def begin(self, slot, request, output):
        old = self._penalties[slot].copy()
        used = old.any()
        plain(self, slot, request, output)
        if used:
            self._penalties[slot] = old

    patch.setattr(sampling_batch.SamplingState, "begin", begin)


def output_is_not_counted(patch: Patch) -> None:
    """Tokens drawn in chunks' last rows are forgotten by penalties and bans."""
    plain = sampling_batch.SamplingState.add
    seen: set[int] = set()

    def add(self, slot, tokens):
        if slot in seen:
            plain(self, slot, tokens)
        seen.add(slot)

    patch.setattr(sampling_batch.SamplingState, "add", add)


def logprobs_of_the_next_row(patch: Patch) -> None:
    plain = draws.entry

    def entry(sampled, row, k):
        return plain(sampled, (row + 1) % len(sampled.tokens), k)

    patch.setattr(draws, "entry", entry)


def decoding_keeps_old_tables(patch: Patch) -> None:
    patch.setattr(decode.Decode, "_update_table", lambda self, i, row: None)


def decoding_goes_on_for_those_who_left(patch: Patch) -> None:
    """A step that begins or ends slots counts as one like the step before."""
    plain = decode.Decode.prepare

    def prepare(self, rows, repeats=None):
        if len(rows) == len(self._places):
            self._places = [(row.slot, row.lease) for row in rows]
            self._context.key_len[:] = [row.start for row in rows]
        return plain(self, rows, repeats)

    patch.setattr(decode.Decode, "forget", lambda self: None)
    patch.setattr(decode.Decode, "prepare", prepare)


def decoding_draws_with_old_noise(patch: Patch) -> None:
    plain = sampling_batch.SamplingState.plain_batch
    patch.setattr(
        sampling_batch.SamplingState,
        "plain_batch",
        lambda self, slots, positions: plain(self, slots, positions.copy()),
    )


def decoding_takes_everything_for_plain(patch: Patch) -> None:
    patch.setattr(sampling_batch.SamplingState, "is_plain", lambda self, slots: True)


FAULTS = [
    position_off_by_one,
    wrong_token_after_chunk,
    key_length_one_short,
    table_of_the_neighbour,
    stale_table_of_the_slot,
    missed_copy,
    copy_in_the_wrong_direction,
    logits_of_the_row_before,
    chunks_draw_too_early,
    noise_by_batch_row,
    noise_by_slot,
    seeds_shared,
    temperature_of_the_neighbour,
    mask_of_the_neighbour,
    penalties_forget_output_after_preemption,
    penalties_of_the_slots_last_owner,
    output_is_not_counted,
    logprobs_of_the_next_row,
    decoding_keeps_old_tables,
    decoding_goes_on_for_those_who_left,
    decoding_draws_with_old_noise,
    decoding_takes_everything_for_plain,
]


_SOLO: dict = {}


def schedules():
    """The same schedules for every fault, with their right answers."""
    if not _SOLO:
        for seed in range(SCHEDULES):
            rng = random.Random(seed)
            shape = random_shape(rng)
            requests = random_requests(rng, min(shape["num_blocks"] * shape["block_size"], 64))
            answers = {r.request_id: rig().solo(r, shape["dtype"]).answer for r in requests}
            _SOLO[seed] = (shape, requests, answers)
        shape, requests = crowded()
        _SOLO["crowded"] = (shape, requests, {r.request_id: rig().solo(r).answer for r in requests})
        shape, requests = plain()
        _SOLO["plain"] = (shape, requests, {r.request_id: rig().solo(r).answer for r in requests})
    return _SOLO


def crowded():
    """Two requests with penalties that outgrow the pool: one is preempted amid its output."""
    rng = random.Random(1)
    sampling = SamplingParams(
        temperature=1.0, seed=5, max_tokens=36, frequency_penalty=1.0, presence_penalty=1.0
    )
    requests = [
        Request(
            request_id=name,
            prompt_ids=tuple(rng.randrange(3, VOCAB) for _ in range(60)),
            sampling=sampling,
        )
        for name in ("a", "b")
    ]
    return {"num_blocks": 10, "block_size": 16}, requests


def plain():
    """Two requests that decode side by side, block after block, with nothing that leaves the short way."""
    sampling = SamplingParams(temperature=1.0, seed=5, max_tokens=40)
    requests = [
        Request(request_id=name, prompt_ids=(first, 8, 9), sampling=sampling)
        for name, first in (("a", 5), ("b", 6))
    ]
    return {"num_blocks": 40, "block_size": 4}, requests


def is_caught(shape, requests, answers) -> bool:
    try:
        lives = Drive(rig().core(**shape)).run(requests)
    except Exception:  # noqa: BLE001 - a fault may break an invariant before it changes an answer
        return True
    return any(lives[name].answer != answer for name, answer in answers.items())


def test_without_a_fault_nothing_is_caught():
    assert not any(is_caught(*case) for case in schedules().values())


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_each_fault_is_caught(fault, monkeypatch):
    cases = list(schedules().values())
    fault(monkeypatch)
    assert any(is_caught(*case) for case in cases)
