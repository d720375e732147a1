"""The scheduler: plan a step, commit its result.

`plan` chooses rows: those who decode first, then prompts under way, then those who wait, under a bound on
tokens and, while others decode, on time. Blocks are reserved in rank order (`fair/rank`); when the pool
is dry, the worst rank is preempted and computed again later. The best rank is never preempted, so one always
finishes.

`commit` takes results; one that carries the lease of an earlier stay in a slot is late and ignored, so plans
may run ahead of results by one step.
"""

from collections.abc import Callable, Iterable

from headrace.base.errors import InvariantError
from headrace.base.ids import RequestId
from headrace.base.messages import Picture
from headrace.base.metrics.timeline import Timeline
from headrace.base.request import FinishReason, Request
from headrace.base.step import Delta, Progress, Row, RowResult, StepPlan, StepResult
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.audit import check_batches, check_no_stall, check_sequences
from headrace.host.sched.batch import Batch, StepNotes
from headrace.host.sched.beams.forks import Forks
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.entry.arrivals import Arrivals
from headrace.host.sched.fair.deadlines import Deadlines
from headrace.host.sched.fair.late import late_ones, next_late_s
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.outcome import accept, last_words
from headrace.host.sched.picture import take_picture
from headrace.host.sched.planner import Planner, learn
from headrace.host.sched.queue import WaitQueue
from headrace.host.sched.sequence import NO_TROUBLE, Sequence, SequenceState, Trouble, WaitReason
from headrace.host.sched.stats import SchedulerStats, take_stats
from headrace.host.sched.view import BatchPolicy

_DISPLACED: Trouble = ("the queue is full, and others wait for less; try again later", "OverloadError")


class Scheduler:
    """Decides which rows run in which step.

    Args:
        ledger: the KV ledger, used by this scheduler alone.
        policy: when waiting sequences may join.
        limits: bounds.
        now_s: monotonic clock in seconds.
        drafts: how many drafts rows check; None: there are no drafts.

    Not thread-safe: one loop calls it.
    """

    def __init__(
        self,
        ledger: KVLedger,
        policy: BatchPolicy,
        limits: ScheduleLimits,
        now_s: Callable[[], float],
        drafts: Depth | None = None,
    ) -> None:
        self._ledger = ledger
        self._limits = limits
        self._now_s = now_s
        self._sequences: dict[RequestId, Sequence] = {}
        self._queue = WaitQueue(now_s(), limits.ageing_s)
        self._deadlines = Deadlines()
        self._displaced: list[Delta] = []
        self.drafts = drafts or Depth()
        self._planner = Planner(ledger, policy, limits, self._queue, self.drafts, now_s)
        self._roster = self._planner.roster
        self._forks = Forks(ledger, self._roster, self._queue, self._sequences)
        self._arrivals = Arrivals(self._sequences, ledger, self._queue, self._forks, limits)
        self._planned: dict[int, Batch] = {}
        self._step = self._slot_steps = self._wasted = self._late = 0

    # ---- requests come and go ----

    def add_group(self, requests: tuple[Request, ...], *, is_held: bool = False) -> None:
        """Queue all of these (the choices of one API request, leader first), or none.

        Held ones take part in everything but steps until they are let go.

        Raises:
            RequestError: one is malformed, or its id is in use.
            CapacityError: one can never fit the KV pool.
            ContextLengthError: one exceeds the context limit.
            OverloadError: the queue is full.
        """
        now_s = self._now_s()
        leaving = self._arrivals.check(requests, self._roster.num_free, self._planner.entrance.rate, now_s)
        for seq in leaving:
            self._displaced.append(self._end(seq, FinishReason.ERROR, now_s, trouble=_DISPLACED))
        for request in requests:
            seq = self._arrivals.enter(request, now_s, is_held=is_held)
            self.drafts.open(seq)
            self._deadlines.add(seq, len(self._sequences))

    def let_go(self, request_ids: Iterable[RequestId]) -> None:
        """What these were held for is there: those that are not over may run."""
        for request_id in request_ids:
            seq = self._sequences.get(request_id)
            if seq is not None:
                self._queue.let_go(seq, self._now_s())

    def withdraw(self, request_ids: Iterable[RequestId]) -> None:
        """These held ones turn out wrong: they end without last deltas, and get back what they spent."""
        for request_id in request_ids:
            seq = self._sequences.get(request_id)
            if seq is not None:
                spent = 0 if seq.leader is not None or seq.is_background else seq.num_prompt
                seq.account.spend(-spent)
                self._end(seq, FinishReason.ERROR, self._now_s())

    def finish(self, request_id: RequestId, reason: FinishReason) -> Delta | None:
        """End a request in whatever state; its last delta, None when it is unknown or over."""
        seq = self._sequences.get(request_id)
        return None if seq is None else self._end(seq, reason, self._now_s())

    def expire(self) -> tuple[Delta, ...]:
        """End requests that are past their deadline, or waited longer than `max_queue_s` for a first step.

        Those that had to leave a full queue since the last call are told here too.
        """
        ended, self._displaced = self._displaced, []
        now_s = self._now_s()
        for seq, trouble in late_ones(self._deadlines, self._queue, self._limits, now_s):
            ended.append(self._end(seq, FinishReason.ERROR, now_s, trouble=trouble))
        return tuple(ended)

    # ---- a step ----

    def plan(self) -> StepPlan | None:
        """The next step, or None when nothing can run now.

        Raises:
            InvariantError: a sequence could run and no row was found for it.
        """
        self._queue.clock.advance(now_s := self._now_s())
        notes = StepNotes(planned_s=now_s)
        batch = Batch(step=self._step + 1, left=self._limits.max_num_batched_tokens, notes=notes)
        reason = self._planner.fill(batch, now_s)
        self._queue.clock.reason = reason or WaitReason.STEP
        if not batch.rows:
            check_no_stall(reason, self._planned, self._queue, self._roster, self._ledger)
            return None
        self._step = batch.step
        self._planned[batch.step] = batch
        self._slot_steps += len(batch.rows)
        if num_empty := self._roster.num_slots - len(batch.rows):
            self._wasted += min(num_empty, self._queue.num_ready)
        repeats = self._planner.repeat.repeats_of(batch)
        plan = batch.plan(self._roster.take_ends(), self._roster.take_finished(), repeats)
        notes.host_s = self._now_s() - now_s
        return plan

    def commit(self, result: StepResult) -> Progress:
        """Take the result of a planned step.

        Raises:
            InvariantError: the step is unknown or committed already, or a row of a live lease has no result.
        """
        batch = self._planned.pop(result.step, None)
        if batch is None:
            raise InvariantError(f"step {result.step} was not planned, or is committed already")
        now_s = self._now_s()
        deltas = self._planner.repeat.commit(batch, result, now_s)
        if deltas is None:
            deltas = self._commit_rows(batch, result, now_s)
        batch.notes.host_s += self._now_s() - now_s
        learn(self._planner, batch, result)
        return Progress(step=result.step, deltas=tuple(deltas))

    def _commit_rows(self, batch: Batch, result: StepResult, now_s: float) -> list[Delta]:
        """Take the results row by row."""
        deltas: list[Delta] = []
        by_lease, rows = self._roster.by_lease, batch.rows
        time = batch.time(result, now_s, self._planner.cost, self._roster.running)
        for row_result in result.rows:
            seq, row = by_lease.get(row_result.lease), rows.get(row_result.lease)
            if seq is None or row is None:
                self._late += 1
                continue
            time.book(seq.times, row)
            delta = self._take(seq, row, row_result, now_s)
            if delta is not None:
                deltas.append(delta)
        batch.check_answered(result, by_lease)
        return deltas

    def next_wakeup_s(self) -> float | None:
        """Seconds from now after which `plan` or `expire` can do more without any event; None: never."""
        moments = list(next_late_s(self._deadlines, self._queue, self._limits))
        if self._planner.opens_at_s is not None and self._queue.num_total:
            moments.append(self._planner.opens_at_s)
        return max(0.0, min(moments) - self._now_s()) if moments else None

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished, or its end not told."""
        return bool(self._sequences or self._displaced)

    @property
    def has_steps(self) -> bool:
        """Whether any request that is not held is not finished."""
        return len(self._sequences) > len(self._queue.held_ids)

    def stats(self) -> SchedulerStats:
        """State now and counts since start. Cost: constant."""
        return take_stats(
            self._queue,
            self._roster,
            self._ledger,
            preemptions=self._planner.num_preempted,
            steps=self._step,
            slot_steps=self._slot_steps,
            wasted_slot_steps=self._wasted,
            late_results=self._late,
        )

    def picture(self) -> Picture:
        """Who runs, and what the blocks are; linear in both."""
        return take_picture(self._roster, self._ledger, self._step, self._now_s())

    def timeline(self, request_id: RequestId) -> Timeline | None:
        """Where the time of a request went up to now; None: it is unknown or over (`SequenceTiming`)."""
        seq, now_s = self._sequences.get(request_id), self._now_s()
        return seq and seq.timeline(now_s, self._queue.waited(seq, now_s))

    def check(self) -> None:
        """Verify every invariant; raises InvariantError. Cost: linear in blocks and sequences."""
        check_sequences(self._sequences, self._queue, self._roster, self._ledger)
        check_batches(self._planned.values(), self._roster, self._ledger, self._limits)

    def _take(self, seq: Sequence, row: Row, result: RowResult, now_s: float) -> Delta | None:
        if result.error is not None:  # what this row computed is not to be trusted: do not publish it
            asked, news = self._forks.leader_of(seq) if seq.is_beam else seq, last_words(seq, row, result)
            return self._end(asked, FinishReason.ERROR, now_s, trouble=(result.error, ""), news=news)
        is_first = len(seq.tokens) == seq.num_prompt
        news, finish = accept(seq, row, result)
        if seq.track is not None:
            self.drafts.learn(seq, seq.track, row, result)
        if news.new_ids:
            seq.account.give_output(len(news.new_ids), is_background=seq.is_background)
            seq.life.first_token_s = now_s if is_first else seq.life.first_token_s
        # Between two tokens of an answer a block becomes full only at a multiple of its size.
        if is_first or row.count > 1 or seq.num_valid % self._ledger.block_size == 0:
            self._ledger.publish(seq.request_id, seq.tokens, seq.num_valid)
        if seq.is_beam:
            return self._next_round(seq, now_s) if seq.offer is not None else None
        if self._queue.num_parked and seq.num_valid >= seq.num_prompt - 1:
            self._queue.release(seq.request_id, now_s)
        if finish is not None:
            return self._end(seq, finish, now_s, news=news)
        return news if news.new_ids or news.prompt_logprobs else None

    def _next_round(self, seq: Sequence, now_s: float) -> Delta | None:
        """A beam has a result; its search may be over."""
        leader = self._forks.leader_of(seq)
        seq.account.give_output(1, is_background=seq.is_background)
        leader.life.first_token_s = leader.life.first_token_s or now_s
        news = self._forks.advance(seq, now_s)
        return None if news is None else self._end(leader, news.beams[0].finish, now_s, news=news)

    def _end(
        self,
        seq: Sequence,
        finish: FinishReason,
        now_s: float,
        *,
        trouble: Trouble = NO_TROUBLE,
        news: Delta | None = None,
    ) -> Delta:
        """The one way out, from every state."""
        if seq.is_beam:
            self._forks.close(seq, now_s)
        if seq.state is SequenceState.RUNNING:
            self._ledger.close(seq.request_id)
            seq.times.leave(now_s)
            self._roster.leave(seq, is_whole=finish in (FinishReason.STOP, FinishReason.LENGTH))
            self._planner.repeat.forget()
        else:
            self._queue.pop(seq, now_s)
        seq.state = SequenceState.FINISHED
        del self._sequences[seq.request_id]
        self._queue.release(seq.request_id, now_s)
        return seq.closing_delta(finish, now_s, trouble=trouble, news=news)
