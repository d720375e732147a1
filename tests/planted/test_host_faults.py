"""Tests of the tests: each planted fault in ledger or scheduler must be caught by the random schedules."""

from random import Random

import pytest

from headrace.base.errors import HeadraceError
from headrace.base.ids import BlockKey
from headrace.base.step import BlockMove
from headrace.host.kv import keys as keys_module
from headrace.host.kv.keyed import KeyedPool
from headrace.host.kv.keys import Domain, KeyChain, block_key
from headrace.host.kv.ledger import KVLedger
from headrace.host.kv.pool import BlockPool
from headrace.host.kv.prefix import PrefixIndex
from headrace.host.kv.table import BlockTable, Grant
from headrace.host.sched import outcome, scheduler
from headrace.host.sched.batch import Batch
from headrace.host.sched.entry import entrance
from headrace.host.sched.entry.entrance import Entrance
from headrace.host.sched.planner import Planner
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.roster import Roster
from headrace.host.sched.scheduler import Scheduler
from headrace.host.sched.steady.crew import Crew
from headrace.host.sched.steady.repeat import Repeat
from tests.kit.host import Case, crowded_prompt, run_case

NUM_SCHEDULES = 800
FAULTS = {}


def fault(plant):
    FAULTS[plant.__name__] = plant
    return plant


def find(num: int) -> Exception | None:
    """The first complaint of the suite's own machinery over random schedules."""
    try:
        crowded_prompt()
    except (AssertionError, HeadraceError) as error:
        return error
    for seed in range(num):
        rng = Random(seed)
        case = Case(
            policy=rng.choice(["continuous", "continuous", "static", "dynamic"]),
            block_size=rng.randrange(1, 6),
            num_blocks=rng.randrange(6, 21),
            budget=rng.randrange(1, 25),
            num_drafts=rng.choice([0, 0, 1, 3]),
            depth=rng.choice([1, 1, 2, 3]),
            chunked=rng.random() < 0.7,
        )
        try:
            run_case(case, rng)
        except (AssertionError, HeadraceError, ValueError, IndexError, KeyError) as error:
            return error
    return None


@fault
def key_without_parent(patch):
    patch.setattr(keys_module, "block_key", lambda parent, tokens: block_key(b"", tokens))


@fault
def key_that_forgets_a_token(patch):
    patch.setattr(keys_module, "block_key", lambda parent, tokens: block_key(parent, tokens[:-1]))


@fault
def key_without_adapter(patch):
    real = Domain.root
    patch.setattr(Domain, "root", lambda self: real(Domain(None, self.salt, self.kv_domain)))
    patch.setattr("headrace.engine.sim.root_entry", lambda r: hash((r.adapter, r.kv_domain)) % 2**60)


@fault
def key_without_length_class(patch):
    real = Domain.root
    patch.setattr(Domain, "root", lambda self: real(Domain(self.adapter, self.salt, "")))
    patch.setattr("headrace.engine.sim.root_entry", lambda r: hash((r.adapter, r.kv_domain)) % 2**60)


@fault
def shared_block_not_copied(patch):
    real = KVLedger.reserve

    def reserve(self, request_id, start, end):
        refs = list(self._pool.refs)
        self._pool.refs[:] = [min(r, 1) for r in refs]
        before = {b for b, r in enumerate(refs) if r > 1}
        grant = real(self, request_id, start, end)
        for b in before:
            self._pool.refs[b] = refs[b]
        return grant

    patch.setattr(KVLedger, "reserve", reserve)


@fault
def copy_not_carried_out(patch):
    real = Batch.add

    def add(self, seq, count, grant: Grant, begin=None):
        real(self, seq, count, Grant(new_blocks=grant.new_blocks, swapped=grant.swapped), begin)

    patch.setattr(Batch, "add", add)


@fault
def copy_in_the_wrong_direction(patch):
    def move(*, kind, src, dst):
        return BlockMove(kind=kind, src=dst, dst=src)

    patch.setattr("headrace.host.kv.keyed.BlockMove", move)


@fault
def published_too_early(patch):
    real = KVLedger.publish

    def publish(self, request_id, tokens, num_valid):
        room = len(self._table(request_id).blocks) * self.block_size
        real(self, request_id, tokens, min(num_valid + self.block_size, len(tokens), room))

    patch.setattr(KVLedger, "publish", publish)


@fault
def leaked_block(patch):
    real = KVLedger.close

    def close(self, request_id):
        table = self._tables.get(request_id)
        if table and len(table.blocks) > 2:
            table.blocks.pop()
        return real(self, request_id)

    patch.setattr(KVLedger, "close", close)


@fault
def missed_reference_on_a_hit(patch):
    real = BlockPool.share

    def share(self, block):
        if self.refs[block] == 0:
            real(self, block)

    patch.setattr(BlockPool, "share", share)


@fault
def rejected_drafts_kept(patch):
    real = outcome.accept

    def accept(seq, row, result):
        found = real(seq, row, result)
        seq.num_computed = max(
            seq.num_computed, min(row.start + row.count, seq.num_missing + seq.num_computed)
        )
        return found

    patch.setattr(scheduler, "accept", accept)


@fault
def rejected_drafts_published(patch):
    real = outcome.accept

    def accept(seq, row, result):
        found = real(seq, row, result)
        seq.num_valid = min(row.start + row.count, len(seq.tokens))
        return found

    patch.setattr(scheduler, "accept", accept)


@fault
def whole_prompt_taken_as_a_hit(patch):
    def find_all(self, tokens, chain, max_cached):
        usable = len(tokens) // self._size
        return self._index.find(chain.extend(tokens, usable), usable)

    patch.setattr(KeyedPool, "find", find_all)


@fault
def preempted_output_lost(patch):
    real = Planner._preempt

    def preempt(self, seq, batch, now_s):
        real(self, seq, batch, now_s)
        seq.tokens = list(seq.request.prompt_ids)

    patch.setattr(Planner, "_preempt", preempt)


@fault
def late_result_accepted(patch):
    real = Scheduler.commit

    def commit(self, result):
        batch = self._planned[result.step]
        live = {s.request_id: s for s in self._roster.running}
        for lease, owner in batch.owners.items():
            if lease not in self._roster.by_lease and owner in live:
                live[owner].tokens.append(0)
        return real(self, result)

    patch.setattr(Scheduler, "commit", commit)


@fault
def lease_not_renewed(patch):
    real = Roster.enter

    def enter(self, seq, num_cached):
        slot = real(self, seq, num_cached)
        del self.by_lease[seq.lease]
        seq.lease = seq.rank[-1]
        self.by_lease[seq.lease] = seq
        return slot

    patch.setattr(Roster, "enter", enter)


@fault
def released_twice(patch):
    real = KVLedger.close

    def close(self, request_id):
        table = self._tables.get(request_id)
        found = real(self, request_id)
        if table and table.blocks:
            self._pool.refs[table.blocks[0]] += 1
            self._pool.drop(table.blocks[0])
        return found

    patch.setattr(KVLedger, "close", close)


@fault
def fork_skips_the_last_prompt_token(patch):
    real = Entrance._enter

    def enter(self, seq, leader, cached, now_s):
        real(self, seq, leader, cached, now_s)
        if leader is not None:
            seq.num_computed += 1

    patch.setattr(Entrance, "_enter", enter)


@fault
def fork_before_the_prompt_is_computed(patch):
    real = entrance.shortcut

    def shortcut(seq, ledger):
        leader = seq.leader
        if leader is not None and leader.slot is not None and leader.num_computed >= seq.num_prompt - 1:
            return leader, seq.num_prompt - 1, (seq.num_prompt - 1) // ledger.block_size
        return real(seq, ledger)

    patch.setattr(entrance, "shortcut", shortcut)
    patch.setattr(WaitQueue, "_join_or_park", WaitQueue._join)


@fault
def evicted_block_still_found(patch):
    def evict(self, key: BlockKey):
        self.num_evictions += 1

    patch.setattr(PrefixIndex, "evict", evict)


@fault
def stale_keys_after_copy_on_write(patch):
    real = KVLedger.publish

    def publish(self, request_id, tokens, num_valid):
        table: BlockTable = self._table(request_id)
        if table.num_published == 0 and num_valid >= self.block_size:
            table.chain.keys[:] = KeyChain(table.chain.domain, self.block_size).extend([*tokens[1:], 0], 1)
        real(self, request_id, tokens, num_valid)

    patch.setattr(KVLedger, "publish", publish)


@fault
def siblings_forgotten_when_the_leader_dies(patch):
    patch.setattr(WaitQueue, "release", lambda self, leader, now_s: None)


@fault
def oldest_preempted_first(patch):
    def victim(self, seq, planned):
        return next((s for s in self.running if s.lease not in planned and s is not seq), None)

    def promise_nothing(seq, ledger):
        return 0

    patch.setattr(Roster, "victim", victim)
    patch.setattr(entrance, "promised_blocks", promise_nothing)


@fault
def prompt_logprobs_told_twice(patch):
    def all_of_them(seq, row, result):
        seq.num_prompt_logprobs = max(seq.num_prompt_logprobs, row.start + len(result.prompt_logprobs))
        return result.prompt_logprobs

    patch.setattr(outcome, "_new_prompt_logprobs", all_of_them)


@fault
def prompt_logprobs_lost_on_a_hit(patch):
    patch.setattr("headrace.host.sched.sequence.Sequence.max_cached", property(lambda self: None))


@fault
def end_id_heard_too_early(patch):
    real = outcome._cut_at_end

    def cut(seq, tokens):
        for i, token in enumerate(tokens):
            if token in seq.request.end_ids | {1} and i + seq.num_output >= 2:
                return tokens[: i + 1], outcome.FinishReason.STOP
        return real(seq, tokens)

    patch.setattr(outcome, "_cut_at_end", cut)


@fault
def repeated_rows_get_no_blocks(patch):
    patch.setattr(Repeat, "_reserve", lambda self, owner, row, batch: None)


@fault
def repeated_rows_get_their_blocks_a_step_late(patch):
    patch.setattr(
        Crew, "at_block_start", lambda self: self.block_starts[(self.age - 1) % len(self.block_starts)]
    )


@fault
def steps_repeated_with_those_who_left(patch):
    real = Roster.leave

    def leave(self, seq, **more):
        real(self, seq, **more)
        self.num_changes -= 1

    patch.setattr(Roster, "leave", leave)
    patch.setattr(Repeat, "forget", lambda self: None)


@fault
def ends_of_repeated_steps_missed(patch):
    real = Crew.gather

    def gather(running, block_size):
        crew = real(running, block_size)
        if crew is not None:
            crew.steps_left += 1
        return crew

    patch.setattr(Crew, "gather", gather)


def test_the_machinery_is_silent_without_a_fault():
    assert find(60) is None


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_caught(name, monkeypatch):
    FAULTS[name](monkeypatch)
    assert find(NUM_SCHEDULES) is not None, f"nobody noticed: {name}"
