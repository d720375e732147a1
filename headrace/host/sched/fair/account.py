"""What one tenant has, and has had.

Fairness is that of virtual token counters (Sheng et al. 2024, arXiv 2401.00588): whoever has been served the
fewest tokens for its weight goes first. A token of an answer counts as two of a prompt, as there.
"""

from headrace.base.errors import OverloadError
from headrace.base.terms import Tenant

OUTPUT_WEIGHT = 2.0
MAX_RETRY_S = 60.0
KEPT = 0.5
"""Part of a tenant's tokens a minute that its background leaves to its other requests."""


class Account:
    """One tenant's counts.

    Attributes:
        tenant: its bounds; the latest ones that a request brought.
        served: tokens it was given, by its weight, apart for the background (index True); comparable between
            accounts. Apart, because who had a batch answered at night is not behind others in the morning.
        num_running, num_background: sequences that run, and how many of them are of the background.
        num_waiting: sequences that have never run, without the background.
    """

    __slots__ = ("_level", "_seen_s", "num_background", "num_running", "num_waiting", "served", "tenant")

    def __init__(self, tenant: Tenant, now_s: float) -> None:
        self.tenant = tenant
        self.served = [0.0, 0.0]
        self.num_running = self.num_background = 0
        self.num_waiting = 0
        self._level = float(tenant.tokens_per_minute or 0)
        self._seen_s = now_s

    @property
    def is_full(self) -> bool:
        """Whether no more of its sequences may run now."""
        most = self.tenant.max_running
        return most is not None and self.num_running >= most

    def give_prompt(self, num_tokens: int, *, is_background: bool = False) -> None:
        """Its sequence begins: these prompt tokens have to be computed."""
        self.served[is_background] += num_tokens / self.tenant.weight

    def give_output(self, num_tokens: int, *, is_background: bool = False) -> None:
        """Tokens were drawn for it."""
        self.served[is_background] += OUTPUT_WEIGHT * num_tokens / self.tenant.weight
        self._level -= num_tokens

    def check_allowance(self, now_s: float) -> None:
        """Whether it may spend tokens now.

        Raises:
            OverloadError: those of this minute are spent; says when there are some again.
        """
        wait_s = self.allowance_wait_s(now_s)
        if wait_s > 0:
            rate = self.tenant.tokens_per_minute or 0
            raise OverloadError(
                f"{self.tenant.name!r} may use {rate} tokens a minute (tokens_per_minute) and has used "
                f"{rate - self._level:.0f}; try again later",
                retry_after_s=min(wait_s, MAX_RETRY_S),
            )

    def allowance_wait_s(self, now_s: float, *, is_background: bool = False) -> float:
        """Seconds until it may spend tokens; 0.0: now. Its background spends down to a part of a minute's."""
        rate = self.tenant.tokens_per_minute
        if rate is None:
            return 0.0
        self._level = min(float(rate), self._level + (now_s - self._seen_s) * rate / 60)
        self._seen_s = now_s
        least = rate * KEPT if is_background else 0.0
        return 0.0 if self._level > least else (least + 1 - self._level) * 60 / rate

    def spend(self, num_tokens: int) -> None:
        """Prompt tokens were let in; they count at once, those of answers as they come."""
        self._level -= num_tokens


class Accounts:
    """The accounts by tenant; made when a tenant first asks."""

    def __init__(self) -> None:
        self._by_name: dict[str, Account] = {}

    def of(self, tenant: Tenant, now_s: float) -> Account:
        """The tenant's account, with the bounds that it has now."""
        found = self._by_name.get(tenant.name)
        if found is None:
            found = self._by_name[tenant.name] = Account(tenant, now_s)
        found.tenant = tenant
        return found
