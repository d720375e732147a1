"""Whether it is worth while that a late drafter reads what it has not read of a sequence.

A draft model computes a sequence's tokens before it drafts for it: the prompt, and all that was drawn while
nothing was drafted. The price of a step with drafts recurs and this does not, so it is held against other
things: against what is left of the answer, and, where drafts are only tried, against all time so far.
"""

SHARE = 0.01
"""Of all time so far, what reading for tries may take that came to nothing."""
WORTH = 0.25
"""Of the seconds that the rest of an answer takes without drafts, what reading for it may take."""


class Reading:
    """Seconds of reading, measured."""

    def __init__(self) -> None:
        self.is_on = False
        """Rows wait for a drafter that reads: what was chosen for them holds until it drafts."""
        self.plain_s = 0.0
        """Seconds of the last step without drafts; 0: there was none."""
        self._seconds = self._vain_s = self._total_s = 0.0
        self._tokens = 0

    def observe(self, seconds: float, draft_s: float, num_drafts: int, *, is_reading: bool) -> None:
        """A step is over, which made drafts or read for them."""
        self.book(seconds, draft_s if is_reading else 0.0)
        self.is_on = is_reading  # rows that wait are read for in every step that only decodes
        if not (is_reading or num_drafts):
            self.plain_s = seconds

    def book(self, seconds: float, read_s: float) -> None:
        """A step of any kind is over, of which reading took `read_s`."""
        self._total_s += seconds
        self._seconds += read_s
        self._vain_s += read_s

    def catch_up(self, seconds: float) -> None:
        """Tokens were read within a step that drafted, which took so much longer."""
        self._seconds += max(0.0, seconds)

    @property
    def is_known(self) -> bool:
        """Whether anything was read so far."""
        return self._tokens > 0

    def may_try(self, cost_s: float) -> bool:
        """Whether to read for so long to find out about drafts of which little is hoped."""
        return self._vain_s + cost_s <= SHARE * self._total_s

    def learn(self, tokens: int) -> None:
        """So many tokens were read before a row was drafted for."""
        self._tokens += tokens

    def repay(self) -> None:
        """Drafts were checked for long: what was read was not in vain."""
        self._vain_s = 0.0

    def cost_s(self, tokens: int) -> float:
        """Seconds that reading so many tokens takes; nothing, as long as nothing is known."""
        return tokens * self._seconds / self._tokens if self._tokens else 0.0

    def is_worth(self, tokens: int, left: int, *, is_try: bool) -> bool:
        """Whether `tokens` may be read for a sequence with at most `left` tokens to come."""
        cost_s = self.cost_s(tokens)
        if not self.plain_s:
            return True
        if cost_s > WORTH * left * self.plain_s:
            return False
        return not is_try or self.may_try(cost_s)
