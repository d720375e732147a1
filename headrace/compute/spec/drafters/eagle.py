"""A layer of its own that goes on from the target's features (`heads/eagle`).

    tokens      t0  t1  t2  t3  |  d0  d1          t3 is drawn and not computed yet
    features        f0  f1  f2  |  g   g'          those of the target, then the layer's own
    places          0   1   2   |  3   4           place i: feature of token i with token i + 1

Keys and values of the places lie in a plane beside the target's. What the target has computed waits until
drafts are wanted, or until there is too much of it, and is then taken in; places that were computed from the
layer's own features are computed again from the target's. Blocks of the prefix cache hold the places of
whoever computed them; where texts part within a place, that costs a draft at most.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from headrace.base.tasks import MAX_DEPTH
from headrace.compute.ops.api import F32, I32, ForwardContext, Program
from headrace.compute.runner.work import token_bytes
from headrace.compute.spec.draw import DraftDraws, Place
from headrace.compute.spec.heads.eagle import load_eagle
from headrace.compute.spec.kit import CATCH_UP, DraftKit
from headrace.compute.spec.proposer import Ask, Needs
from headrace.compute.spec.states import Seen


@dataclass(slots=True)
class _Waiting:
    """Tokens of a sequence that the target has computed, and their features, not taken in yet."""

    start: int = 0
    """Position of the first."""
    ids: list[I32] = field(default_factory=list[I32])
    features: list[tuple[F32, ...]] = field(default_factory=list[tuple[F32, ...]])
    count: int = 0

    @property
    def end(self) -> int:
        """Position after the last."""
        return self.start + self.count


@dataclass(frozen=True, slots=True)
class _Span:
    """Places [start, start + len(ids)) of a slot: the tokens after them, and their features."""

    slot: int
    start: int
    ids: I32
    features: tuple[F32, ...]


class Eagle:
    """See the module's page.

    Args:
        kit: whose source is the folder of the heads.

    Raises:
        CheckpointError: the heads are broken or not for this target.
    """

    needs = Needs.BLOCKS | Needs.HIDDEN
    most = MAX_DEPTH

    def __init__(self, kit: DraftKit) -> None:
        target, backend = kit.target, kit.backend
        self._state = kit.state
        shared = kit.shared()
        heads = load_eagle(Path(kit.source), backend, shared, self._state.tokens.shape[1])
        geometry = kit.pool.geometry
        self._pool = kit.add_plane(heads.geometry(geometry.block_size, geometry.dtype))
        self._first = backend.compile(heads.first, kit.limits, self._pool)
        self._further = backend.compile(heads.further, kit.limits, self._pool)
        self._limits = kit.limits
        self._draws = DraftDraws(kit.state.sampling, backend, target.spec.vocab_size, heads.tokens)
        self._waiting: dict[int, _Waiting] = {}
        self.taps = heads.taps
        self.weight_bytes = heads.weight_bytes
        self.bytes_read = 0
        self._pass_bytes, self._token_bytes = heads.pass_bytes, token_bytes(self._pool.geometry)

    def begin(self, slot: int) -> None:
        """Forget the slot."""
        self._waiting[slot] = _Waiting()

    def end(self, slot: int) -> None:
        """Free what waits."""
        self._waiting.pop(slot, None)

    def observe(self, seen: Seen) -> None:
        """Let what the target computed wait; take in what is too much."""
        full: list[_Span] = []
        for row in seen.rows:
            waiting = self._waiting.get(row.slot)
            if waiting is None:
                continue
            here = slice(row.first, row.first + row.count)
            if not waiting.count or waiting.end != row.start:
                waiting = self._waiting[row.slot] = _Waiting(row.start)
            waiting.ids.append(seen.token_ids[here].copy())
            waiting.features.append(tuple(values[here].copy() for values in seen.kept))
            waiting.count += row.count
            if waiting.count > CATCH_UP:
                full += self._take(row.slot, waiting, None)
        for spans in self._packed(full):
            self._run(self._first, spans, wants_last=False)

    def propose(self, asks: Sequence[Ask]) -> list[list[int]]:
        """Drafts of each ask, one after the other; none where features are missing."""
        drafts: list[list[int]] = [[] for _ in asks]
        known = [int(self._state.num_tokens[ask.slot]) for ask in asks]
        spans: list[_Span] = []
        todo: list[int] = []
        for i, ask in enumerate(asks):
            waiting = self._waiting.get(ask.slot)
            if waiting is not None and waiting.count and waiting.end == known[i] - 1:
                last = self._state.tokens[ask.slot, known[i] - 1 : known[i]]
                spans += self._take(ask.slot, waiting, last)
                todo.append(i)
        program = self._first
        while todo:
            logits = self._run(program, spans, wants_last=True)
            features = program.kept[0].copy()
            drawn = self._draws.draw([Place(asks[i].slot, drafts[i], known[i]) for i in todo], logits)
            left: list[int] = []
            further: list[_Span] = []
            for row, (i, token) in enumerate(zip(todo, drawn, strict=True)):
                if token is None:
                    continue
                drafts[i].append(token)
                if len(drafts[i]) < asks[i].most:
                    left.append(i)
                    further.append(_next(spans[row], token, features[row : row + 1]))
            todo, spans, program = left, further, self._further
        return drafts

    def _take(self, slot: int, waiting: _Waiting, last: I32 | None) -> list[_Span]:
        """What waits as one span; without a `last` token the last feature goes on waiting."""
        ids = np.concatenate(waiting.ids)
        features = tuple(np.concatenate(values) for values in zip(*waiting.features, strict=True))
        start = waiting.start
        if last is None:
            self._waiting[slot] = _Waiting(waiting.end - 1, [ids[-1:]], [tuple(f[-1:] for f in features)], 1)
            return [_Span(slot, start, ids[1:], tuple(f[:-1] for f in features))]
        self._waiting[slot] = _Waiting()
        return [_Span(slot, start, np.concatenate([ids[1:], last]), features)]

    def _packed(self, spans: list[_Span]) -> list[list[_Span]]:
        """Spans in passes of no more tokens and rows than the limits allow; long ones are cut."""
        passes: list[list[_Span]] = []
        room = 0
        for span in spans:
            at = 0
            while at < len(span.ids):
                if not room or len(passes[-1]) == self._limits.max_rows:
                    passes.append([])
                    room = self._limits.max_tokens
                here = slice(at, min(len(span.ids), at + room))
                features = tuple(f[here] for f in span.features)
                passes[-1].append(_Span(span.slot, span.start + at, span.ids[here], features))
                room -= here.stop - at
                at = here.stop
        return passes

    def _run(self, program: Program, spans: Sequence[_Span], *, wants_last: bool) -> F32:
        """Logits of the last place of each span, where they are wanted."""
        context = self._context(spans, wants_last=wants_last)
        self.bytes_read += self._pass_bytes + int(context.key_len.sum()) * self._token_bytes
        return program.run(context)

    def _context(self, spans: Sequence[_Span], *, wants_last: bool) -> ForwardContext:
        slots = np.array([span.slot for span in spans], np.intp)
        counts = np.array([len(span.ids) for span in spans], np.int32)
        starts = np.array([span.start for span in spans], np.int32)
        query_start = np.zeros(len(spans) + 1, np.int32)
        np.cumsum(counts, out=query_start[1:])
        row_of = np.repeat(np.arange(len(spans), dtype=np.int32), counts)
        positions = np.arange(query_start[-1], dtype=np.int32) + (starts - query_start[:-1])[row_of]
        width = int(self._state.num_blocks[slots].max())
        given = zip(*(span.features for span in spans), strict=True)
        return ForwardContext(
            token_ids=np.concatenate([span.ids for span in spans]),
            positions=positions,
            row_of=row_of,
            query_start=query_start,
            key_len=starts + counts,
            tables=np.ascontiguousarray(self._state.tables[slots, :width]),
            rope_rows=positions,
            logit_rows=query_start[1:] - 1 if wants_last else np.empty(0, np.int32),
            kv=self._pool,
            given=tuple(np.concatenate(values) for values in given),
        )


def _next(span: _Span, token: int, feature: F32) -> _Span:
    """The place after a span: its token is a draft, its feature [1, width] the layer's own."""
    return _Span(span.slot, span.start + len(span.ids), np.array([token], np.int32), (feature,))


DRAFTER = Eagle
