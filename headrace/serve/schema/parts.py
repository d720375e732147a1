"""Content, reasoning and tool calls in OpenAI's spelling."""

from collections.abc import Sequence
from typing import Any

from headrace.host.text.parts.events import Call, CallArguments, CallBegin, Content, Message, Part, Reasoning


def message_fields(message: Message) -> dict[str, Any]:
    """Fields of a whole message: content is null where there is only something else."""
    is_other = bool(message.calls or message.reasoning)
    fields: dict[str, Any] = {"content": message.content or (None if is_other else "")}
    if message.reasoning:
        fields["reasoning_content"] = message.reasoning
    if message.calls:
        fields["tool_calls"] = [_call(call) for call in message.calls]
    return fields


def delta_fields(parts: Sequence[Part]) -> dict[str, Any]:
    """Fields of a streamed delta: id, type and name of a call once, arguments as they come."""
    fields: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        match part:
            case Content(text):
                fields["content"] = fields.get("content", "") + text
            case Reasoning(text):
                fields["reasoning_content"] = fields.get("reasoning_content", "") + text
            case CallBegin(index, call_id, name):
                function = {"name": name, "arguments": ""}
                calls[index] = {"index": index, "id": call_id, "type": "function", "function": function}
            case CallArguments(index, text):
                call = calls.setdefault(index, {"index": index, "function": {"arguments": ""}})
                call["function"]["arguments"] += text
            case _:
                pass
    if calls:
        fields["tool_calls"] = list(calls.values())
    return fields


def _call(call: Call) -> dict[str, Any]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
