"""Counts of a body, checked before its values are: validation must not work on what is refused anyway.

A validator reports every problem it finds; a body of a million wrong items would hold up the event loop for
seconds. So what it looks into is measured first.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from headrace.base.errors import RequestError
from headrace.base.request import MAX_ID_LIST, MAX_STOP_STRINGS
from headrace.host.text.tools.definitions import MAX_TOOLS

MAX_KEYS = 128
"""Fields of an object whose fields are known."""
MAX_KEY_CHARS = 256
MAX_MESSAGES = 4096
MAX_PARTS = 4096
"""Parts and tool calls of all messages together."""

LIST_LIMITS: Mapping[str, int] = {
    "stop": MAX_STOP_STRINGS,
    "logit_bias": MAX_ID_LIST,
    "allowed_token_ids": MAX_ID_LIST,
    "stop_token_ids": MAX_ID_LIST,
    "bad_words": MAX_ID_LIST,
    "messages": MAX_MESSAGES,
    "input": MAX_MESSAGES,
    "tools": MAX_TOOLS,
    "system": MAX_PARTS,
    "stop_sequences": MAX_STOP_STRINGS,
    "metadata": 64,
    "chat_template_kwargs": 64,
}
TEXT_LIMITS: Mapping[str, int] = dict.fromkeys(
    ("request_id", "cache_salt", "model", "user", "reasoning_effort"), 256
)


def check_bounds(body: Mapping[str, Any], counted_by_hand: Collection[str] = ()) -> None:
    """Measure a body, but for the lists named in `counted_by_hand`.

    Raises:
        RequestError: something has more entries or characters than its limit; `param` names it.
    """
    _check_keys("the body", body)
    for name, limit in LIST_LIMITS.items():
        value = body.get(name)
        if isinstance(value, (list, dict)) and name not in counted_by_hand:
            _check_count(name, len(cast("Sequence[Any]", value)), limit, "entries")
    for name, limit in TEXT_LIMITS.items():
        value = body.get(name)
        if isinstance(value, str):
            _check_count(name, len(value), limit, "characters")
    _check_keys("stream_options", body.get("stream_options"))
    for name in ("messages", "input"):
        messages = body.get(name)
        if isinstance(messages, list) and name not in counted_by_hand:
            _check_messages(name, cast("list[Any]", messages))


def _check_messages(where: str, messages: Sequence[Any]) -> None:
    parts = 0
    for message in messages:
        if not isinstance(message, dict):
            continue
        fields = cast("dict[str, Any]", message)
        _check_keys(where, fields)
        for name in ("content", "tool_calls", "annotations", "output", "summary"):
            value = fields.get(name)
            if isinstance(value, list):
                items = cast("list[Any]", value)
                parts += len(items)
                _check_count(where, parts, MAX_PARTS, "parts and tool calls")
                for item in items:
                    _check_keys(where, item)
                    inner = cast("dict[str, Any]", item).get("content") if isinstance(item, dict) else None
                    if isinstance(inner, list):  # a result of a tool is a message in a message
                        parts += len(cast("list[Any]", inner))
                        _check_count(where, parts, MAX_PARTS, "parts and tool calls")


def _check_keys(name: str, value: object) -> None:
    if not isinstance(value, dict):
        return
    keys = cast("dict[str, Any]", value)
    _check_count(name, len(keys), MAX_KEYS, "fields")
    longest = max(map(len, keys), default=0)
    if longest > MAX_KEY_CHARS:
        raise RequestError(
            f"{name}: a field's name has {longest} characters, limit {MAX_KEY_CHARS}", param=_param(name)
        )


def _check_count(name: str, count: int, limit: int, what: str) -> None:
    if count > limit:
        raise RequestError(f"{name} has {count} {what}, limit {limit}", param=_param(name))


def _param(name: str) -> str | None:
    return None if " " in name else name
