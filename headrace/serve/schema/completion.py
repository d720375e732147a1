"""`/v1/completions`: the request body."""

from typing import Annotated, Any, cast

from pydantic import WithJsonSchema

from headrace.base.errors import ContextLengthError, RequestError
from headrace.base.request import MAX_CHOICES, SamplingParams
from headrace.serve.schema.sampling import SamplingBody, needs

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this endpoint."""

Prompt = str | list[int]
_IDS = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
_MANY = {"type": "array", "minItems": 1, "items": {"anyOf": [{"type": "string"}, _IDS]}}
AnyPrompts = Annotated[Any, WithJsonSchema({"anyOf": [{"type": "string"}, _IDS, _MANY]})]
"""A text, a list of texts, token ids, or a list of lists of ids: checked by hand, as it may be long."""


class CompletionBody(SamplingBody):
    """Body of `/v1/completions`. `prompt` is checked by `prompts`, item by item, after its length."""

    model_config = needs("prompt")

    prompt: AnyPrompts = None
    echo: bool | None = None
    logprobs: int | None = None

    def params(self, defaults: SamplingParams) -> SamplingParams:
        """The sampling parameters; the prompt's log-probabilities come along when it is echoed with them.

        Raises:
            RequestError: a value is out of range.
        """
        limit = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        made = {"max_tokens": limit, "logprobs": self.logprobs}
        params = self.to_params(defaults, **made)
        if self.echo and self.logprobs is not None:
            asked = max(self.logprobs, self.prompt_logprobs or 0)
            params = self.model_copy(update={"prompt_logprobs": asked}).to_params(defaults, **made)
        return params

    def prompts(self, max_ids: int) -> list[Prompt]:
        """The prompts: a text, a list of texts, a list of ids, or a list of lists of ids.

        Args:
            max_ids: the context limit; a longer list of ids is refused before its items are looked at.

        Raises:
            RequestError: none of these, or too many.
        """
        given = self.prompt
        if isinstance(given, str):
            return [given]
        if not isinstance(given, list) or not given:
            raise RequestError(
                "prompt must be a text, a list of texts, a list of token ids, or a list of such lists",
                param="prompt",
            )
        items = cast("list[Any]", given)
        if _is_id(items[0]):
            return [self._token_ids(items, max_ids)]
        each = max(self.n or 1, self.best_of or 1)
        total = len(items) * each
        if total > MAX_CHOICES:
            raise RequestError(
                f"{len(items)} prompts with n={each} make {total} choices, limit {MAX_CHOICES}; send "
                f"them in several requests",
                param="prompt",
            )
        return [item if isinstance(item, str) else self._token_ids(item, max_ids) for item in items]

    def _token_ids(self, value: Any, max_ids: int) -> list[int]:
        kept = self.truncate_prompt_tokens
        if isinstance(value, list) and kept is not None:
            value = cast("list[Any]", value)[-(kept if kept > 0 else max_ids) :]
        return token_ids(value, max_ids)


def token_ids(value: Any, max_ids: int, param: str = "prompt") -> list[int]:
    """A list of token ids.

    Args:
        value: what was given.
        max_ids: the context limit; a longer list is refused before its items are looked at.
        param: the field's name.

    Raises:
        RequestError: something else, or empty, or too long.
    """
    if not isinstance(value, list) or not value:
        raise RequestError(f"each {param} must be a text or a list of token ids", param=param)
    items = cast("list[Any]", value)
    if len(items) > max_ids:
        raise ContextLengthError(
            f"{param} has {len(items)} tokens, the context limit is {max_ids}; shorten it", param=param
        )
    if not all(_is_id(item) for item in items):
        raise RequestError(f"{param}: token ids must be integers in [0, 2**31)", param=param)
    return items


def _is_id(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
