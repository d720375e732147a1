"""Sequences that answer under a grammar: their matchers, and the masks of their rows.

A matcher follows the tokens that were committed, whatever steps they came in: a preempted sequence that comes
back goes on with its own.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import Lock

from headrace.base.clock import now_s
from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM
from headrace.base.ids import RequestId, SlotId
from headrace.base.request import Request
from headrace.base.step import Delta, StepPlan
from headrace.engine.text import NO_TOKENIZER, Text
from headrace.host.grammar.cache import MatcherCache
from headrace.host.grammar.compiler import Compiler, GrammarVocabulary
from headrace.host.grammar.masks import MaskMaker
from headrace.host.grammar.matcher import Matcher


class Structured:
    """The grammars of an engine.

    `compile` may be called by any thread, everything else by the one that makes steps.

    Args:
        text: gives the model's tokenizer and end tokens; called when the first grammar comes.
        vocab_size: rows of the model's head.
        threads: most threads that work on the masks of a step.
    """

    def __init__(self, text: Callable[[], Text], vocab_size: int, threads: int) -> None:
        self.counts = dict.fromkeys(
            ("grammars_compiled", "grammars_refused", "grammar_compile_seconds", "grammar_cache_hits"), 0.0
        )
        self._text = text
        self._vocab_size = vocab_size
        self._threads = threads
        self._lock = Lock()
        self._made: MatcherCache | None = None
        self._masks: MaskMaker | None = None
        self._by_request: dict[RequestId, Matcher] = {}
        self._ahead: dict[RequestId, int] = {}
        self.ahead_bytes = 0
        """Of matchers whose requests were queued and have not begun, about."""
        self._by_slot: dict[SlotId, Matcher] = {}

    def prepare(self) -> MatcherCache:
        """What makes matchers; the first call takes a part of a second.

        Raises:
            RequestError: the model has no tokenizer or no end token.
        """
        with self._lock:
            if self._made is None:
                text = self._text()
                if text.tokenizer is None:
                    raise RequestError(NO_TOKENIZER, param=PARAM)
                vocabulary = GrammarVocabulary(text.tokenizer, self._vocab_size, text.end_ids)
                self._made = MatcherCache(Compiler(vocabulary))
            return self._made

    def compile(self, requests: Sequence[Request]) -> tuple[Matcher, ...]:
        """A matcher for each of the requests, all of which have the same grammar.

        Raises:
            RequestError: the grammar cannot be used, or not with this model.
        """
        cache, began_s = self.prepare(), now_s()
        grammar = requests[0].sampling.structured
        try:
            made = tuple(cache.take(grammar) for _ in requests if grammar is not None)
        except RequestError:
            self.counts["grammars_refused"] += 1
            raise
        finally:
            self.counts["grammar_compile_seconds"] += now_s() - began_s
            self.counts["grammar_cache_hits"] = cache.hits
        self.counts["grammars_compiled"] += requests[0].leader is None
        return made

    def restock(self, requests: Sequence[Request]) -> None:
        """Make a matcher for the next request with the grammar of these."""
        grammar = requests[0].sampling.structured
        if grammar is not None:
            self.prepare().restock(grammar)

    def adopt(self, requests: Sequence[Request], matchers: Sequence[Matcher]) -> None:
        """These requests were queued."""
        self._by_request.update(zip((r.request_id for r in requests), matchers, strict=True))
        for request, matcher in zip(requests, matchers, strict=True):
            self._ahead[request.request_id] = matcher.num_bytes
            self.ahead_bytes += matcher.num_bytes

    def attach(self, plan: StepPlan) -> StepPlan:
        """The plan with the masks of its rows, which are made from now on."""
        if not self._by_request and not self._by_slot:
            return plan
        for slot in plan.ends:
            self._by_slot.pop(slot, None)
        for begin in plan.begins:
            matcher = self._by_request.get(begin.request.request_id)
            if matcher is not None:
                self._leave(begin.request.request_id)
                self._by_slot[begin.slot] = matcher
        rows = [row for row in plan.rows if row.sample and row.slot in self._by_slot]
        if not rows:
            return plan
        slots = [row.slot for row in rows]
        if self._masks is None:
            self._masks = MaskMaker(self.prepare().compiler.vocabulary.words, self._threads)
        return replace(plan, masks=self._masks.start(slots, [self._by_slot[slot] for slot in slots]))

    def settle(self, deltas: Iterable[Delta]) -> tuple[Delta, ...]:
        """Follow what was committed; an error says what the grammar's was."""
        if not self._by_request:
            return tuple(deltas)
        return tuple(map(self._follow, deltas))

    def close(self) -> None:
        """End the threads."""
        if self._masks is not None:
            self._masks.close()

    @property
    def mask_seconds(self) -> float:
        """Time spent on masks."""
        return 0.0 if self._masks is None else self._masks.seconds

    def _follow(self, delta: Delta) -> Delta:
        matcher = self._by_request.get(delta.request_id)
        if matcher is None:
            return delta
        if delta.finish is None:
            matcher.advance(delta.new_ids)
            return delta
        del self._by_request[delta.request_id]
        self._leave(delta.request_id)
        if delta.error is not None and not delta.error_kind and matcher.error is not None:
            text = f"the grammar cannot go on: {matcher.error}"
            kind = "RequestError" if matcher.fault is None else "HeadraceError"
            return delta._replace(error=text, error_kind=kind)
        return delta

    def _leave(self, request_id: RequestId) -> None:
        self.ahead_bytes -= self._ahead.pop(request_id, 0)
