"""Bodies of answers: plain dictionaries with OpenAI's fields, vendor fields (vLLM's names) at the end."""

from dataclasses import dataclass
from typing import Any

from headrace.base.clock import unix_s
from headrace.engine.outputs import Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What every piece of one answer repeats."""

    id: str
    model: str
    created: int
    kind: str
    """`object` of the whole answer."""
    chunk_kind: str
    """`object` of a streamed piece."""

    @classmethod
    def chat(cls, name: str, model: str) -> "Envelope":
        """The envelope of a chat answer; `name` is the request's id."""
        return cls(
            id=f"chatcmpl-{name}",
            model=model,
            created=int(unix_s()),
            kind="chat.completion",
            chunk_kind="chat.completion.chunk",
        )

    @classmethod
    def completion(cls, name: str, model: str) -> "Envelope":
        """The envelope of a completion answer; `name` is the request's id."""
        return cls(
            id=f"cmpl-{name}",
            model=model,
            created=int(unix_s()),
            kind="text_completion",
            chunk_kind="text_completion",
        )

    def whole(self, choices: list[dict[str, Any]], usage: Usage, seed: int) -> dict[str, Any]:
        """The whole answer; `seed` is the one used."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "usage": usage_body(usage),
            "seed": seed,
        }

    def chunk(self, choices: list[dict[str, Any]], usage: Usage | None = None) -> dict[str, Any]:
        """A streamed piece."""
        body: dict[str, Any] = {
            "id": self.id,
            "object": self.chunk_kind,
            "created": self.created,
            "model": self.model,
            "choices": choices,
        }
        if usage is not None:
            body["usage"] = usage_body(usage)
        return body


def draft_counts(usage: Usage) -> dict[str, int]:
    """Drafts of speculation under OpenAI's names for predictions; empty: none was checked."""
    if not (usage.accepted_drafts or usage.rejected_drafts):
        return {}
    return {
        "accepted_prediction_tokens": usage.accepted_drafts,
        "rejected_prediction_tokens": usage.rejected_drafts,
    }


def usage_body(usage: Usage) -> dict[str, Any]:
    """`usage`: the prompt counted once, completions summed over choices; drafts where some were checked."""
    drafts = draft_counts(usage)
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        **({"completion_tokens_details": drafts} if drafts else {}),
    }
