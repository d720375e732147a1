"""`/v1/files`: input files of batches, and their results."""

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.types import Message, Receive, Scope, Send

from headrace.base.errors import NotFoundError, RequestError
from headrace.base.terms import caller_terms
from headrace.serve.batches.form import read_form
from headrace.serve.batches.listing import FILES_QUERY, cut, read_page
from headrace.serve.described.batches import FileAnswer, FileDeleted, FileList
from headrace.serve.endpoint import ASKS, READS, About, Endpoint
from headrace.serve.faults import fault_response, json_response
from headrace.serve.limits import read_body
from headrace.serve.state import served


class RangeError(RequestError):
    """The file has no such bytes."""

    http_status = 416
    code = "range_not_satisfiable"


class Content(FileResponse):
    """A file, or a range of it; a range that cannot be had is an error in the shape of all errors."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        refused: Message | None = None

        async def told(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start" and message["status"] >= 400:
                refused = message
            if refused is None:
                await send(message)

        await super().__call__(scope, receive, told)
        if refused is not None:
            await _refusal(refused, scope["path"])(scope, receive, send)


def _refusal(start: Message, path: str) -> Response:
    fault = RequestError("the header Range is malformed; send bytes=FIRST-LAST", param="Range")
    if start["status"] == 416:
        fault = RangeError("the file is shorter than what the header Range asks for", param="Range")
    response = fault_response(fault, path)
    for name, value in start["headers"]:
        if name == b"content-range":  # how long the file is
            response.headers["content-range"] = value.decode("latin-1")
    return response


async def upload(request: Request) -> Response:
    """Keep a file of requests: multipart/form-data with the parts purpose (batch) and file."""
    worker = served(request).batch_worker
    body = await read_body(request, worker.config.max_file_bytes)
    kind = request.headers.get("content-type", "")
    fields, name, content = await asyncio.to_thread(read_form, kind, body)
    if fields.pop("purpose", None) != "batch":
        raise RequestError("purpose must be batch: files serve batches only", param="purpose")
    if fields:
        unknown = min(fields)
        raise RequestError(f"unknown field {unknown!r}; the form has purpose and file", param=unknown)
    owner = caller_terms().tenant.name
    return json_response(shown(await asyncio.to_thread(worker.store.add_file, content, name, owner)))


async def list_files(request: Request) -> Response:
    """Files of this key, newest first."""
    store, page = served(request).batch_worker.store, read_page(request, FILES_QUERY)
    found = await asyncio.to_thread(store.owned, "file", caller_terms().tenant.name)
    return json_response(cut([shown(f) for f in found], page))


async def get_file(request: Request) -> Response:
    """What a file is."""
    return json_response(shown(await _found(request)))


async def get_content(request: Request) -> Response:
    """The content of a file, read from the disk as it is sent."""
    name = (await _found(request))["id"]
    path = served(request).batch_worker.store.content_path(name)
    try:
        about = await asyncio.to_thread(path.stat)
    except FileNotFoundError:  # it was deleted, or is a result whose batch is just ending
        raise NotFoundError(f"file {name!r} has no content here", param="file_id") from None
    return Content(path, stat_result=about, media_type="application/jsonl")


async def delete(request: Request) -> Response:
    """Forget a file; a batch that still reads it ends with an error for what is left."""
    name = (await _found(request))["id"]
    await asyncio.to_thread(served(request).batch_worker.store.delete_file, name)
    return json_response({"id": name, "object": "file", "deleted": True})


async def _found(request: Request) -> dict[str, Any]:
    store, name = served(request).batch_worker.store, request.path_params["name"]
    return await asyncio.to_thread(store.get, "file", name, caller_terms().tenant.name)


def shown(document: dict[str, Any]) -> dict[str, Any]:
    """A document of the store as clients see it."""
    return {key: value for key, value in document.items() if key != "owner"}


ROUTES = (
    Endpoint("/v1/files", upload, "POST", About(answer=FileAnswer, errors=(*READS, 429))),
    Endpoint("/v1/files", list_files, "GET", About(answer=FileList, query=FILES_QUERY, errors=(400, *ASKS))),
    Endpoint("/v1/files/{name}", get_file, "GET", About(answer=FileAnswer)),
    Endpoint("/v1/files/{name}", delete, "DELETE", About(answer=FileDeleted)),
    Endpoint(
        "/v1/files/{name}/content",
        get_content,
        "GET",
        About(media_type="application/jsonl", errors=(400, *ASKS, 416)),
    ),
)
