"""`POST /v1/responses`: OpenAI's second form of a conversation. Nothing is stored between requests."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.request import SamplingParams
from headrace.serve.conversation import ask
from headrace.serve.described.blocks import ResponseAnswer
from headrace.serve.dialects.blocks import Speaking
from headrace.serve.dialects.responses import ResponseSpelling
from headrace.serve.endpoint import GENERATES, About, Endpoint
from headrace.serve.limits import read_json
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.responses import RENAMED, ResponsesBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import CHAT_NEUTRAL, RESPONSES_NEUTRAL, renamed
from headrace.serve.state import new_id, served


async def create(request: Request) -> Response:
    """Answer a text or a conversation."""
    state = served(request)
    state.admit()
    raw = await read_json(request, state.config.max_body_bytes)
    body = validate(ResponsesBody, raw, RESPONSES_NEUTRAL)
    name = new_id(request, body.request_id)
    with renamed(RENAMED):
        chat = validate(ChatBody, body.to_chat(), CHAT_NEUTRAL)
        outputs, params = await ask(state, chat, f"resp_{name}")
    asked = _asked(body, params) | {"model": state.model_name}
    spelling = ResponseSpelling(name=name, asked=asked, vocabulary=state.vocabulary)
    speaking = Speaking(
        served=state,
        spelling=spelling,
        stream=bool(body.stream),
        headers={},
        names=RENAMED,
        timings=bool(body.timings),
    )
    return await speaking.respond(request, outputs)


def _asked(body: ResponsesBody, params: SamplingParams) -> dict[str, Any]:
    """What the answer repeats of the request, defaults filled in."""
    given = body.model_dump(by_alias=True, exclude_none=True)
    text = {"format": {"type": "text"}} | given.get("text", {})
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": None,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": None, "summary": None} | given.get("reasoning", {}),
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": False,
        "temperature": params.temperature,
        "text": text,
        "tool_choice": given.get("tool_choice", "auto"),
        "tools": given.get("tools", []),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


ABOUT = About(
    body=ResponsesBody, neutral=RESPONSES_NEUTRAL, answer=ResponseAnswer, streams=True, errors=GENERATES
)
ROUTES = (Endpoint("/v1/responses", create, "POST", ABOUT),)
