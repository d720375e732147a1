"""From a conversation to token ids, for the commands that talk with a model in this process."""

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.base.errors import RequestError


def chat_ids(llm: Any, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation; `llm` is an `engine.LLM`, which is not imported here because it is heavy.

    Raises:
        RequestError: the model brings no tokenizer, or no chat template.
    """
    if llm.tokenizer is None:
        raise RequestError("this model brings no tokenizer; name one with --tokenizer")
    return list(llm.chat_template.encode(llm.tokenizer, messages))
