"""A conversation on its way to the engine: what every endpoint that takes messages does with them."""

from collections.abc import AsyncIterator
from typing import NamedTuple

from headrace.base.request import SamplingParams
from headrace.engine.outputs import RequestOutput
from headrace.serve.schema.chat import ChatBody
from headrace.serve.state import Served


class Asked(NamedTuple):
    """A conversation the engine was asked to go on with; closing `outputs` aborts it."""

    outputs: AsyncIterator[RequestOutput]
    params: SamplingParams


async def ask(state: Served, body: ChatBody, request_id: str) -> Asked:
    """Ask the engine to answer a conversation; the request starts with the first output that is awaited.

    Raises:
        NotFoundError: this server does not serve the model. RequestError: a value is out of range, or fields
        contradict each other. ContextLengthError: the texts alone are too long.
    """
    state.check_model(body.model)
    params = body.params(state.llm.defaults)
    messages = [m.to_template() for m in body.messages]
    await state.check_room(sum(m.num_bytes() for m in body.messages))
    outputs = state.llm.chat(
        messages,
        params,
        request_id=request_id,
        salt=body.cache_salt or "",
        priority=body.priority or 0,
        options=body.options(),
    )
    return Asked(state.running.track(request_id, request_id, outputs), params)


async def prompt_ids(state: Served, body: ChatBody) -> list[int]:
    """The token ids of a conversation, made off the event loop.

    Raises:
        NotFoundError: this server does not serve the model. RequestError: the template refuses.
        ContextLengthError: the texts cannot fit.
    """
    state.check_model(body.model)
    messages = [m.to_template() for m in body.messages]
    await state.check_room(sum(m.num_bytes() for m in body.messages))
    return list((await state.llm.chat_prompt(messages, body.options())).ids)
