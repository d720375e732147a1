"""Anthropic's spelling of an answer: content blocks, named events, stop reasons.

| the engine's end | `stop_reason` |
|---|---|
| `stop` by a stop string | `stop_sequence` |
| `stop` otherwise | `end_turn` |
| `tool_calls` | `tool_use` |
| `length`, as many tokens as `max_tokens` | `max_tokens` |
| `length`, fewer | `model_context_window_exceeded` |
| `abort` | none: the API knows no such end, it is an error |
"""

from dataclasses import dataclass
from typing import Any

import msgspec

from headrace.base.errors import HeadraceError
from headrace.engine.outputs import Usage
from headrace.serve.dialects.blocks import Block, Change, Closed, Opened, Reply
from headrace.serve.faults import CancelledRequestError, message_error_body
from headrace.serve.schema.answers import draft_counts
from headrace.serve.stream import named_event


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpelling:
    """One answer of `/v1/messages`."""

    id: str
    model: str
    max_tokens: int

    def begin(self, reply: Reply) -> list[bytes]:
        """`message_start`."""
        return [self._event("message_start", message=self._message([], reply.usage, None, None))]

    def change(self, change: Change) -> list[bytes]:
        """`content_block_start`, `content_block_delta`, `content_block_stop`."""
        index = change.block.index
        if isinstance(change, Opened):
            block = _block(
                Block(
                    kind=change.block.kind, index=index, call_id=change.block.call_id, name=change.block.name
                )
            )
            return [self._event("content_block_start", index=index, content_block=block)]
        if isinstance(change, Closed):
            return [self._event("content_block_stop", index=index)]
        if not change.text:
            return []
        kind, name = _DELTAS[change.block.kind]
        return [self._event("content_block_delta", index=index, delta={"type": kind, name: change.text})]

    def end(self, reply: Reply) -> list[bytes]:
        """`message_delta`, `message_stop`; an error where the answer was aborted."""
        try:
            reason, sequence = self._stop(reply)
        except HeadraceError as err:
            return self.failed(reply, err)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        told = {"usage": message_usage(reply.usage), **_timings(reply)}
        return [self._event("message_delta", delta=delta, **told), self._event("message_stop")]

    def failed(self, reply: Reply, error: HeadraceError) -> list[bytes]:
        """`error`, after which nothing comes."""
        del reply
        return [named_event("error", message_error_body(error))]

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The message.

        Raises:
            CancelledRequestError: the answer was aborted.
        """
        reason, sequence = self._stop(reply)
        body = self._message([_block(b) for b in reply.blocks], reply.usage, reason, sequence)
        return body | _timings(reply)

    def _message(
        self, content: list[dict[str, Any]], usage: Usage, reason: str | None, sequence: str | None
    ) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": sequence,
            "usage": message_usage(usage),
        }

    def _stop(self, reply: Reply) -> tuple[str, str | None]:
        if reply.finish_reason == "stop" and isinstance(reply.stop_reason, str):
            return "stop_sequence", reply.stop_reason
        if reply.finish_reason == "length":
            is_full = reply.usage.completion_tokens < self.max_tokens
            return ("model_context_window_exceeded" if is_full else "max_tokens"), None
        if reply.finish_reason in {"abort", "error"}:
            raise CancelledRequestError("the request was cancelled before its answer was complete")
        return ("tool_use" if reply.finish_reason == "tool_calls" else "end_turn"), None

    def _event(self, kind: str, **fields: Any) -> bytes:
        return named_event(kind, {"type": kind, **fields})


def _timings(reply: Reply) -> dict[str, Any]:
    """Headrace's own field, where it was asked for."""
    return {} if reply.timings is None else {"timings": reply.timings}


def message_usage(usage: Usage) -> dict[str, int]:
    """Anthropic's counts: `input_tokens` are those that the prefix cache did not hold. Drafts are ours."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        **draft_counts(usage),
    }


_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


def _block(block: Block) -> dict[str, Any]:
    if block.kind == "call":
        return {"type": "tool_use", "id": block.call_id, "name": block.name, "input": _input(block.text)}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    return {"type": "text", "text": block.text}


def _input(arguments: str) -> dict[str, Any]:
    """A call's arguments; what a length limit cut in the middle is no object, and {} here."""
    try:
        return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError:  # also what is valid JSON, but no object
        return {}
