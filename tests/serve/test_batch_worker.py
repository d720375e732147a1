"""The worker of batches against a scripted application: lines that are cut, broken, or end the engine."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from headrace.base.config import BatchConfig
from headrace.base.errors import NotFoundError, OverloadError
from headrace.base.terms import caller_terms
from headrace.serve.batches import call as call_module
from headrace.serve.batches import store as store_module
from headrace.serve.batches.call import MOST_OUTAGES, was_cut
from headrace.serve.batches.store import Store
from headrace.serve.batches.worker import Worker
from tests.serve.batch_kit import CONFIG, border, deaths, scripted, submit, until


async def answers(
    tmp_path: Path, app: Any, numbers: int = 1, **changes: Any
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The batch at its end and every result."""
    store = Store(tmp_path, CONFIG)
    batch = submit(store, numbers)
    worker = Worker(app, store, CONFIG, border(**changes))
    await worker._run_batch(batch)
    ended = store.get("batch", batch["id"], "me")
    names = [n for n in (ended["output_file_id"], ended["error_file_id"]) if n]
    return ended, [json.loads(t) for n in names for t in store.content(n).splitlines()]


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_module, "AGAIN_S", 0.0)


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
    ended, results = await answers(
        tmp_path, scripted([gone] * MOST_OUTAGES + [(200, {"choices": []})]), num_restarts=deaths()
    )
    assert ended["request_counts"]["completed"] == 1  # that often it is tried again
    ended, results = await answers(tmp_path / "b", scripted([gone]), num_restarts=deaths())
    assert [r["response"]["status_code"] for r in results] == [503]
    assert ended["status"] == "completed"


def test_a_damaged_document_hides_no_other(tmp_path: Path) -> None:
    store = Store(tmp_path, CONFIG)
    made = store.add_file(b"x", "a", "me")
    (tmp_path / "files" / f"file_{'0' * 32}.json").write_bytes(b'{"id": ')
    (tmp_path / "files" / f"file_{'1' * 32}.json").write_bytes(b"{}")
    assert [f["id"] for f in store.owned("file", "me")] == [made["id"]]
    assert store.all_batches() == []


async def test_a_cancel_is_on_the_disk_when_it_is_answered(tmp_path: Path) -> None:
    """A server that ends right after it, however it ends, does not go on with the batch at its next start."""
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 5)
    calls: list[int] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        calls.append(1)
        await asyncio.Event().wait()

    first = Worker(app, store, CONFIG, border())
    first.wake()
    await until(lambda: bool(calls))
    told = await first.cancel(batch["id"], "me")
    assert told["status"] == "cancelling"
    on_disk = json.loads((tmp_path / "batches" / f"{batch['id']}.json").read_text())
    assert (on_disk["status"], on_disk["cancelling_at"]) == ("cancelling", told["cancelling_at"])
    await first.close()
    second = Worker(app, Store(tmp_path, CONFIG), CONFIG, border())
    second.wake()
    await until(lambda: store.get("batch", batch["id"], "me")["status"] == "cancelled")
    await second.close()
    assert len(calls) == 1
    assert (await second.cancel(batch["id"], "me"))["status"] == "cancelled"  # and so it stays
    with pytest.raises(NotFoundError):
        await second.cancel(batch["id"], "somebody else")
    await second.close()


async def test_a_line_that_ends_beside_a_cancel_does_not_undo_it(tmp_path: Path) -> None:
    """The result is being written while the cancel comes: the batch on the disk stays cancelled."""
    store = Store(tmp_path, CONFIG)
    batch = submit(store, 2)
    worker = Worker(scripted([(200, {"choices": []})]), store, CONFIG, border())
    batch |= {"status": "in_progress"}
    async with worker._saving:
        saving = asyncio.create_task(worker._save(batch, {"c0": True}))
        await asyncio.sleep(0.01)  # it waits for its turn to write
        worker._cancelled.add(batch["id"])
    await saving
    assert store.get("batch", batch["id"], "me")["status"] == "cancelling"


async def test_batches_of_several_owners_run_side_by_side(tmp_path: Path) -> None:
    """One owner's batch, whose lines wait for tokens a minute, holds up nobody else's."""
    store = Store(tmp_path, CONFIG)
    held = submit(store, 1, "held")
    free = [submit(store, 1, "free")["id"] for _ in range(2)]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if caller_terms().tenant.name == "held":
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    worker = Worker(app, store, CONFIG, border())
    worker.wake()
    await until(lambda: all(store.get("batch", name, "free")["status"] == "completed" for name in free))
    assert store.get("batch", held["id"], "held")["status"] == "in_progress"
    late = submit(store, 1, "free")  # its owner's task is over
    worker.wake()
    await until(lambda: store.get("batch", late["id"], "free")["status"] == "completed")
    await worker.close()


def test_one_key_cannot_fill_the_store_for_all(tmp_path: Path) -> None:
    store = Store(tmp_path, BatchConfig(max_files=8, max_bytes=100, key_share=0.25))
    for _ in range(2):
        store.add_file(b"x" * 10, "a", "greedy")
        submit_empty(store, "greedy")
    with pytest.raises(OverloadError, match=r"this key has 2 files, limit 2; delete some"):
        store.add_file(b"x", "a", "greedy")
    with pytest.raises(OverloadError, match=r"this key has 2 batches, limit 2; delete some"):
        submit_empty(store, "greedy")
    with pytest.raises(OverloadError, match=r"files of this key have 0 bytes and 26 more came, limit 25"):
        store.add_file(b"x" * 26, "a", "modest")
    store.add_file(b"x" * 25, "a", "modest")
    for owner in ("modest", "spare"):
        keep_result(store, b"x" * 24, owner)  # results have room of their own
    with pytest.raises(OverloadError, match=r"files of this server have 95 bytes and 6 more came"):
        store.add_file(b"x" * 6, "a", "late")
    alone = Store(tmp_path / "b", BatchConfig(max_files=4, key_share=0.25))
    for _ in range(4):  # without keys all files have one owner
        alone.add_file(b"x", "a", "")
    with pytest.raises(OverloadError, match="limit 4"):
        alone.add_file(b"x", "a", "")


def keep_result(store: Store, line: bytes, owner: str) -> dict[str, Any]:
    """A file of results of a batch that has ended."""
    batch = submit_empty(store, owner)
    store.append(batch["id"], ".out", line, owner)
    batch |= store.name_results(batch["id"])
    store.keep_results(batch)
    store.delete_batch(batch["id"])
    return store.get("file", batch["output_file_id"], owner)


def submit_empty(store: Store, owner: str) -> dict[str, Any]:
    return store.add_batch({"status": "completed", "expires_at": None}, owner)


def test_results_and_ended_batches_expire_and_open_ones_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1_000_000.0]
    monkeypatch.setattr(store_module, "unix_s", lambda: now[0])
    store = Store(tmp_path, BatchConfig(result_days=2))
    given, result = store.add_file(b"x", "a", "me"), keep_result(store, b"x", "me")
    assert (given["expires_at"], result["expires_at"]) == (None, 1_000_000 + 2 * 86_400)
    ended = store.add_batch({"status": "cancelled", "expires_at": store.end_of_results()}, "me")
    still = store.add_batch({"status": "in_progress", "expires_at": store.end_of_results()}, "me")
    now[0] += 2 * 86_400 - 1
    assert store.get("file", result["id"], "me") == result
    now[0] += 1
    with pytest.raises(NotFoundError):
        store.get("file", result["id"], "me")
    assert [f["id"] for f in store.owned("file", "me")] == [given["id"]]
    assert [b["id"] for b in store.owned("batch", "me")] == [still["id"]]
    store.sweep()
    left = {p.name for p in tmp_path.rglob("*.*")}
    assert left == {f"{given['id']}.json", f"{given['id']}.data", f"{still['id']}.json"}
    assert ended["id"] not in str(left)
