"""`/v1/files` and `/v1/batches`: the official client, restarts, limits, cancel."""

import json
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from headrace.base.config import BatchConfig
from headrace.base.errors import NotFoundError, RequestError
from headrace.serve.batches.form import read_form
from headrace.serve.batches.lines import check_lines
from headrace.serve.batches.store import Store
from tests.serve.conftest import Live, serving

CHAT = "/v1/chat/completions"


def line(number: int, url: str = CHAT, **body: Any) -> str:
    filled = {"messages": [{"role": "user", "content": f"Say {number}"}], "max_tokens": 3, "seed": 1} | body
    return json.dumps({"custom_id": f"c{number}", "method": "POST", "url": url, "body": filled})


def client_of(live: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0, timeout=60)


def wait(get: Callable[[], Any], until: Callable[[Any], bool], seconds: float = 60) -> Any:
    end = time.monotonic() + seconds
    while not until(got := get()):
        assert time.monotonic() < end, got
        time.sleep(0.05)
    return got


def submit(client: openai.OpenAI, lines: list[str], endpoint: Any = CHAT) -> Any:
    file = client.files.create(file=("in.jsonl", "\n".join(lines).encode()), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


def results(client: openai.OpenAI, name: str | None) -> dict[str, Any]:
    found = [json.loads(text) for text in client.files.content(name or "").text.splitlines()]  # in any order
    assert len({r["custom_id"] for r in found}) == len(found)
    return {r["custom_id"]: r["response"] for r in found}


@pytest.fixture(scope="module")
def live(smollm2_path: Path, tmp_path_factory: Any) -> Any:
    folder = str(tmp_path_factory.mktemp("batches"))
    with serving(
        smollm2_path, "--max-num-seqs", "4", "--max-model-len", "128", "--batch-dir", folder
    ) as made:
        yield made


def test_a_batch_answers_as_the_endpoint_does(live: Live) -> None:
    client = client_of(live)
    batch = submit(client, [line(0), line(1), line(2, temperature=-1)])
    done = wait(lambda: client.batches.retrieve(batch.id), lambda b: b.status == "completed")
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (3, 2, 1)
    good, bad = results(client, done.output_file_id), results(client, done.error_file_id)
    assert set(good) == {"c0", "c1"}
    alone = httpx.post(live.url + CHAT, json=json.loads(line(1))["body"], timeout=60).json()
    assert good["c1"]["body"]["choices"] == alone["choices"]
    assert (bad["c2"]["status_code"], bad["c2"]["body"]["error"]["param"]) == (400, "temperature")
    assert batch.id in [b.id for b in client.batches.list()]
    vectors = submit(client, [line(9, "/v1/embeddings", messages=None)], "/v1/embeddings")
    vectors = wait(lambda: client.batches.retrieve(vectors.id), lambda b: b.status == "completed")
    assert vectors.request_counts.failed == 1  # a body of another endpoint


def test_lines_of_completions_and_embeddings_answer_as_their_endpoints_do(live: Live) -> None:
    client = client_of(live)
    bodies: dict[Any, list[dict[str, Any]]] = {
        "/v1/completions": [
            {"prompt": "The river", "max_tokens": 4, "seed": 3},
            {"prompt": ["One", "Two"], "max_tokens": 2, "temperature": 0, "logprobs": 1},
        ],
        "/v1/embeddings": [{"input": "The river"}, {"input": ["One", "Two"], "encoding_format": "base64"}],
    }
    for url, given in bodies.items():
        lines = [
            json.dumps({"custom_id": f"c{i}", "method": "POST", "url": url, "body": body})
            for i, body in enumerate(given)
        ]
        batch = submit(client, lines, url)
        done = wait(lambda name=batch.id: client.batches.retrieve(name), lambda b: b.status == "completed")
        assert (done.request_counts.completed, done.request_counts.failed) == (2, 0)
        good = results(client, done.output_file_id)
        for i, body in enumerate(given):
            alone = httpx.post(live.url + url, json=body, timeout=60).json()
            part = "choices" if "choices" in alone else "data"
            got = good[f"c{i}"]
            assert got["status_code"] == 200
            assert got["body"][part] == alone[part]
            assert got["body"]["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]


def test_lists_take_their_parameters_and_refuse_others_by_name(live: Live) -> None:
    client = client_of(live)
    made = [client.files.create(file=("p.jsonl", b"x\n"), purpose="batch").id for _ in range(3)]
    newest = [f.id for f in client.files.list()]
    oldest = [f.id for f in client.files.list(order="asc")]
    assert newest == oldest[::-1]
    assert set(made) <= set(newest)
    pages = [f.id for f in client.files.list(limit=2)]  # the client asks for page after page
    assert pages == newest
    first = httpx.get(live.url + "/v1/files", params={"limit": 1}).json()
    assert (first["has_more"], first["first_id"], first["last_id"]) == (True, newest[0], newest[0])
    rest = httpx.get(live.url + "/v1/files", params={"after": newest[0]}).json()
    assert ([f["id"] for f in rest["data"]], rest["has_more"]) == (newest[1:], False)
    kinds = {f.purpose for f in client.files.list(purpose="batch")}
    assert kinds == {"batch"}
    for _ in range(2):
        submit(client, ["{}"])
    batches = [b.id for b in client.batches.list(limit=1)]
    assert batches == [b["id"] for b in httpx.get(live.url + "/v1/batches?limit=100").json()["data"]]
    for path, query, param in (
        ("files", "limit=0", "limit"),
        ("files", "limit=x", "limit"),
        ("files", "limit=1&limit=2", "limit"),
        ("files", "order=up", "order"),
        ("files", "purpose=vision", "purpose"),
        ("files", "after=file_1", "after"),
        ("files", "colour=blue", "colour"),
        ("batches", "limit=101", "limit"),
        ("batches", "order=asc", "order"),
        ("batches", "after=", "after"),
    ):
        answer = httpx.get(f"{live.url}/v1/{path}?{query}")
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), query
    upload = httpx.post(
        live.url + "/v1/files",
        files={"file": ("a", b"x")},
        data={"purpose": "batch", "expires_after[seconds]": "3600"},
    )
    assert (upload.status_code, upload.json()["error"]["param"]) == (400, "expires_after[seconds]")


def test_a_batch_is_deleted_when_it_has_ended(live: Live) -> None:
    client = client_of(live)
    batch = submit(client, [line(i, max_tokens=40) for i in range(60)])
    refused = httpx.delete(f"{live.url}/v1/batches/{batch.id}")
    assert refused.status_code == 400
    assert "cancel it" in refused.json()["error"]["message"]
    client.batches.cancel(batch.id)
    done = wait(lambda: client.batches.retrieve(batch.id), lambda b: b.status == "cancelled")
    assert done.expires_at == done.cancelled_at + 30 * 86_400
    gone = httpx.delete(f"{live.url}/v1/batches/{batch.id}").json()
    assert gone == {"id": batch.id, "object": "batch", "deleted": True}
    assert httpx.get(f"{live.url}/v1/batches/{batch.id}").status_code == 404
    if done.output_file_id:
        results(client, done.output_file_id)


def test_files_come_and_go(live: Live) -> None:
    client = client_of(live)
    file = client.files.create(file=("a.jsonl", b"x\n"), purpose="batch")
    assert client.files.retrieve(file.id).bytes == 2
    assert client.files.content(file.id).content == b"x\n"
    assert file.id in [f.id for f in client.files.list()]
    assert client.files.delete(file.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file.id)
    failed = submit(client, ["{}", line(1), line(1)])
    assert failed.status == "failed"
    assert [e.line for e in failed.errors.data] == [1, 3]
    for name in ("file_" + "0" * 32, "..%2f..%2fetc%2fpasswd", "batch_1"):
        assert httpx.get(f"{live.url}/v1/files/{name}").status_code == 404


def test_ranges_that_cannot_be_had_are_refused_in_the_shape_of_errors(live: Live) -> None:
    content = line(0).encode()
    file = client_of(live).files.create(file=("x.jsonl", content), purpose="batch")
    path = f"{live.url}/v1/files/{file.id}/content"
    part = httpx.get(path, headers={"range": "bytes=2-5"})
    assert (part.status_code, part.content) == (206, content[2:6])
    past = httpx.get(path, headers={"range": f"bytes={len(content)}-"})
    assert past.status_code == 416
    assert past.headers["content-range"] == f"bytes */{len(content)}"
    assert past.json()["error"]["code"] == "range_not_satisfiable"
    odd = httpx.get(path, headers={"range": "lines=1-2"})
    assert odd.status_code == 400
    assert "content-range" not in odd.headers
    for refused in (past, odd):
        error = refused.json()["error"]
        assert refused.headers["content-type"] == "application/json"
        assert (error["type"], error["param"]) == ("invalid_request_error", "Range")
    assert httpx.get(path).content == content


def test_a_cancelled_batch_keeps_what_is_answered(live: Live) -> None:
    client = client_of(live)
    batch = submit(client, [line(i, max_tokens=20) for i in range(60)])
    wait(lambda: client.batches.retrieve(batch.id), lambda b: b.request_counts.completed > 0)
    assert client.batches.cancel(batch.id).status == "cancelling"
    done = wait(lambda: client.batches.retrieve(batch.id), lambda b: b.status == "cancelled")
    assert 0 < done.request_counts.completed < 60
    assert len(results(client, done.output_file_id)) == done.request_counts.completed


def test_a_killed_server_goes_on_and_repeats_no_finished_line(smollm2_path: Path, tmp_path: Path) -> None:
    flags = ("--max-num-seqs", "4", "--max-model-len", "128", "--batch-dir", str(tmp_path))
    with serving(smollm2_path, *flags) as first:
        client = client_of(first)
        batch = submit(client, [line(i, max_tokens=12) for i in range(24)])
        wait(lambda: client.batches.retrieve(batch.id), lambda b: b.request_counts.completed >= 3)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait(10)
    out = tmp_path / "batches" / f"{batch.id}.out"
    before = [json.loads(text)["id"] for text in out.read_text().splitlines()]
    with out.open("ab") as torn:
        torn.write(b'{"custom_id": "c')
    with serving(smollm2_path, *flags) as second:
        client = client_of(second)
        done = wait(lambda: client.batches.retrieve(batch.id), lambda b: b.status == "completed")
        assert done.request_counts.completed == 24
        assert set(results(client, done.output_file_id)) == {f"c{i}" for i in range(24)}
        after = [
            json.loads(t)["id"] for t in client.files.content(done.output_file_id or "").text.splitlines()
        ]
        assert after[: len(before)] == before


def test_a_server_without_a_folder_says_so(live_server: Live) -> None:
    answer = httpx.get(live_server.url + "/v1/batches")
    assert answer.status_code == 404
    assert "--batch-dir" in answer.json()["error"]["message"]


def test_lines_and_forms_are_checked_before_work(tmp_path: Path) -> None:
    good = line(1).encode()
    assert check_lines(good + b"\n\n" + line(2).encode(), CHAT, 2) == (2, [])
    with pytest.raises(RequestError, match="1 to 2 lines, this file has 3"):
        check_lines(b"\n".join([good] * 3), CHAT, 2)
    for bad in (line(1, stream=True), line(1, "/v1/models"), "[]", '{"custom_id": 5}', "\x00"):
        assert check_lines(bad.encode(), CHAT, 2)[1][0].line == 1
    form = b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    form += b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\nx\r\ny\n\r\n--b--\r\n'
    assert read_form("multipart/form-data; boundary=b", form) == ({"purpose": "batch"}, "a", b"x\r\ny\n")
    for kind, body in (("text/plain", form), ("multipart/form-data; boundary=b", b"--b--")):
        with pytest.raises(RequestError):
            read_form(kind, body)
    for extra in ('name="purpose"', 'name="file"'):
        twice = form.replace(b"--b--", b"--b\r\nContent-Disposition: form-data; " + extra.encode())
        with pytest.raises(RequestError, match="two parts named"):
            read_form("multipart/form-data; boundary=b", twice + b"\r\n\r\nz\r\n--b--\r\n")
    store = Store(tmp_path, BatchConfig())
    made = store.add_file(b"1", "a", "me")
    with pytest.raises(NotFoundError):
        store.get("file", made["id"], "somebody else")
