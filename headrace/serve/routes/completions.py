"""`POST /v1/completions`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.step import TokenLogprobs
from headrace.engine.outputs import ChoiceDelta, RequestOutput
from headrace.serve.answering import Answering
from headrace.serve.collect import WholeChoice, WholeRequest
from headrace.serve.described.choices import CompletionAnswer
from headrace.serve.endpoint import GENERATES, About, Endpoint
from headrace.serve.limits import read_json
from headrace.serve.schema.answers import Envelope
from headrace.serve.schema.completion import CompletionBody, Prompt
from headrace.serve.schema.logprobs import completion_logprobs, prompt_logprobs, token_width
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import COMPLETION_NEUTRAL
from headrace.serve.state import Served, new_id, served


@dataclass(frozen=True, slots=True)
class CompletionShape:
    """Choices of a completion: text, after the prompt's text when it is echoed."""

    body: CompletionBody
    prompts: Sequence[Prompt]
    state: Served
    offsets: dict[int, int] = field(default_factory=dict[int, int])
    """Characters of each streamed choice's tokens so far."""

    def opening(self, index: int, prompt: int, output: RequestOutput) -> list[dict[str, Any]]:
        """The prompt, when it is echoed; its facts, when they were asked for."""
        choice = _choice(index, "")
        if self.body.return_token_ids:
            choice["prompt_token_ids"] = list(output.prompt_ids)
        if output.prompt_logprobs is not None and self.body.prompt_logprobs is not None:
            choice["prompt_logprobs"] = prompt_logprobs(output.prompt_logprobs, self.state.vocabulary)
        if self.body.echo:
            choice["text"] = self._prompt_text(prompt, output.prompt_ids)
            if output.prompt_logprobs is not None:
                tokens = _echoed(output.prompt_ids, output.prompt_logprobs)
                choice["logprobs"] = self._logprobs(tokens, index)
        return [choice] if len(choice) > 5 or choice["text"] else []

    def delta(self, index: int, prompt: int, delta: ChoiceDelta) -> dict[str, Any]:
        """New text."""
        del prompt
        choice = _choice(index, delta.text, delta.finish_reason, delta.stop_reason)
        if delta.logprobs:
            choice["logprobs"] = self._logprobs(delta.logprobs, index)
        if self.body.return_token_ids:
            choice["token_ids"] = list(delta.token_ids)
        return choice

    def failed(self, index: int) -> dict[str, Any]:
        """An end without text."""
        return _choice(index, "", "error")

    def whole(self, index: int, prompt: int, request: WholeRequest, choice: WholeChoice) -> dict[str, Any]:
        """The whole text."""
        made = _choice(index, "".join(choice.text), choice.finish_reason, choice.stop_reason)
        tokens: list[TokenLogprobs | int] = list(choice.logprobs)
        if self.body.echo:
            made["text"] = self._prompt_text(prompt, request.prompt_ids) + made["text"]
            if request.prompt_logprobs is not None and self.body.logprobs is not None:
                tokens = [*_echoed(request.prompt_ids, request.prompt_logprobs), *tokens]
        if self.body.logprobs is not None:
            made["logprobs"] = self._logprobs(tokens, index)
        if request.prompt_logprobs is not None and self.body.prompt_logprobs is not None:
            made["prompt_logprobs"] = prompt_logprobs(request.prompt_logprobs, self.state.vocabulary)
        if self.body.return_token_ids:
            made["token_ids"] = choice.token_ids
            made["prompt_token_ids"] = list(request.prompt_ids)
        return made

    def extras(self, requests: Sequence[WholeRequest]) -> dict[str, Any]:
        """Nothing: facts about prompts are in the choices, as there may be several prompts."""
        del requests
        return {}

    def _prompt_text(self, prompt: int, ids: Sequence[int]) -> str:
        given = self.prompts[prompt]
        if isinstance(given, str) and self.body.truncate_prompt_tokens is None:
            return given
        return self.state.tokenizer.decode(ids, skip_special=False)

    def _logprobs(self, tokens: Sequence[TokenLogprobs | int], index: int) -> dict[str, Any]:
        offset = self.offsets.get(index, 0)
        made = completion_logprobs(tokens, self.state.vocabulary, offset, self.body.logprobs or 0)
        ids = (t if isinstance(t, int) else t.token_id for t in tokens)
        self.offsets[index] = offset + sum(token_width(i, self.state.vocabulary) for i in ids)
        return made


async def create(request: Request) -> Response:
    """Continue one or several prompts."""
    state = served(request)
    state.admit()
    raw = await read_json(request, state.config.max_body_bytes)
    body = validate(CompletionBody, raw, COMPLETION_NEUTRAL)
    state.check_model(body.model)
    params = body.params(state.llm.defaults)
    prompts = body.prompts(state.llm.max_model_len)
    envelope = Envelope.completion(new_id(request, body.request_id), state.model_name)
    names = [envelope.id if len(prompts) == 1 else f"{envelope.id}-{n}" for n in range(len(prompts))]
    outputs = [
        state.running.track(
            envelope.id,
            name,
            state.llm.generate(
                prompt,
                params,
                request_id=name,
                salt=body.cache_salt or "",
                priority=body.priority or 0,
                part_of=envelope.id if len(prompts) > 1 else "",
            ),
        )
        for name, prompt in zip(names, prompts, strict=True)
    ]
    answering = Answering(
        served=state,
        body=body,
        shape=CompletionShape(body, prompts, state),
        envelope=envelope,
        num_choices=params.n,
    )
    return await answering.respond(request, outputs)


def _choice(
    index: int, text: str, finish_reason: str | None = None, stop_reason: int | str | None = None
) -> dict[str, Any]:
    return {
        "index": index,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
        "stop_reason": stop_reason,
    }


def _echoed(ids: Sequence[int], values: Sequence[TokenLogprobs | None]) -> list[TokenLogprobs | int]:
    return [i if value is None else value for i, value in zip(ids, values, strict=True)]


ABOUT = About(
    body=CompletionBody, neutral=COMPLETION_NEUTRAL, answer=CompletionAnswer, streams=True, errors=GENERATES
)
ROUTES = (Endpoint("/v1/completions", create, "POST", ABOUT),)
