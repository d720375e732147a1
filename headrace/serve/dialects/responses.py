"""OpenAI's responses: items instead of choices, and events with sequence numbers.

| the engine's end | `status` | last event |
|---|---|---|
| `stop`, `tool_calls` | `completed` | `response.completed` |
| `length` | `incomplete`, `incomplete_details.reason` is `max_output_tokens` | `response.incomplete` |
| `abort` | `cancelled` | `response.incomplete` |
| an error | `failed` | `error`, `response.failed` |
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from headrace.base.clock import unix_s
from headrace.base.errors import HeadraceError
from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import Usage
from headrace.serve.dialects.blocks import Block, Change, Closed, Opened, Reply
from headrace.serve.schema.answers import draft_counts
from headrace.serve.schema.logprobs import Vocabulary, chat_logprobs
from headrace.serve.stream import named_event

_STATUS = {"length": "incomplete", "abort": "cancelled", "error": "failed"}
_PREFIX = {"text": "msg", "reasoning": "rs", "call": "fc"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSpelling:
    """One answer of `/v1/responses`; `asked` is what its body repeats of the request."""

    name: str
    """The request's name, without a prefix."""
    asked: Mapping[str, Any]
    vocabulary: Vocabulary
    created: int = field(default_factory=lambda: int(unix_s()))
    numbers: Iterator[int] = field(default_factory=count)

    def begin(self, reply: Reply) -> list[bytes]:
        """`response.created`, `response.in_progress`."""
        del reply
        body = self._response("in_progress", Reply())
        return [self._event(f"response.{kind}", response=body) for kind in ("created", "in_progress")]

    def change(self, change: Change) -> list[bytes]:
        """Events of an item and of its part."""
        block = change.block
        where = {"item_id": self._id(block), "output_index": block.index}
        part = where if block.kind == "call" else where | {"content_index": 0}
        if isinstance(change, Opened):
            return self._opened(block, part)
        if isinstance(change, Closed):
            return self._closed(change, part)
        if block.kind == "text":
            delta = {"delta": change.text, "logprobs": self._logprobs(change.logprobs)}
            return [self._event("response.output_text.delta", **part, **delta)]
        kind = "function_call_arguments" if block.kind == "call" else "reasoning_text"
        return [self._event(f"response.{kind}.delta", **part, delta=change.text)]

    def end(self, reply: Reply) -> list[bytes]:
        """`response.completed` or `response.incomplete`."""
        status = self._status(reply)
        kind = "completed" if status == "completed" else "incomplete"
        return [self._event(f"response.{kind}", response=self._response(status, reply))]

    def failed(self, reply: Reply, error: HeadraceError) -> list[bytes]:
        """`error`, `response.failed`."""
        told = {"code": error.code, "message": error.message, "param": error.param}
        body = self._response("failed", reply)
        body["error"] = {"code": "server_error", "message": error.message}
        return [self._event("error", **told), self._event("response.failed", response=body)]

    def whole(self, reply: Reply) -> dict[str, Any]:
        """The response."""
        return self._response(self._status(reply), reply)

    def _opened(self, block: Block, part: dict[str, Any]) -> list[bytes]:
        item = self._item(Block(kind=block.kind, index=block.index, call_id=block.call_id, name=block.name))
        item["status"] = "in_progress"
        inner = None if block.kind == "call" else item["content"].pop()
        events = [self._event("response.output_item.added", output_index=block.index, item=item)]
        if inner is not None:
            events.append(self._event("response.content_part.added", **part, part=inner))
        return events

    def _closed(self, change: Closed, part: dict[str, Any]) -> list[bytes]:
        block = change.block
        item = self._item(block)
        if block.kind == "call":
            done = [self._event("response.function_call_arguments.done", **part, arguments=block.text)]
        else:
            told: dict[str, Any] = {"text": block.text}
            if block.kind == "text":
                told["logprobs"] = self._logprobs(block.logprobs)
            kind = "output_text" if block.kind == "text" else "reasoning_text"
            done = [
                self._event(f"response.{kind}.done", **part, **told),
                self._event("response.content_part.done", **part, part=item["content"][0]),
            ]
        return [*done, self._event("response.output_item.done", output_index=block.index, item=item)]

    def _response(self, status: str, reply: Reply) -> dict[str, Any]:
        is_over = status != "in_progress"
        return {
            "id": f"resp_{self.name}",
            "object": "response",
            "created_at": self.created,
            "completed_at": int(unix_s()) if status == "completed" else None,
            "status": status,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "output": [self._item(block) for block in reply.blocks],
            "usage": response_usage(reply.usage, reply.reasoning_tokens) if is_over else None,
            **self.asked,
            **({"seed": reply.seed} if is_over else {}),
            **({"timings": reply.timings} if reply.timings is not None else {}),
        }

    def _item(self, block: Block) -> dict[str, Any]:
        status = "incomplete" if block.is_cut else "completed"
        made: dict[str, Any] = {"id": self._id(block), "type": "message", "status": status}
        if block.kind == "call":
            made |= {"type": "function_call", "call_id": block.call_id, "name": block.name}
            return made | {"arguments": block.text}
        if block.kind == "reasoning":
            made |= {"type": "reasoning", "summary": []}
            return made | {"content": [{"type": "reasoning_text", "text": block.text}]}
        text: dict[str, Any] = {"type": "output_text", "text": block.text, "annotations": []}
        text["logprobs"] = self._logprobs(block.logprobs)
        return made | {"role": "assistant", "content": [text]}

    def _logprobs(self, tokens: "list[TokenLogprobs] | tuple[TokenLogprobs, ...]") -> list[dict[str, Any]]:
        return chat_logprobs(tokens, self.vocabulary)["content"]

    def _id(self, block: Block) -> str:
        return f"{_PREFIX[block.kind]}_{self.name}_{block.index}"

    @staticmethod
    def _status(reply: Reply) -> str:
        return _STATUS.get(reply.finish_reason or "error", "completed")

    def _event(self, kind: str, **fields: Any) -> bytes:
        return named_event(kind, {"type": kind, "sequence_number": next(self.numbers), **fields})


def response_usage(usage: Usage, reasoning: int) -> dict[str, Any]:
    """`usage` under the names of this API."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning, **draft_counts(usage)},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }
