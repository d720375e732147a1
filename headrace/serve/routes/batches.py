"""`/v1/batches`: files of requests that are answered in the background."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from headrace.base.clock import unix_s
from headrace.base.errors import RequestError
from headrace.base.terms import caller_terms
from headrace.serve.batches.lines import check_lines
from headrace.serve.batches.listing import BATCHES_QUERY, cut, read_page
from headrace.serve.batches.store import OPEN
from headrace.serve.batches.worker import Worker
from headrace.serve.described.batches import BatchAnswer, BatchDeleted, BatchList
from headrace.serve.endpoint import ASKS, READS, About, Endpoint
from headrace.serve.faults import json_response
from headrace.serve.limits import read_json
from headrace.serve.routes.files import shown
from headrace.serve.schema.batch import BatchBody
from headrace.serve.schema.sampling import validate
from headrace.serve.state import served

MOMENTS = ("in_progress", "finalizing", "completed", "failed", "cancelling", "cancelled", "expires")


async def create(request: Request) -> Response:
    """Answer the requests of a file in the background."""
    state = served(request)
    state.admit()
    worker, owner = state.batch_worker, caller_terms().tenant.name
    body = validate(BatchBody, await read_json(request, state.config.max_body_bytes))
    made = await asyncio.to_thread(_make, worker, body, owner)
    worker.wake()
    return json_response(shown(made))


async def list_batches(request: Request) -> Response:
    """Batches of this key, newest first."""
    store, page = served(request).batch_worker.store, read_page(request, BATCHES_QUERY)
    found = await asyncio.to_thread(store.owned, "batch", caller_terms().tenant.name)
    return json_response(cut([shown(b) for b in found], page))


async def get_batch(request: Request) -> Response:
    """How far a batch is."""
    return json_response(shown(await _found(request)))


async def cancel(request: Request) -> Response:
    """End a batch; what is answered stays."""
    worker = served(request).batch_worker
    found = await worker.cancel(request.path_params["name"], caller_terms().tenant.name)
    return json_response(shown(found))


async def delete(request: Request) -> Response:
    """Forget a batch that has ended; its files stay."""
    found = await _found(request)
    if found["status"] in OPEN:
        raise RequestError(
            f"the batch is {found['status']}; cancel it, and delete it when it has ended", param="batch_id"
        )
    await asyncio.to_thread(served(request).batch_worker.store.delete_batch, found["id"])
    return json_response({"id": found["id"], "object": "batch", "deleted": True})


def _make(worker: Worker, body: BatchBody, owner: str) -> dict[str, Any]:
    store = worker.store
    content = store.content(store.get("file", body.input_file_id, owner)["id"])
    count, problems = check_lines(content, body.endpoint, worker.config.max_lines)
    about: dict[str, Any] = {
        "endpoint": body.endpoint,
        "input_file_id": body.input_file_id,
        "completion_window": body.completion_window or "24h",
        "status": "failed" if problems else "validating",
        "errors": {"object": "list", "data": [p.as_json() for p in problems]} if problems else None,
        "output_file_id": None,
        "error_file_id": None,
        **{f"{moment}_at": None for moment in MOMENTS},
        "request_counts": {"total": count, "completed": 0, "failed": 0},
        "metadata": body.metadata,
    }
    if problems:
        about |= {"failed_at": int(unix_s()), "expires_at": store.end_of_results()}
    return store.add_batch(about, owner)


async def _found(request: Request) -> dict[str, Any]:
    store, name = served(request).batch_worker.store, request.path_params["name"]
    return await asyncio.to_thread(store.get, "batch", name, caller_terms().tenant.name)


ROUTES = (
    Endpoint(
        "/v1/batches", create, "POST", About(body=BatchBody, answer=BatchAnswer, errors=(*READS, 429, 503))
    ),
    Endpoint(
        "/v1/batches", list_batches, "GET", About(answer=BatchList, query=BATCHES_QUERY, errors=(400, *ASKS))
    ),
    Endpoint("/v1/batches/{name}", get_batch, "GET", About(answer=BatchAnswer)),
    Endpoint("/v1/batches/{name}", delete, "DELETE", About(answer=BatchDeleted, errors=(400, *ASKS))),
    Endpoint("/v1/batches/{name}/cancel", cancel, "POST", About(answer=BatchAnswer)),
)
