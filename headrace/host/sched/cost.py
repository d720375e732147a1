"""What a step costs, measured while running: the scheduler's own small cost model.

    seconds of a step = D(number of decoding rows) + a * prefill tokens

D is an exponential average per power of two of rows, learned from steps that only decode; a is learned from
all steps with prefill. Estimates rise fast and fall slowly, so that the bound on a step's time holds when
costs grow along a long prompt.
"""

_RISE = 0.5
_FALL = 0.1
_MAX_JUMP = 4.0
"""One slow step (a hiccup of the machine) counts as at most this many times the estimate."""


def _average(old: float | None, seen: float) -> float:
    if old is None:
        return seen
    seen = min(seen, old * _MAX_JUMP)
    return old + (seen - old) * (_RISE if seen > old else _FALL)


class StepCost:
    """Exponential averages of seconds per decoding step and per prefill token."""

    def __init__(self) -> None:
        self.prefill_token_s: float | None = None
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
            rest = max(seconds - self.decode_s(num_decodes), 0.0)
            self.prefill_token_s = _average(self.prefill_token_s, rest / prefill_tokens)
        elif num_decodes:
            size = num_decodes.bit_length()
            self._decode_s[size] = _average(self._decode_s.get(size), seconds)

    def prefill_room(self, limit_s: float, num_decodes: int, smallest: int) -> int | None:
        """Prefill tokens that keep a step with `num_decodes` decoding rows under `limit_s`.

        Args:
            limit_s: seconds.
            num_decodes: decoding rows of the step.
            smallest: what prefill gets at least, so that it makes progress.

        Returns:
            Tokens; None when nobody decodes (no bound).
        """
        if num_decodes == 0:
            return None
        if not self.prefill_token_s:
            return smallest
        return max(smallest, int((limit_s - self.decode_s(num_decodes)) / self.prefill_token_s))
