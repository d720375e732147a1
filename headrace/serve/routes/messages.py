"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's API."""

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.conversation import ask, prompt_ids
from headrace.serve.described.blocks import MessageAnswer, TokensCount
from headrace.serve.dialects.blocks import Speaking
from headrace.serve.dialects.messages import MessageSpelling
from headrace.serve.endpoint import GENERATES, READS, About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.limits import read_json
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.messages import CountTokensBody, MessagesBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import CHAT_NEUTRAL, MESSAGES_NEUTRAL, renamed
from headrace.serve.state import new_id, served


async def create(request: Request) -> Response:
    """Answer a conversation."""
    state = served(request)
    state.admit()
    raw = await read_json(request, state.config.max_body_bytes)
    body = validate(MessagesBody, raw, MESSAGES_NEUTRAL)
    name = f"msg_{new_id(request, body.request_id)}"
    with renamed(body.renamed):
        chat = validate(ChatBody, body.to_chat(), CHAT_NEUTRAL)
        outputs, _ = await ask(state, chat, name)
    spelling = MessageSpelling(id=name, model=state.model_name, max_tokens=body.max_tokens)
    speaking = Speaking(
        served=state,
        spelling=spelling,
        stream=bool(body.stream),
        headers={"request-id": name},
        names=body.renamed,
        timings=bool(body.timings),
    )
    return await speaking.respond(request, outputs)


async def count_tokens(request: Request) -> Response:
    """The tokens of a conversation, counted off the event loop."""
    state = served(request)
    raw = await read_json(request, state.config.max_body_bytes)
    body = validate(CountTokensBody, raw, MESSAGES_NEUTRAL)
    with renamed(body.renamed):
        chat = validate(ChatBody, body.to_chat(), CHAT_NEUTRAL)
        ids = await prompt_ids(state, chat)
    return json_response({"input_tokens": len(ids)})


ROUTES = (
    Endpoint(
        "/v1/messages",
        create,
        "POST",
        About(
            body=MessagesBody,
            neutral=MESSAGES_NEUTRAL,
            answer=MessageAnswer,
            streams=True,
            errors=(*GENERATES, 499),
        ),
    ),
    Endpoint(
        "/v1/messages/count_tokens",
        count_tokens,
        "POST",
        About(body=CountTokensBody, neutral=MESSAGES_NEUTRAL, answer=TokensCount, errors=READS),
    ),
)
