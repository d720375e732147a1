"""`POST /v1/chat/completions`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.engine.outputs import ChoiceDelta, RequestOutput
from headrace.serve.answering import Answering
from headrace.serve.collect import WholeChoice, WholeRequest
from headrace.serve.conversation import ask
from headrace.serve.described.choices import ChatAnswer
from headrace.serve.endpoint import GENERATES, About, Endpoint
from headrace.serve.limits import read_json
from headrace.serve.schema.answers import Envelope
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.logprobs import Vocabulary, chat_logprobs, prompt_logprobs
from headrace.serve.schema.parts import delta_fields, message_fields
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import CHAT_NEUTRAL
from headrace.serve.state import new_id, served


@dataclass(frozen=True, slots=True)
class ChatShape:
    """Choices of a chat answer: a role first, then content."""

    body: ChatBody
    vocabulary: Vocabulary

    def opening(self, index: int, prompt: int, output: RequestOutput) -> list[dict[str, Any]]:
        """The role."""
        del prompt
        is_split = any(delta.parts is not None for delta in output.choices)
        choice = _choice(index, {"role": "assistant", "content": None if is_split else ""})
        if self.body.return_token_ids and index == 0:
            choice["prompt_token_ids"] = list(output.prompt_ids)
        return [choice]

    def delta(self, index: int, prompt: int, delta: ChoiceDelta) -> dict[str, Any]:
        """New content."""
        del prompt
        content = {"content": delta.text} if delta.text else {}
        new = content if delta.parts is None else delta_fields(delta.parts)
        choice = _choice(index, new, delta.finish_reason)
        if delta.logprobs:
            choice["logprobs"] = chat_logprobs(delta.logprobs, self.vocabulary)
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        if self.body.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return choice

    def failed(self, index: int) -> dict[str, Any]:
        """An end without content."""
        return _choice(index, {}, "error")

    def whole(self, index: int, prompt: int, request: WholeRequest, choice: WholeChoice) -> dict[str, Any]:
        """A message."""
        del prompt, request
        content = {"content": "".join(choice.text)}
        said = content if choice.parts is None else message_fields(choice.parts.message())
        made: dict[str, Any] = {
            "index": index,
            "message": {"role": "assistant", **said, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs, self.vocabulary) if self.body.logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop_reason,
        }
        if self.body.return_token_ids:
            made["token_ids"] = choice.token_ids
        return made

    def extras(self, requests: Sequence[WholeRequest]) -> dict[str, Any]:
        """Facts about the prompt, when they were asked for."""
        made: dict[str, Any] = {}
        if requests[0].prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(requests[0].prompt_logprobs, self.vocabulary)
        if self.body.return_token_ids:
            made["prompt_token_ids"] = list(requests[0].prompt_ids)
        return made


async def create(request: Request) -> Response:
    """Answer a conversation."""
    state = served(request)
    state.admit()
    raw = await read_json(request, state.config.max_body_bytes)
    body = validate(ChatBody, raw, CHAT_NEUTRAL)
    envelope = Envelope.chat(new_id(request, body.request_id), state.model_name)
    outputs, params = await ask(state, body, envelope.id)
    shape = ChatShape(body, state.vocabulary)
    answering = Answering(served=state, body=body, shape=shape, envelope=envelope, num_choices=params.n)
    return await answering.respond(request, [outputs])


def _choice(index: int, delta: dict[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}


ABOUT = About(body=ChatBody, neutral=CHAT_NEUTRAL, answer=ChatAnswer, streams=True, errors=GENERATES)
ROUTES = (Endpoint("/v1/chat/completions", create, "POST", ABOUT),)
