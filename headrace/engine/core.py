"""The core of the engine: plan, run, commit. One thread calls it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from headrace.base.clock import now_s
from headrace.base.ids import RequestId
from headrace.base.messages import News, Stats
from headrace.base.request import FinishReason, Request
from headrace.base.step import Delta, StepPlan, StepResult
from headrace.compute.runner.runner import Runner
from headrace.engine.cost.meter import StepMeter
from headrace.engine.grammars.structured import Structured
from headrace.host.grammar.matcher import Matcher
from headrace.host.sched.scheduler import Scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreSizes:
    """Memory of the engine, for the gauges."""

    num_blocks: int
    weight_bytes: int
    kv_bytes: int
    num_slots: int = 0


class EngineCore:
    """Joins the scheduler (decides) and the runner (computes).

    Args:
        scheduler: plans and commits.
        runner: runs plans.
        sizes: memory of the parts.
        structured: the grammars of requests.
        kv_domain: what the KV of a prompt of this length depends on besides its tokens.
        close: frees the backend.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        sizes: CoreSizes,
        structured: Structured,
        kv_domain: Callable[[int], str],
        close: Callable[[], None],
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.structured = structured
        self.meter: StepMeter | None = None
        """Sums up what steps cost; None: nobody asks."""
        self.steps = 0
        self._sizes = sizes
        self._kv_domain = kv_domain
        self._close = close
        self._counts: Counter[str] = Counter()
        self._step_seconds = self._loop_seconds = 0.0

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return self.scheduler.has_work

    @property
    def has_steps(self) -> bool:
        """Whether any request that is not finished waits for no grammar."""
        return self.scheduler.has_steps

    def add(self, requests: tuple[Request, ...]) -> None:
        """Queue the choices of one API request, all or none. Raises as `Scheduler.add_group`.

        A grammar is compiled here and now; see `hold`.

        Raises:
            RequestError: the grammar cannot be used.
        """
        is_structured = requests[0].sampling.structured is not None
        matchers = self.structured.compile(requests) if is_structured else ()
        self._queue(requests, is_held=False)
        if matchers:
            self.structured.adopt(requests, matchers)

    def hold(self, requests: tuple[Request, ...]) -> None:
        """Queue them without their grammar, which is being compiled. Raises as `Scheduler.add_group`."""
        self._queue(requests, is_held=True)

    def let_go(self, requests: tuple[Request, ...], matchers: tuple[Matcher, ...]) -> None:
        """The grammar of held requests is compiled."""
        self.scheduler.let_go(r.request_id for r in requests)
        self.structured.adopt(requests, matchers)

    def finish(self, request_ids: Iterable[RequestId], reason: FinishReason) -> News:
        """End sequences in whatever state; unknown ones are passed over."""
        ended = (self.scheduler.finish(request_id, reason) for request_id in request_ids)
        return self._news(delta for delta in ended if delta is not None)

    def step(self) -> News | None:
        """One step: the news, or None when nothing can run now (see `wait_s`).

        Raises:
            HeadraceError: the bookkeeping contradicts itself; the engine must not go on.
        """
        began_s = now_s()
        expired = self.scheduler.expire()
        plan = self.scheduler.plan()
        if plan is None:
            return self._news(expired) if expired else None
        result = self.run(plan)
        if self.meter is not None:
            self.meter.see(plan, result)
        progress = self.scheduler.commit(result)
        self.steps += 1
        self._step_seconds += result.seconds
        news = self._news((*expired, *progress.deltas))
        self._loop_seconds += now_s() - began_s
        return news

    def run(self, plan: StepPlan) -> StepResult:
        """Compute a planned step."""
        return self.runner.run(self.structured.attach(plan))

    def wait_s(self) -> float | None:
        """Seconds after which `step` may do more without any event; None: never."""
        return self.scheduler.next_wakeup_s()

    def stats(self, ask_id: int = 0) -> Stats:
        """Counters and gauges by name; see `engine/outputs.EngineStats`."""
        now, counts = self.scheduler.stats(), self._counts
        prefix = now.prefix
        counters: dict[str, float] = {
            "steps": self.steps,
            "prompt_tokens": prefix.query_tokens,
            "cached_prompt_tokens": prefix.hit_tokens,
            "preemptions": now.preemptions,
            "evictions": prefix.evictions,
            "slot_steps": now.slot_steps,
            "wasted_slot_steps": now.wasted_slot_steps,
            "late_results": now.late_results,
            "generated_tokens": counts["generated_tokens"],
            "numeric_errors": counts["numeric_errors"],
            "requests_added": counts["requests_added"],
            "step_seconds": self._step_seconds,
            "loop_seconds": self._loop_seconds,
            "program_seconds": self.runner.program_s,
            "grammar_mask_seconds": self.structured.mask_seconds,
        }
        counters |= self.structured.counts
        if self.meter is not None:
            counters |= self.meter.counters()
        if self.scheduler.drafts.is_on:
            counters |= self.scheduler.drafts.counts
            counters["draft_faults"] = self.runner.num_draft_faults
        counters |= {f"finished_{reason.value}": counts[reason.value] for reason in FinishReason}
        counters |= {f"prefix_{outcome.value}": count for outcome, count in prefix.outcomes}
        gauges: dict[str, float] = {
            "running": now.running,
            "waiting": now.waiting,
            "waiting_tokens": now.queued_tokens,
            "blocks_total": self._sizes.num_blocks,
            "blocks_free": now.blocks_free,
            "blocks_held": now.blocks_held,
            "blocks_evictable": now.blocks_cached,
            "slots": self._sizes.num_slots,
            "weight_bytes": self._sizes.weight_bytes,
            "kv_bytes": self._sizes.kv_bytes,
        }
        if self.meter is not None:
            gauges |= self.meter.gauges()
        return Stats(ask_id=ask_id, counters=counters, gauges=gauges)

    def check(self) -> None:
        """Verify every invariant of the bookkeeping.

        Raises:
            InvariantError: names what does not add up.
        """
        self.scheduler.check()

    def close(self) -> None:
        """Stop the backend's threads and free its memory."""
        self.structured.close()
        self._close()

    def _queue(self, requests: tuple[Request, ...], *, is_held: bool) -> None:
        domain = self._kv_domain(len(requests[0].prompt_ids))
        if domain:
            requests = tuple(replace(r, kv_domain=domain) for r in requests)
        self.scheduler.add_group(requests, is_held=is_held)
        self._counts["requests_added"] += 1

    def _news(self, deltas: Iterable[Delta]) -> News:
        kept, num_tokens = self.structured.settle(deltas), 0
        for delta in kept:
            num_tokens += len(delta.new_ids)
            if delta.finish is None:
                continue
            num_tokens += sum(len(b.token_ids) for b in delta.beams)
            self._counts[delta.finish.value] += 1
            if delta.error is not None and not delta.error_kind:  # other kinds are no fault of numbers
                self._counts["numeric_errors"] += 1
        self._counts["generated_tokens"] += num_tokens
        return News(step=self.steps, deltas=kept)
