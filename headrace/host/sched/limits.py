"""The bounds that the scheduler keeps, resolved to concrete values."""

from dataclasses import dataclass

from headrace.base.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleLimits:
    """Concrete scheduling bounds.

    Raises:
        ConfigError: a bound is not positive.
    """

    max_num_seqs: int = 64
    """Slots: sequences that run together."""
    max_num_batched_tokens: int = 512
    """Tokens of one step."""
    chunked_prefill: bool = True
    """Split prompts over steps; else each runs whole, alone when it exceeds the token budget."""
    prefill_step_s: float = 0.2
    """Longest step, in seconds, that prefill may cause while others decode (chunked prefill only)."""
    max_queued_requests: int = 1024
    """Sequences that may wait beyond the free slots."""
    max_queued_tokens: int = 1_000_000
    """Prompt tokens that may wait beyond the free slots."""
    max_model_len: int = 1 << 30
    """Tokens of one sequence, prompt and output."""
    max_queue_s: float | None = None
    """Longest wait for a first step, in seconds; None: no bound."""
    ageing_s: float = 10.0
    """Seconds of waiting that a level of priority is worth."""
    max_background_seqs: int = 4
    """Slots that the background may have."""

    def __post_init__(self) -> None:
        """Refuse bounds under which nothing could run."""
        for name in ("max_num_seqs", "max_num_batched_tokens", "prefill_step_s", "max_model_len"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"schedule.{name} must be positive, got {getattr(self, name)}")
        if not self.ageing_s >= 0:
            raise ConfigError(f"schedule.priority_ageing_s must not be negative, got {self.ageing_s}")
        for name in ("max_queued_requests", "max_queued_tokens"):
            if getattr(self, name) < 0:
                raise ConfigError(f"schedule.{name} must not be negative, got {getattr(self, name)}")
