"""Where the time of a request went, as answers tell it."""

from typing import Literal

from headrace.serve.described.errors import Described


class PartFacts(Described):
    """Seconds of one kind."""

    name: str
    seconds: float
    reason: str


class DifferingFacts(Described):
    """The text around the first token that differs: shared, the prompt's own, the cached one's."""

    before: str
    own: str
    cached: str


class PrefixFacts(Described):
    """What the prefix cache had of the prompt."""

    outcome: str
    prompt_tokens: int
    cached_tokens: int
    differs_at: int | None
    differs: DifferingFacts | None = None
    evicted_s: float | None = None


class OthersFacts(Described):
    """What another request's prompt took of the steps."""

    id: str
    seconds: float


class TimelineFacts(Described):
    """Answer of `/v1/requests/{id}/timeline`; the parts add up to `e2e_s`."""

    id: str
    object: Literal["timeline"]
    finished: bool
    e2e_s: float
    parts: list[PartFacts]
    sentence: str
    prefix: PrefixFacts | None
    others_prefill: list[OthersFacts]
    output_tokens: int
    preemptions: int


class DraftFacts(Described):
    """Why rows of the answer checked as many drafts as they did; see `DraftReport` for the fields."""

    reason: str
    sentence: str
    depth: int
    chances: list[float]
    price: float | None
    gain: float | None
    rows: int
    tokens_per_row: float | None
    accepted_by_place: list[int]
    rows_by_reason: dict[str, int]


class TimingFacts(Described):
    """`timings` of an answer, under llama-server's names; times in milliseconds, of parts in seconds."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    prompt_per_token_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_token_ms: float | None
    predicted_per_second: float | None
    queue_ms: float
    ttft_ms: float
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    drafts: DraftFacts | None = None
    e2e_s: float | None = None
    parts: list[PartFacts] | None = None
    sentence: str | None = None
