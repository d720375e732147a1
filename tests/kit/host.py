"""Random schedules on the simulated executor, compared with what each request gets alone."""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from random import Random

from headrace.base.config import ScheduleConfig
from headrace.base.ids import AdapterId, RequestId
from headrace.base.registry import Registry
from headrace.base.request import FinishReason, Request, SamplingParams
from headrace.base.step import Delta, SequenceTiming, StepPlan, StepResult, TokenLogprobs
from headrace.base.tasks import BeamSearch, Pooling, Speculation
from headrace.base.terms import Tenant, Terms
from headrace.engine.sim import SimClock, SimCost, SimExecutor, fold, logprob, pooled, solo
from headrace.host.kv.ledger import KVLedger
from headrace.host.sched.drafts.depth import Depth
from headrace.host.sched.limits import ScheduleLimits
from headrace.host.sched.scheduler import Scheduler
from headrace.host.sched.view import BatchPolicy

POLICIES: Registry = Registry("batching policy", "headrace.host.sched.policy", "POLICY")


def make_policy(name: str, **settings) -> BatchPolicy:
    return POLICIES.get(name)(ScheduleConfig(policy=name, **settings))


def make_request(name: str, prompt, max_tokens: int = 4, seed: int = 0, **more) -> Request:
    """A request; sampling fields and request fields by name."""
    sampling = {k: more.pop(k) for k in ("logprobs", "prompt_logprobs", "min_tokens") if k in more}
    return Request(
        request_id=RequestId(name),
        prompt_ids=tuple(prompt),
        sampling=SamplingParams(max_tokens=max_tokens, seed=seed, **sampling),
        **more,
    )


@dataclass
class World:
    """A scheduler on a simulated machine, with everything that came out of it."""

    num_blocks: int = 10
    block_size: int = 4
    policy: str = "continuous"
    num_drafts: int = 0
    vocab: int = 97
    prefix_cache: bool = True
    cost: SimCost = field(default_factory=lambda: SimCost(step_s=0.01))
    limits: ScheduleLimits = field(default_factory=lambda: ScheduleLimits(max_num_seqs=4))
    settings: dict = field(default_factory=dict)
    drafts: Depth | None = None

    def __post_init__(self):
        self.clock = SimClock()
        self.ledger = KVLedger(self.num_blocks, self.block_size, self.prefix_cache, self.clock.now_s)
        self.executor = SimExecutor(
            self.num_blocks,
            self.block_size,
            vocab=self.vocab,
            num_drafts=self.num_drafts,
            cost=self.cost,
            clock=self.clock,
        )
        policy = make_policy(self.policy, **self.settings)
        drafts = self.drafts
        if drafts is None and self.num_drafts:
            drafts = Depth(Speculation("scripted", self.num_drafts), 1000)
        self.scheduler = Scheduler(self.ledger, policy, self.limits, self.clock.now_s, drafts)
        self.requests: dict[str, Request] = {}
        self.tokens: defaultdict[str, tuple[int, ...]] = defaultdict(tuple)
        self.prompt_logprobs: defaultdict[str, tuple[TokenLogprobs, ...]] = defaultdict(tuple)
        self.logprobs: defaultdict[str, tuple[TokenLogprobs, ...]] = defaultdict(tuple)
        self.last: dict[str, Delta] = {}
        self.cached: dict[str, int] = {}
        self.times = defaultdict(list)
        self.plans = []
        self.flight: list[StepResult] = []

    def add(self, *requests: Request, is_held: bool = False) -> None:
        self.scheduler.add_group(requests, is_held=is_held)
        self.requests |= {r.request_id: r for r in requests}

    def timing(self, name: str) -> SequenceTiming:
        timing = self.last[name].timing
        assert timing is not None
        return timing

    def abort(self, name: str) -> None:
        self.hear(self.scheduler.finish(RequestId(name), FinishReason.ABORT))

    def hear(self, delta: Delta | None) -> None:
        if delta is None:
            return
        name = delta.request_id
        assert name not in self.last, f"{name} spoke after its end"
        self.tokens[name] += delta.new_ids
        self.logprobs[name] += delta.logprobs
        self.prompt_logprobs[name] += delta.prompt_logprobs
        if delta.new_ids:
            self.cached.setdefault(name, delta.cached_tokens)
            self.times[name].append(self.clock.now_s())
        assert delta.new_ids or delta.prompt_logprobs or delta.finish, "an empty delta"
        if delta.finish is not None:
            assert delta.timing is not None
            self.last[name] = delta

    def step(self, depth: int = 1) -> bool:
        """Plan, run, commit what is `depth` steps behind; False when nothing was planned."""
        plan = self.scheduler.plan()
        self.scheduler.check()
        if plan is not None:
            check_repeats(plan, self.plans[-1] if self.plans else None)
            self.plans.append(plan)
            self.flight.append(self.executor.run(plan))
        elif not self.flight and self.scheduler.has_steps:
            wait_s = self.scheduler.next_wakeup_s()
            assert wait_s is not None, "stalled: work, nothing planned, nothing to wait for"
            self.clock.advance(wait_s + 1e-6)
        while self.flight and (len(self.flight) >= depth or plan is None):
            for delta in self.scheduler.commit(self.flight.pop(0)).deltas:
                self.hear(delta)
            self.scheduler.check()
        return plan is not None

    def run(self, depth: int = 1, most: int = 20_000) -> None:
        while self.scheduler.has_work:
            self.step(depth)
            most -= 1
            assert most > 0, "no end in sight"

    def verify(self) -> None:
        """Everybody got what it gets alone, and nothing leaked."""
        while self.flight:
            self.scheduler.commit(self.flight.pop(0))
        self.scheduler.check()
        stats = self.scheduler.stats()
        assert (stats.waiting, stats.running, stats.queued_tokens, stats.blocks_held) == (0, 0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached == self.num_blocks
        assert set(self.last) == set(self.requests)
        for name, request in self.requests.items():
            self._verify_one(name, request)

    def _verify_one(self, name: str, request: Request) -> None:
        want, got, last = solo(request, self.vocab), self.tokens[name], self.last[name]
        timing = self.timing(name)
        assert sum(s for _, s in timing.waits) <= timing.finished_s - timing.arrival_s + 1e-6
        if isinstance(request.task, BeamSearch):
            assert got == ()
            assert bool(last.beams) == (last.finish is not FinishReason.ABORT)
            return
        if isinstance(request.task, Pooling):
            is_done = last.finish is FinishReason.STOP
            assert got == ()
            assert is_done or last.finish is FinishReason.ABORT
            assert last.pooled == (pooled(request, fold(request, request.prompt_ids)) if is_done else b"")
            return
        entries = fold(request, request.prompt_ids + want)
        known = len(request.prompt_ids)
        prompt = tuple(logprob(entries[:p], request.prompt_ids[p]) for p in range(1, known))
        if last.finish is FinishReason.ABORT:
            assert got == want[: len(got)], (name, got, want)
            assert self.prompt_logprobs[name] == prompt[: len(self.prompt_logprobs[name])]
            return
        assert got == want, (name, got, want)
        is_stop = got[-1] in request.end_ids and len(got) > request.sampling.min_tokens
        assert last.finish is (FinishReason.STOP if is_stop else FinishReason.LENGTH)
        assert last.stop_id == (got[-1] if is_stop else None)
        if request.sampling.logprobs is not None:
            assert self.logprobs[name] == tuple(logprob(entries[: known + i], t) for i, t in enumerate(got))
        if request.sampling.prompt_logprobs is not None:
            assert self.prompt_logprobs[name] == prompt


def check_repeats(plan: StepPlan, before: StepPlan | None) -> None:
    """What a plan says about the step before is so."""
    if plan.repeats is None:
        return
    assert before is not None
    assert (plan.ends, plan.begins) == ((), ())
    rows = [replace(row, new_blocks=(), swapped=()) for row in plan.rows]
    assert rows == [replace(row, start=row.start + 1, new_blocks=(), swapped=()) for row in before.rows]
    assert {i for i, row in enumerate(plan.rows) if row.new_blocks or row.swapped} <= set(plan.repeats)


@dataclass(frozen=True)
class Case:
    """The fixed part of a random schedule."""

    policy: str = "continuous"
    block_size: int = 2
    num_blocks: int = 10
    budget: int = 6
    num_drafts: int = 0
    depth: int = 1
    chunked: bool = True
    max_num_seqs: int = 4


TERMS = (
    *[Terms()] * 6,
    Terms(tenant=Tenant(name="a", weight=2.0, max_running=2)),
    Terms(tenant=Tenant(name="b", priority=-1)),
    Terms(is_background=True),
    Terms(tenant=Tenant(name="a", weight=2.0, max_running=2), is_background=True),
    Terms(tenant=Tenant(name="d", tokens_per_minute=900), is_background=True),
    Terms(tenant=Tenant(name="c", priority=1, kv_share=0.6), is_background=True),
    Terms(tenant=Tenant(name="c", priority=1, kv_share=0.6)),
)


def random_request(rng: Random, name: str, vocab: int, capacity: int) -> Request | None:
    stem = [i % 2 for i in range(12)]
    head = stem[: rng.randrange(12)] if rng.random() < 0.6 else []
    prompt = head + [rng.randrange(2) for _ in range(rng.randrange(1, 6))]
    max_tokens = rng.randrange(1, 9)
    if len(prompt) + max_tokens - 1 > capacity:
        return None
    if rng.random() < 0.15:
        return make_request(name, prompt, 1, task=rng.choice(list(Pooling)), priority=rng.choice([0, 1]))
    return make_request(
        name,
        prompt,
        max_tokens,
        seed=rng.randrange(3),
        end_ids=frozenset({0} if rng.random() < 0.3 else ()),
        min_tokens=rng.randrange(min(3, max_tokens + 1)),
        salt=rng.choice(["", "", "", "s"]),
        adapter=rng.choice([None, None, None, AdapterId("a")]),
        kv_domain=rng.choice(["", "", "", "long"]),
        priority=rng.choice([0, 0, 0, -1, 1]),
        terms=rng.choice(TERMS if 2 * (len(prompt) + max_tokens) <= capacity else TERMS[:-2]),
        logprobs=rng.choice([None, 0]),
        prompt_logprobs=0 if rng.random() < 0.3 else None,
    )


def choices(request: Request, num: int, rng: Random) -> list[Request]:
    """`num` siblings of a request, with seeds of their own."""
    found = [request]
    for i in range(1, num):
        sampling = request.sampling
        found.append(
            make_request(
                f"{request.request_id}.{i}",
                request.prompt_ids,
                sampling.max_tokens or 1,
                seed=100 + i,
                leader=request.request_id,
                end_ids=request.end_ids,
                salt=request.salt,
                adapter=request.adapter,
                kv_domain=request.kv_domain,
                terms=request.terms,
                priority=request.priority + rng.choice([0, 0, 0, -1]),
                min_tokens=sampling.min_tokens,
            )
        )
    return found


def run_case(case: Case, rng: Random) -> World:
    """Drive random arrivals, aborts and stops through the real scheduler; check after every step."""
    vocab = 3
    limits = ScheduleLimits(
        max_num_seqs=case.max_num_seqs,
        max_num_batched_tokens=case.budget,
        chunked_prefill=case.chunked,
        max_background_seqs=2,
    )
    world = World(
        num_blocks=case.num_blocks,
        block_size=case.block_size,
        policy=case.policy,
        num_drafts=case.num_drafts,
        vocab=vocab,
        limits=limits,
        settings={"dynamic_size": 3, "dynamic_window_ms": 40.0},
        cost=SimCost(step_s=0.01, prefill_token_s=0.02, propose_s=0.003),
    )
    todo = [
        random_request(rng, f"r{i}", vocab, world.ledger.capacity_tokens) for i in range(rng.randrange(1, 9))
    ]
    held: list[list[RequestId]] = []  # groups whose grammar is not there yet
    while any(todo) or world.scheduler.has_work:
        if todo and rng.random() < 0.5:
            request = todo.pop()
            if request is not None:
                most = [1, 1, 1, 2, 4] if request.task is None else [1]
                group = choices(request, rng.choice(most), rng)
                held += [[r.request_id for r in group]] if (is_held := rng.random() < 0.25) else []
                world.add(*group, is_held=is_held)
        if held and rng.random() < 0.3:
            world.scheduler.let_go(held.pop(rng.randrange(len(held))))
        if rng.random() < 0.06 and world.requests:
            world.abort(rng.choice(sorted(world.requests)))
        if world.scheduler.has_steps:
            world.step(case.depth)
        assert len(world.plans) < 3000, "no progress"
    world.verify()
    return world


def crowded_prompt() -> World:
    """A prompt whose log-probabilities are wanted is thrown out half-way by an older sequence that grows."""
    limits = ScheduleLimits(max_num_seqs=4, max_num_batched_tokens=2)
    world = World(num_blocks=20, block_size=1, limits=limits)
    world.add(make_request("old", [1], max_tokens=16, seed=3))
    world.step()
    world.add(make_request("new", range(12), max_tokens=2, prompt_logprobs=0))
    world.run()
    world.verify()
    assert world.last["new"].num_preempted > 0
    return world
