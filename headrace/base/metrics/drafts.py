"""Why rows of a request checked as many drafts as they did, and what came of it."""

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from headrace.base.metrics.definitions import tokens_per_verification


class DraftReason(StrEnum):
    """What decided how many drafts a row checked; of the first two there were some."""

    PAYS = "pays"
    FIXED = "fixed"
    NO_GAIN = "no_gain"
    MEASURING = "measuring"
    NOTHING_FOUND = "nothing_found"
    SELDOM = "seldom"
    NO_ROOM = "no_room"
    READING = "reading"
    OFF = "off"
    GRAMMAR = "grammar"
    OTHER_TASK = "other_task"


NEVER = frozenset({DraftReason.OFF, DraftReason.GRAMMAR, DraftReason.OTHER_TASK})
"""Reasons that hold for a whole request."""
_TEXTS = {
    DraftReason.PAYS: "drafts that pay by what is measured",
    DraftReason.FIXED: "as many drafts as were asked for",
    DraftReason.NO_GAIN: "checking drafts would not have paid",
    DraftReason.MEASURING: "steps without drafts were due, to measure what they take",
    DraftReason.NOTHING_FOUND: "there were no drafts: nothing to draft from, or a draft model still read",
    DraftReason.SELDOM: "drafts had not paid for a while, so they were seldom asked for",
    DraftReason.NO_ROOM: "steps, blocks or the rest of the answer had no room for drafts",
    DraftReason.READING: "the draft model would have had to read too much first",
    DraftReason.OFF: "not drafted: the request switched it off",
    DraftReason.GRAMMAR: "grammar: not drafted",
    DraftReason.OTHER_TASK: "beam searches and embeddings are not drafted",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReport:
    """The drafts of a sequence, or of several that were added up."""

    rows_by_reason: tuple[tuple[DraftReason, int], ...]
    """Rows that drew a token, by what decided about their drafts; of most rows first."""
    num_rows: int = 0
    """Those that checked drafts."""
    accepted_by_place: tuple[int, ...] = ()
    """Accepted drafts by place in the row, up to the last that was ever accepted."""
    by_method: tuple[tuple[str, int, int], ...] = ()
    """Drafts checked and accepted of each method that made any."""
    depth: int = 0
    """Drafts that the row checked about which was decided last; so are the next three."""
    chances: tuple[float, ...] = ()
    """Estimated chance of acceptance of the first, second .. draft that was there."""
    price: float | None = None
    """Estimated time of a step with as many drafts as seemed best, in steps without; None: never needed."""
    gain: float | None = None
    """Tokens per second that such a step promised, over those of steps without."""

    @property
    def reason(self) -> DraftReason:
        """What decided most rows."""
        return self.rows_by_reason[0][0]

    @property
    def tokens_per_row(self) -> float | None:
        """Tokens of a row that checked drafts; None: none did."""
        return tokens_per_verification(sum(self.accepted_by_place), self.num_rows)

    def sentence(self) -> str:
        """The reason in words and figures."""
        told = _TEXTS[self.reason]
        if self.reason in NEVER:
            return told
        told = f"{told} ({self.rows_by_reason[0][1]} of {sum(n for _, n in self.rows_by_reason)} rows)"
        if self.price is not None and self.gain is not None and self.reason in _WEIGHED:
            first = f"{self.chances[0]:.2f}" if self.chances else "unknown"
            told += (
                f"; last: a step with the best number of drafts takes {self.price:.2f} x as long and "
                f"promises {self.gain:.2f} x the tokens per second, the first draft's chance is {first}"
            )
        return told

    def body(self) -> dict[str, Any]:
        """As plain data, for answers."""
        return {
            "reason": self.reason.value,
            "sentence": self.sentence(),
            "depth": self.depth,
            "chances": list(self.chances),
            "price": self.price,
            "gain": self.gain,
            "rows": self.num_rows,
            "tokens_per_row": self.tokens_per_row,
            "accepted_by_place": list(self.accepted_by_place),
            "by_method": {
                name: {"drafted": checked, "accepted": accepted} for name, checked, accepted in self.by_method
            },
            "rows_by_reason": {reason.value: count for reason, count in self.rows_by_reason},
        }


_WEIGHED = (DraftReason.PAYS, DraftReason.NO_GAIN, DraftReason.SELDOM)


def in_order(rows_by_reason: Counter[DraftReason]) -> tuple[tuple[DraftReason, int], ...]:
    """Of most rows first; equal ones in the order of `DraftReason`."""
    order = list(DraftReason)
    return tuple(sorted(rows_by_reason.items(), key=lambda item: (-item[1], order.index(item[0]))))


def added(one: DraftReport | None, other: DraftReport | None) -> DraftReport | None:
    """Both, the decisions of `other`, which ended later."""
    if one is None or other is None:
        return one or other
    rows = Counter(dict(one.rows_by_reason))
    rows.update(dict(other.rows_by_reason))
    methods: dict[str, tuple[int, int]] = {}
    for name, checked, accepted in (*one.by_method, *other.by_method):
        before = methods.get(name, (0, 0))
        methods[name] = before[0] + checked, before[1] + accepted
    places = max(len(one.accepted_by_place), len(other.accepted_by_place))
    padded = [(*r.accepted_by_place, *[0] * (places - len(r.accepted_by_place))) for r in (one, other)]
    return DraftReport(
        rows_by_reason=in_order(rows),
        num_rows=one.num_rows + other.num_rows,
        accepted_by_place=tuple(map(sum, zip(*padded, strict=True))),
        by_method=tuple((name, *counts) for name, counts in methods.items()),
        depth=other.depth,
        chances=other.chances,
        price=other.price,
        gain=other.gain,
    )
