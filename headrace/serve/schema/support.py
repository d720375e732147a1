"""What of OpenAI's documented fields is not supported, and the values that ask for nothing.

A field of this table passes only with a value that has no effect; any other value is refused by name.
Together with the models of this folder, which refuse unknown fields, nothing that is asked for is silently
ignored.
"""

import difflib
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from headrace.base.errors import RequestError

SHARED_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "prompt_cache_options": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
}
"""Unsupported on every endpoint of OpenAI's."""

VLLM_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "detokenize": (None, True),
    "kv_transfer_params": (None,),
    "return_tokens_as_token_ids": (None, False),
    "spaces_between_special_tokens": (None, True),
    "stream_interval": (None, 1),
    "truncation_side": (None, "left"),
    "vllm_xargs": (None,),
}
"""Fields of vLLM, unsupported on both completion endpoints."""

CHAT_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **SHARED_NEUTRAL,
    **VLLM_NEUTRAL,
    "add_special_tokens": (None, False),
    "audio": (None,),
    "chat_template": (None,),
    "documents": (None, []),
    "echo": (None, False),
    "function_call": (None, "none"),
    "functions": (None, []),
    "modalities": (None, ["text"]),
    "moderation": (None,),
    "prediction": (None,),
    "verbosity": (None, "medium"),
    "web_search_options": (None,),
}
"""Unsupported on `/v1/chat/completions`, with the values that ask for nothing."""

COMPLETION_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **SHARED_NEUTRAL,
    **VLLM_NEUTRAL,
    "add_special_tokens": (None, True),
    "prompt_embeds": (None,),
    "suffix": (None, ""),
}
"""Unsupported on `/v1/completions`, with the values that ask for nothing."""

MESSAGES_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "container": (None,),
    "diagnostics": (None,),
    "inference_geo": (None,),
    "service_tier": (None, "auto", "standard_only"),
    "speed": (None, "standard"),
    "user_profile_id": (None,),
    "workspace_id": (None,),
}
"""Unsupported on `/v1/messages`, with the values that ask for nothing."""

RESPONSES_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **SHARED_NEUTRAL,
    "access_programs": (None,),
    "background": (None, False),
    "background_options": (None,),
    "context_management": (None, []),
    "conversation": (None,),
    "image": (None,),
    "max_tool_calls": (None,),
    "moderation": (None,),
    "previous_response_id": (None,),
    "prompt": (None,),
    "truncation": (None, "disabled"),
}
"""Unsupported on `/v1/responses`, with the values that ask for nothing."""

LABELS = ("user", "metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention")
"""Documented fields that name the caller or hint at caching: accepted, they change no answer."""


class StrictBody(BaseModel):
    """A body whose types are not converted and whose unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, protected_namespaces=(), hide_input_in_errors=True)
    counted_by_hand: ClassVar[frozenset[str]] = frozenset()
    """Fields that `bounds` leaves alone: the model looks at no more of them than it may."""


def content_kind(value: object) -> str:
    """The tag of content that is a text or a list of parts."""
    return "text" if isinstance(value, str) else "parts"


def drop_neutral(body: Mapping[str, Any], neutral: Mapping[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The body without unsupported fields.

    Raises:
        RequestError: an unsupported field has a value with an effect.
    """
    kept: dict[str, Any] = {}
    for name, value in body.items():
        if name not in neutral:
            kept[name] = value
        elif not any(type(value) is type(v) and value == v for v in neutral[name]):
            allowed = ", ".join(repr(v) for v in neutral[name])
            raise RequestError(
                f"{name} is not supported yet; leave it out (values without effect: {allowed})", param=name
            )
    return kept


@contextmanager
def renamed(names: Mapping[str, str]) -> Generator[None]:
    """Errors about a field get the name that the caller used for it.

    Args:
        names: from the name in an error to the name in the caller's body.
    """
    try:
        yield
    except RequestError as err:
        if err.param is None or err.param not in names:
            raise
        name = names[err.param]
        rest = err.message.removeprefix(err.param)
        message = f"{name}: {rest}" if rest == err.message else f"{name}{rest}"
        raise type(err)(message, param=name) from err


def to_request_error(error: ValidationError, known: Iterable[str]) -> RequestError:
    """The first problem pydantic found, with the field's name and, for an unknown one, the nearest known."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    path = [str(part) for part in first["loc"]]
    name = path[0] if path else None
    if first["type"] == "extra_forbidden" and len(path) == 1:
        near = difflib.get_close_matches(path[0], list(known), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return RequestError(f"unknown field {path[0][:100]!r}{hint}", param=path[0][:100])
    where = ".".join(path)[:200]
    said = f"{first['msg']:.500}"  # it quotes a tag that the caller sent
    return RequestError(f"{where}: {said}" if where else said, param=name and name[:100])
