"""`GET /v1/models` and `GET /v1/models/{id}`."""

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.serve.described.pages import ModelCard, ModelList
from headrace.serve.endpoint import About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.state import Served, served

_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")


async def list_models(request: Request) -> Response:
    """The one model this server has."""
    return json_response({"object": "list", "data": [_card(served(request))]})


async def show_model(request: Request) -> Response:
    """The card of a model."""
    state = served(request)
    state.check_model(request.path_params["name"])
    return json_response(_card(state))


def _card(state: Served) -> dict[str, Any]:
    """OpenAI's fields, and what applies where a request says nothing."""
    defaults = asdict(state.llm.defaults)
    return {
        "id": state.model_name,
        "object": "model",
        "created": state.created,
        "owned_by": "headrace",
        "root": state.llm.model_name,
        "parent": None,
        "max_model_len": state.llm.max_model_len,
        "default_sampling_params": {name: defaults[name] for name in _DEFAULTS},
    }


ROUTES = (
    Endpoint("/v1/models", list_models, "GET", About(answer=ModelList)),
    Endpoint("/v1/models/{name:path}", show_model, "GET", About(answer=ModelCard)),
)
