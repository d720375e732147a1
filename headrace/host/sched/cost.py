"""What a step costs, measured while running: the scheduler's own small cost model.

    seconds of a step = D(number of decoding rows) + a * prefill tokens

D is an exponential average per power of two of rows, learned from steps that only decode; a is learned from
all steps with prefill. Estimates rise fast and fall slowly. What the model does not know (the cost of a
prompt's later tokens grows, the machine has hiccups) is covered by a margin: the share by which one step in
`_MISSED` takes longer than its estimate. So the bound on a step's time is met by all but about so many.
"""

_RISE = 0.5
_FALL = 0.1
_MAX_JUMP = 4.0
"""One slow step (a hiccup of the machine) counts as at most this many times the estimate."""
_MISSED = 0.02
"""Share of steps that may take longer than estimate plus margin."""
_MARGIN_STEP = 0.02
_MAX_MARGIN = 0.5


def _average(old: float | None, seen: float) -> float:
    if old is None:
        return seen
    seen = min(seen, old * _MAX_JUMP)
    return old + (seen - old) * (_RISE if seen > old else _FALL)


class StepCost:
    """Exponential averages of seconds per decoding step and per prefill token, and the margin over them."""

    def __init__(self) -> None:
        self.prefill_token_s: float | None = None
        self.margin = 0.1
        self._decode_s: dict[int, float] = {}

    def decode_s(self, num_rows: int) -> float:
        """Seconds of a step that decodes `num_rows` rows; 0.0 while nothing is known."""
        if num_rows == 0 or not self._decode_s:
            return 0.0
        size = num_rows.bit_length()
        return self._decode_s[min(self._decode_s, key=lambda known: (abs(known - size), -known))]

    def observe(self, seconds: float, prefill_tokens: int, num_decodes: int) -> None:
        """Learn from one step."""
        if seconds <= 0.0:
            return
        if prefill_tokens:
            decode_s = self.decode_s(num_decodes)
            if self.prefill_token_s and num_decodes:
                self._learn_margin(seconds / (decode_s + self.prefill_token_s * prefill_tokens))
            self.prefill_token_s = _average(
                self.prefill_token_s, max(seconds - decode_s, 0.0) / prefill_tokens
            )
        elif num_decodes:
            size = num_decodes.bit_length()
            self._decode_s[size] = _average(self._decode_s.get(size), seconds)

    def _learn_margin(self, ratio: float) -> None:
        """Follow the (1 - `_MISSED`) quantile of measured over estimated: up by a step, down by few."""
        move = _MARGIN_STEP if ratio > 1.0 + self.margin else -_MARGIN_STEP * _MISSED / (1.0 - _MISSED)
        self.margin = min(_MAX_MARGIN, max(0.0, self.margin + move))

    def prefill_room(self, limit_s: float, num_decodes: int, smallest: int) -> int | None:
        """Prefill tokens that keep a step with `num_decodes` decoding rows under `limit_s`.

        Args:
            limit_s: seconds.
            num_decodes: decoding rows of the step.
            smallest: what prefill gets at least, so that it makes progress.

        Returns:
            Tokens; None when nobody decodes (no bound).
        """
        return self.tokens_within(limit_s, num_decodes, smallest) if num_decodes else None

    def tokens_within(self, limit_s: float, num_decodes: int, smallest: int) -> int:
        """`prefill_room` that is bounded also when nobody decodes."""
        if not self.prefill_token_s:
            return smallest
        left_s = limit_s / (1.0 + self.margin) - self.decode_s(num_decodes)
        return max(smallest, int(left_s / self.prefill_token_s))
