"""The worker of batches against a scripted application: lines that are cut, broken, or end the engine."""

import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.config import BatchConfig
from headrace.base.terms import Tenant, caller_terms
from headrace.serve.batches import worker as worker_module
from headrace.serve.batches.store import Store
from headrace.serve.batches.worker import LAST, MOST_OUTAGES, Worker, was_cut

CHAT = "/v1/chat/completions"


def scripted(script: list[Any]) -> Any:
    """An application that answers (status, body) in turn, the last for ever; an exception is raised."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert caller_terms().tenant == Tenant(name="batches of 'me'", priority=LAST, max_running=1)
        step = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(step, Exception):
            raise step
        status, body = step
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    return app


async def answers(tmp_path: Path, app: Any, numbers: int = 1) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch at its end and every result."""
    store = Store(tmp_path, 10)
    lines = [
        {"custom_id": f"c{i}", "method": "POST", "url": CHAT, "body": {"messages": []}}
        for i in range(numbers)
    ]
    file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "in", "batch", "me")
    keys = ("in_progress_at", "finalizing_at", "output_file_id", "error_file_id")
    about = dict.fromkeys(keys) | {"input_file_id": file["id"], "status": "validating", "request_counts": {}}
    batch = store.new("batch", about, "me")
    store.put("batch", batch)
    worker = Worker(app, store, BatchConfig(max_lines_running=1))
    await worker._run_batch(batch)
    ended = store.get("batch", batch["id"], "me")
    names = [n for n in (ended["output_file_id"], ended["error_file_id"]) if n]
    return ended, [json.loads(t) for n in names for t in store.content(n).splitlines()]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "AGAIN_S", 0.0)


async def test_an_answer_that_the_end_of_the_server_cut_comes_again(tmp_path: Path) -> None:
    cut, whole = ({"choices": [{"finish_reason": end}]} for end in ("abort", "stop"))
    ended, results = await answers(tmp_path, scripted([(429, {"error": {}}), (200, cut), (200, whole)]))
    assert [r["response"]["body"] for r in results] == [whole]
    assert ended["request_counts"] == {"completed": 1, "failed": 0}
    assert was_cut(cut)
    assert not was_cut(whole)
    assert not was_cut({"error": {}})


async def test_a_line_that_breaks_the_application_fails_alone(tmp_path: Path) -> None:
    good = (200, {"choices": []})
    ended, results = await answers(tmp_path, scripted([RuntimeError("planted"), good]), numbers=2)
    assert ended["request_counts"] == {"completed": 1, "failed": 1}
    by_id = {r["custom_id"]: r["response"] for r in results}
    assert (by_id["c0"]["status_code"], by_id["c1"]["status_code"]) == (500, 200)
    assert "planted" not in json.dumps(by_id["c0"])


async def test_a_line_during_which_the_engine_is_always_gone_fails_in_the_end(tmp_path: Path) -> None:
    gone = (503, {"error": {"code": "engine_unavailable"}})
    ended, results = await answers(tmp_path, scripted([gone] * MOST_OUTAGES + [(200, {"choices": []})]))
    assert ended["request_counts"]["completed"] == 1  # that often it is tried again
    ended, results = await answers(tmp_path / "b", scripted([gone]))
    assert [r["response"]["status_code"] for r in results] == [503]
    assert ended["status"] == "completed"


def test_a_damaged_document_hides_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path, 10)
    made = store.add_file(b"x", "a", "batch", "me")
    (tmp_path / "files" / f"file_{'0' * 32}.json").write_bytes(b'{"id": ')
    (tmp_path / "files" / f"file_{'1' * 32}.json").write_bytes(b"{}")
    assert [f["id"] for f in store.owned("file", "me")] == [made["id"]]
    assert store.all_batches() == []
