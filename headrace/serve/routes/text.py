"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import RequestError
from headrace.serve.conversation import prompt_ids
from headrace.serve.described.pages import PromptText, Tokens
from headrace.serve.endpoint import READS, About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.limits import read_json
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.text import DetokenizeBody, TokenizeBody
from headrace.serve.state import Served, served


async def tokenize(request: Request) -> Response:
    """Token ids of a text or a conversation, made off the event loop."""
    state = served(request)
    body = validate(TokenizeBody, await read_json(request, state.config.max_body_bytes))
    state.check_model(body.model)
    body.check()
    await state.check_room(body.num_bytes())
    if body.prompt is None:
        ids = await prompt_ids(state, _conversation(body))  # as the endpoints of conversations do
    else:
        ids = await asyncio.to_thread(_encode, state, body.prompt, body.add_special_tokens)
    made: dict[str, Any] = {"count": len(ids), "max_model_len": state.llm.max_model_len, "tokens": ids}
    made["token_strs"] = [state.tokenizer.token_text(i) for i in ids] if body.return_token_strs else None
    return json_response(made)


async def detokenize(request: Request) -> Response:
    """Text of token ids, special tokens included."""
    state = served(request)
    body = validate(DetokenizeBody, await read_json(request, state.config.max_body_bytes))
    state.check_model(body.model)
    size = state.tokenizer.vocab_size
    for token in body.tokens:
        if not 0 <= token < size:
            raise RequestError(f"token id {token} is not in [0, {size})", param="tokens")
    text = await asyncio.to_thread(state.tokenizer.decode, body.tokens, skip_special=False)
    return json_response({"prompt": text})


def _encode(state: Served, prompt: str, add_special: bool | None) -> list[int]:
    return list(state.tokenizer.encode(prompt, add_special=add_special is not False))


def _conversation(body: TokenizeBody) -> ChatBody:
    if body.add_special_tokens:
        raise RequestError(
            "add_special_tokens belongs to prompt; a chat template brings its own", param="add_special_tokens"
        )
    return ChatBody(
        messages=body.messages or [],
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )


ROUTES = (
    Endpoint("/tokenize", tokenize, "POST", About(body=TokenizeBody, answer=Tokens, errors=READS)),
    Endpoint("/detokenize", detokenize, "POST", About(body=DetokenizeBody, answer=PromptText, errors=READS)),
)
