"""`POST /v1/embeddings`."""

import asyncio
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.errors import AbortedError
from headrace.engine.outputs import EmbeddingResult
from headrace.serve.described.choices import EmbeddingAnswer
from headrace.serve.endpoint import GENERATES, About, Endpoint
from headrace.serve.faults import CancelledRequestError, DrainingError, json_response
from headrace.serve.limits import read_json
from headrace.serve.schema.completion import Prompt
from headrace.serve.schema.embedding import EmbeddingBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import renamed
from headrace.serve.state import Served, new_id, served
from headrace.serve.stream import while_connected

MAX_IN_FLIGHT = 32
"""Inputs of a request that the engine has at a time: a long list fills no queue and starves nobody."""


async def create(request: Request) -> Response:
    """Vectors of one or several inputs."""
    state = served(request)
    state.admit()
    body = validate(EmbeddingBody, await read_json(request, state.config.max_body_bytes))
    state.check_model(body.model)
    inputs = body.inputs(state.llm.max_model_len)
    work = Embedding(state, body, f"embd-{new_id(request, body.request_id)}")
    results = await while_connected(request, work.run(inputs))
    tokens = sum(result.usage.prompt_tokens for result in results)
    return json_response(
        {
            "id": work.name,
            "object": "list",
            "model": state.model_name,
            "data": [
                {"object": "embedding", "index": i, "embedding": body.spell(result.embedding)}
                for i, result in enumerate(results)
            ],
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
    )


class Embedding:
    """The inputs of one HTTP request on their way: at most `MAX_IN_FLIGHT` at a time.

    Args:
        state: the server.
        body: what was asked.
        name: the request's id; its inputs are `NAME-0`, `NAME-1` and so on.
    """

    def __init__(self, state: Served, body: EmbeddingBody, name: str) -> None:
        self.name = name
        self._state = state
        self._llm = state.llm
        self._running = state.running
        self._body = body
        self._kind = body.kind()

    async def run(self, inputs: Sequence[Prompt]) -> list[EmbeddingResult]:
        """Results in the order of the inputs; when one fails, or the task is cancelled, all are aborted.

        Raises:
            HeadraceError: an input was refused or failed.
        """
        results: dict[int, EmbeddingResult] = {}
        todo = iter(enumerate(inputs))

        async def work() -> None:
            for i, prompt in todo:
                results[i] = await self._one(i, prompt)

        tasks = [asyncio.create_task(work()) for _ in range(min(MAX_IN_FLIGHT, len(inputs)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [results[i] for i in range(len(inputs))]

    async def _one(self, number: int, prompt: Prompt) -> EmbeddingResult:
        body = self._body
        name = f"{self.name}-{number}"
        try:
            with renamed({"prompt": "input"}), self._running.entered(self.name, name):
                output = await self._llm.embed(
                    prompt,
                    self._kind,
                    request_id=name,
                    salt=body.cache_salt or "",
                    priority=body.priority or 0,
                    part_of=self.name,
                )
        except AbortedError as error:
            if self._state.draining:
                raise DrainingError("the server is stopping and has cut the request") from error
            raise CancelledRequestError("the request was cancelled before its answer was complete") from error
        return EmbeddingResult.of(output, normalize=body.normalize is not False)


ABOUT = About(body=EmbeddingBody, neutral={"dimensions": (None,)}, answer=EmbeddingAnswer, errors=GENERATES)
ROUTES = (Endpoint("/v1/embeddings", create, "POST", ABOUT),)
