"""`/tokenize` and `/detokenize`: request bodies, in vLLM's shapes."""

from typing import Annotated, Any

from pydantic import FailFast

from headrace.base.errors import RequestError
from headrace.serve.schema.chat import Message
from headrace.serve.schema.support import StrictBody


class TokenizeBody(StrictBody):
    """Body of `/tokenize`: a prompt, or a conversation."""

    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Exactly one of prompt and messages.

        Raises:
            RequestError: none, or both, or conversation fields with a prompt.
        """
        if (self.prompt is None) == (self.messages is None):
            raise RequestError("give exactly one of prompt and messages", param="prompt")
        for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
            if self.prompt is not None and getattr(self, name) is not None:
                raise RequestError(f"{name} belongs to messages, not to prompt", param=name)

    def num_bytes(self) -> int:
        """Bytes of what is to be tokenized."""
        if self.prompt is not None:
            return len(self.prompt.encode("utf-8", "replace"))
        return sum(m.num_bytes() for m in self.messages or [])


class DetokenizeBody(StrictBody):
    """Body of `/detokenize`."""

    model: str | None = None
    tokens: Annotated[list[int], FailFast()]
