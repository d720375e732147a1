"""Advisories of other servers, FIELD_LESSONS chapter 16: each test names its row.

`ROWS` says which file has the test of each row; everything at random is in `tests/fuzz`.
"""

import ast
import asyncio
import dataclasses
import json
import pickle  # noqa: TID251 - to see that nobody loads one
import socket
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from headrace.base.errors import HeadraceError
from headrace.base.messages import AddGroup
from headrace.base.request import Request
from headrace.engine.process.ipc import HEADER, KINDS, Channel, decode
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.completion import CompletionBody
from tests.fuzz.bodies import TOOLS, Target
from tests.serve.conftest import Live

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "headrace").rglob("*.py"))
ROWS = {
    "CVE-2025-62164": "tests/serve/test_security.py",
    "CVE-2025-32444": "tests/serve/test_security.py",
    "CVE-2025-24357": "tests/unit/test_safetensors.py",
    "CVE-2026-5760": "tests/unit/test_chat.py",
    "CVE-2025-62426": "tests/serve/test_security.py",
    "CVE-2025-48944": "tests/serve/test_structured.py",
    "GHSA-mgrm-fgjv-mhv8": "tests/unit/test_grammar.py",
    "vllm#51447": "tests/serve/test_security.py",
    "vllm#16529": "tests/serve/test_security.py",
    "CVE-2025-48956": "tests/serve/test_bodies.py",
    "CVE-2025-59425": "tests/serve/test_access.py",
    "CVE-2025-46570": "tests/serve/test_security.py",
    "CVE-2026-0599": "tests/serve/test_security.py",
    "llama.cpp#10380": "native/tests/test_fuzz.cc",
    "sglang#36855": "tests/serve/test_security.py",
    "CVE-2025-48887": "tests/unit/test_parts.py",
    "CVE-2026-9540": "tests/serve/test_storm.py",
}
CHAT: Any = {"messages": [{"role": "user", "content": "hi"}]}


def names_used(path: Path) -> set[str]:
    """Modules imported and functions called, dotted."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


def named_tests(path: Path) -> set[str]:
    """Names and first lines of a file's tests, spelled as names; of other languages the first line."""
    if path.suffix != ".py":
        return {plain(path.read_text().partition("\n")[0])}
    found = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)]
    return {plain(f"{n.name} {ast.get_docstring(n)}") for n in found if n.name.startswith("test_")}


def plain(text: str) -> str:
    """Lower case, and one underscore for all that is neither letter nor digit."""
    return "_".join("".join(c if c.isalnum() else " " for c in text.lower()).split())


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_test_that_names_it(row: str) -> None:
    assert any(plain(row) in name for name in named_tests(ROOT / ROWS[row]))


TORCH_LOADS = ("torch.load", "torch.save", "torch.hub", "torch.jit", "torch.package", "torch.serialization")


def test_cve_2025_62164_nothing_loads_objects_or_code() -> None:
    """Rows 1 to 3: no pickle, no torch archive, no code from a model's folder, on any path."""
    modules = {
        "pickle",
        "cPickle",
        "dill",
        "cloudpickle",
        "marshal",
        "shelve",
        "joblib",
        "torch",
        "multiprocessing",
    }
    calls = {
        "eval",
        "exec",
        "compile",
        "np.load",
        "numpy.load",
        "yaml.load",
        "runpy.run_path",
        "os.system",
        "os.popen",
    }
    for path in SOURCES:
        used = names_used(path)
        wrong = {name for name in used if name.split(".")[0] in modules or name in calls}
        if "distill" in path.parts:  # trains with torch, and reads and writes safetensors
            wrong = {name for name in wrong if name.split(".")[0] != "torch" or name.startswith(TORCH_LOADS)}
        assert not wrong, f"{path}: {wrong}"
    assert len(SOURCES) > 100


def test_cve_2025_32444_the_socket_between_processes_takes_data_only() -> None:
    """Random bytes, a pickle and broken messages of every kind: an error, never an object of another kind."""

    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return (pytest.fail, ("a pickle was loaded",))

    rng = Random(16)
    payloads = [
        pickle.dumps(Evil()),
        b"",
        b"\xc1",
        b"\xdf\xff\xff\xff\xff",
        b"\xa5\xff\xff\xff\xff\xff",
        b"\x91" * 5000,
    ]
    payloads += [rng.randbytes(rng.randrange(200)) for _ in range(300)]
    for payload in payloads:
        for kind in range(256):
            try:
                made = decode(kind, payload)
            except HeadraceError:
                continue
            assert type(made) is KINDS[kind]
    for raw in (
        pickle.dumps(Evil()),
        b"GET / HTTP/1.1\r\n\r\n",
        HEADER.pack(1 << 31, 1),
        HEADER.pack(4, 255) + b"abcd",
    ):
        ours, theirs = socket.socketpair()
        theirs.sendall(raw)
        theirs.close()
        channel = Channel(ours)
        try:
            assert channel.receive() is None
        except HeadraceError as error:
            assert "message" in error.message  # noqa: PT017 - either end is right
        channel.close()


TEMPLATE_OVERRIDES = (
    "tokenize",
    "chat_template",
    "conversation",
    "messages",
    "tools",
    "documents",
    "tokenizer",
    "self",
)


@pytest.mark.parametrize("name", TEMPLATE_OVERRIDES)
def test_cve_2025_62426_template_arguments_override_nothing(live_server: Live, name: str) -> None:
    body = CHAT | {"max_tokens": 1, "temperature": 0, "chat_template_kwargs": {name: "{{ 1 }}"}}
    answer = httpx.post(live_server.url + "/v1/chat/completions", json=body, timeout=60)
    if answer.status_code == 200:  # a variable that this template does not read
        plain = httpx.post(live_server.url + "/tokenize", json=CHAT).json()["count"]
        assert answer.json()["usage"]["prompt_tokens"] == plain
    else:
        assert answer.status_code == 400
        assert "chat_template_kwargs" in answer.json()["error"]["message"]
    assert httpx.get(live_server.url + "/health", timeout=1).status_code == 200


LONG = [f"s{i}" for i in range(50_000)]
COSTLY: dict[str, tuple[str, dict[str, Any]]] = {
    "stop strings": ("/v1/completions", {"prompt": "a", "stop": LONG}),
    "stop strings, equal ones": ("/v1/completions", {"prompt": "a", "stop": ["s"] * 50_000}),
    "stop sequences": ("/v1/messages", {**CHAT, "max_tokens": 1, "stop_sequences": LONG}),
    "a long stop string": ("/v1/completions", {"prompt": "a", "stop": "s" * 200_000}),
    "stop tokens": ("/v1/completions", {"prompt": "a", "stop_token_ids": list(range(50_000))}),
    "bad words": ("/v1/completions", {"prompt": "a", "bad_words": LONG}),
    "biases": ("/v1/completions", {"prompt": "a", "logit_bias": {str(i): 1 for i in range(50_000)}}),
    "biases by other spellings of one id": (
        "/v1/completions",
        {"prompt": "a", "logit_bias": {"0" * i + "1": 1 for i in range(300)}},
    ),
    "choices": ("/v1/completions", {"prompt": "a", "n": 100_000}),
    "drawn choices": ("/v1/completions", {"prompt": "a", "n": 1, "best_of": 100_000}),
    "beams": ("/v1/completions", {"prompt": "a", "use_beam_search": True, "n": 100_000}),
    "beams by best_of": ("/v1/completions", {"prompt": "a", "use_beam_search": True, "best_of": 100_000}),
    "prompts times choices": ("/v1/completions", {"prompt": ["a"] * 4000, "n": 64}),
    "log-probabilities": ("/v1/completions", {"prompt": "a", "logprobs": 200_000}),
    "log-probabilities of a chat": (
        "/v1/chat/completions",
        {**CHAT, "logprobs": True, "top_logprobs": 200_000},
    ),
    "all log-probabilities of the prompt": ("/v1/completions", {"prompt": "a", "prompt_logprobs": -1}),
    "log-probabilities of the prompt": ("/v1/completions", {"prompt": "a", "prompt_logprobs": 200_000}),
    "log-probabilities of the prompt, echoed": (
        "/v1/completions",
        {"prompt": "a", "echo": True, "logprobs": 200_000},
    ),
    "inputs": ("/v1/embeddings", {"input": ["a"] * 50_000}),
    "choices of a grammar": ("/v1/completions", {"prompt": "a", "structured_outputs": {"choice": LONG}}),
    "tools": ("/v1/chat/completions", {**CHAT, "tools": TOOLS * 2000}),
}


@pytest.mark.parametrize("name", COSTLY)
def test_vllm_51447_work_is_in_proportion_to_the_body(name: str) -> None:
    """500,000 stop strings took 54 s there: limits on effect, in every spelling, before the work."""
    path, body = COSTLY[name]
    target = Target()
    began_s = time.process_time()
    status, _, content = asyncio.run(target.ask("POST", path, json.dumps(body).encode()))
    assert time.process_time() - began_s < 1.0
    assert status == 400, content[:300]
    assert not target.llm.seen
    assert len(content) < 2000


@pytest.mark.parametrize("name", ["prompt", "stop_token_ids", "allowed_token_ids", "logit_bias"])
@pytest.mark.parametrize("token", [-1, 49152, 10**6, 2**31, 2**63, -(2**63)])
def test_vllm_16529_token_ids_are_those_of_the_model(live_server: Live, name: str, token: int) -> None:
    """Ids of prompts, stops, masks and biases; also negative ones (vllm#6866, vllm#9634, sglang#28088)."""
    value: Any = {str(token): 1.0} if name == "logit_bias" else [token]
    body = {"prompt": "a", "max_tokens": 1} | {name: value}
    answer = httpx.post(live_server.url + "/v1/completions", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == name
    assert httpx.get(live_server.url + "/health").status_code == 200


def test_cve_2025_46570_a_salt_keeps_prompts_apart(live_server: Live) -> None:
    """Prefix-cache timing and collisions, PC-5: another salt finds nothing of a prompt that was just here."""

    def cached(**salt: str) -> int:
        body = {"prompt": "A prompt of some blocks. " * 16, "max_tokens": 1, "temperature": 0} | salt
        answer = httpx.post(live_server.url + "/v1/completions", json=body, timeout=60)
        return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert cached(cache_salt="mine") == 0
    assert cached(cache_salt="mine") >= 64
    assert cached(cache_salt="yours") == cached(cache_salt="mine ") == 0
    assert cached() == 0


def test_cve_2026_0599_no_address_in_a_text_is_ever_opened(live_server: Live) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.3)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x.png"
        text = f"![picture]({url}) <img src='{url}'> {url}"
        asked: list[tuple[str, Any, int]] = [
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1}, 200),
            ("/v1/completions", {"prompt": text, "max_tokens": 1}, 200),
            ("/v1/embeddings", {"input": text}, 200),
            ("/tokenize", {"prompt": text}, 200),
            (
                "/v1/chat/completions",
                {
                    "messages": [
                        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
                    ]
                },
                400,
            ),
            (
                "/v1/completions",
                {"prompt": "a", "structured_outputs": {"json": {"$ref": url}}, "max_tokens": 1},
                400,
            ),
        ]
        for path, body, status in asked:
            assert httpx.post(live_server.url + path, json=body, timeout=60).status_code == status, body
        with pytest.raises(TimeoutError):
            listener.accept()


def test_sglang_36855_internal_fields_are_not_read_from_bodies() -> None:
    internal = {f.name for kind in (Request, AddGroup) for f in dataclasses.fields(kind)}
    internal |= {
        "bootstrap_host",
        "bootstrap_room",
        "kv_transfer",
        "lora_path",
        "rid",
        "tenant",
        "terms",
        "deadline_s",
    }

    async def send() -> None:
        target = Target()
        for path, model, body in (
            ("/v1/completions", CompletionBody, {"prompt": "a"}),
            ("/v1/chat/completions", ChatBody, CHAT),
        ):
            for name in sorted(internal - set(model.model_fields)):
                raw = json.dumps(body | {name: 1}).encode()
                status, _, content = await target.ask("POST", path, raw)
                assert status == 400, (name, content)
                assert json.loads(content)["error"]["param"] == name

    asyncio.run(send())
    assert len(internal) > 10
