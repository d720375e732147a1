"""What tests of the worker share: a scripted application, a batch on disk, the server around it."""

import asyncio
import json
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from headrace.base.config import BatchConfig
from headrace.base.terms import Tenant, Terms, caller_terms
from headrace.serve.batches.call import Border
from headrace.serve.batches.store import Store

CHAT = "/v1/chat/completions"
CONFIG = BatchConfig(max_lines_running=1, max_files=10, key_share=1.0)


def tenant_of(name: str) -> Tenant:
    return Tenant(name=name, weight=3, kv_share=0.5, tokens_per_minute=1000)


def scripted(script: list[Any]) -> Any:
    """Answers (status, body, header ...) in turn, the last for ever; an exception is raised."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert caller_terms() == Terms(tenant=tenant_of("me"), is_background=True)
        step = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        status, body, *headers = step
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


def submit(store: Store, numbers: int, owner: str = "me") -> dict[str, Any]:
    """A batch of an owner, not yet begun."""
    lines = [
        {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": {"messages": []}}
        for i in range(numbers)
    ]
    file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "in", owner)
    keys = (
        "in_progress_at",
        "finalizing_at",
        "cancelling_at",
        "errors",
        "output_file_id",
        "error_file_id",
        "expires_at",
    )
    about = dict.fromkeys(keys) | {"input_file_id": file["id"], "status": "validating", "request_counts": {}}
    return store.add_batch(about, owner)


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.01)
    pytest.fail("that never came")


def border(**changes: Any) -> Border:
    """A server that takes everything and whose engine lives."""
    taken: dict[str, Any] = {"tenant_of": tenant_of, "admit": lambda: None, "num_restarts": lambda: 0}
    return Border(**taken | changes)


def deaths() -> Callable[[], int]:
    """A count of restarts that is another one each time."""
    numbers: Iterator[int] = count()
    return lambda: next(numbers)
