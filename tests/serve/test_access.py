"""Who may pass, and on which terms: FIELD_LESSONS chapter 16, "key guards only some paths"."""

import hashlib
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from headrace.base.clock import now_s
from headrace.base.config import AccessConfig, EngineConfig
from headrace.base.errors import ConfigError
from headrace.base.terms import Tenant
from headrace.serve.app import ROUTE_FILES, build_app
from headrace.serve.front import keys as keys_module
from headrace.serve.front.keys import load_keys
from tests.serve.fake import FakeLLM, LiveServer, hello

KEYS = """
keys:
  - {name: team-a, key: alpha, weight: 2, max_running: 4, max_queued: 9, kv_share: 0.5}
  - {name: team-b, key_file: FILE, tokens_per_minute: 600}
  - {name: team-c, sha256: HEX, priority: 3}
"""


def keys_file(folder: Path, text: str = KEYS) -> AccessConfig:
    (folder / "b").write_text("beta\n")
    text = text.replace("FILE", str(folder / "b")).replace("HEX", hashlib.sha256(b"gamma").hexdigest())
    (folder / "keys.yaml").write_text(text)
    return AccessConfig(api_key=("sésame",), keys_file=str(folder / "keys.yaml"))


def all_paths() -> list[str]:
    return [route.path for routes in ROUTE_FILES.all().values() for route in routes]  # type: ignore[attr-defined]


def test_every_route_of_the_application_is_among_those_that_are_walked() -> None:
    app, _ = build_app(FakeLLM(hello), EngineConfig(access=AccessConfig(api_key=("sesame",))))  # type: ignore[arg-type]
    while not isinstance(app, Starlette):
        app = app._app  # type: ignore[attr-defined]
    assert {route.path for route in app.routes} == set(all_paths())  # type: ignore[attr-defined]
    assert len(all_paths()) > 20


def test_cve_2025_59425_every_route_but_the_probes_needs_a_key() -> None:
    with LiveServer(FakeLLM(hello), AccessConfig(api_key=("sésame", "other"))) as live:
        for path in [*all_paths(), "/nowhere", "//health", "/health/", "/%68ealth/x", "/openapi.json"]:
            for method in ("GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT"):
                response = httpx.request(method, live.url + path)
                if path in {"/health", "/ready"}:
                    assert response.status_code in {200, 405}
                else:
                    assert response.status_code == 401, (method, path)
                    assert method == "HEAD" or response.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({b"authorization": "Bearer sésame".encode()}, 200),
        ({b"authorization": b"bearer  other"}, 200),
        ({b"x-api-key": b"other"}, 200),
        ({b"x-api-key": b"other", b"authorization": b"Bearer no"}, 401),
        ({b"authorization": b"Bearer sesame"}, 401),
        ({b"authorization": b"Basic other"}, 401),
        ({b"authorization": b"Bearer"}, 401),
        ({b"x-api-key": b""}, 401),
        ({b"x-api-key": b"othe"}, 401),
        ({b"x-api-key": b"other,other"}, 401),
    ],
)
def test_keys_are_taken_from_both_headers(headers: dict[bytes, bytes], status: int) -> None:
    with LiveServer(FakeLLM(hello), AccessConfig(api_key=("sésame", "other"))) as live:
        assert httpx.get(live.url + "/v1/models", headers=headers).status_code == status


def test_a_browsers_login_opens_the_dashboard_alone() -> None:
    """Another site's page can make a logged-in browser post forms here: its login must not count for them."""
    with LiveServer(FakeLLM(hello), AccessConfig(api_key=("sesame",))) as live:
        login = ("any", "sesame")
        assert httpx.get(live.url + "/dashboard", auth=login).status_code == 200
        for path in all_paths():
            for method in ("GET", "POST", "DELETE"):
                if path in {"/health", "/ready"} or (method == "GET" and path.startswith("/dashboard")):
                    continue
                response = httpx.request(method, live.url + path, auth=login)
                assert response.status_code == 401, (method, path)


def test_every_key_is_compared_whatever_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    keys, seen = load_keys(AccessConfig(api_key=("a", "b", "c"))), []
    real = keys_module.hmac.compare_digest

    def compare(x: bytes, y: bytes) -> bool:
        seen.append((len(x), len(y)))
        return real(x, y)

    monkeypatch.setattr(keys_module.hmac, "compare_digest", compare)
    for given, name in ((b"a", "key-1"), (b"c", "key-3"), (b"", None), (b"x" * 4000, None)):
        found = keys.find(given)
        assert (None if found is None else found.name) == name
    assert seen == [(32, 32)] * 12


def test_the_tenant_and_the_deadline_reach_the_engine(tmp_path: Path) -> None:
    with LiveServer(FakeLLM(hello), keys_file(tmp_path)) as live:
        for key in ("alpha", "beta", "gamma", "sésame"):
            headers = {b"x-api-key": key.encode(), b"x-request-timeout": b"5"}
            for body in ({"prompt": "x"}, {"prompt": ["x", "y"]}, {"prompt": "x", "stream": True}):
                response = httpx.post(live.url + "/v1/completions", headers=headers, json=body)
                assert response.status_code == 200
        a, b, c, d = [[s.terms for s in live.llm.seen[4 * i : 4 * i + 4]] for i in range(4)]
        for group in (a, b, c, d):
            assert len({t.tenant for t in group}) == 1
            assert all(t.deadline_s is not None and 0 < t.deadline_s - now_s() < 5 for t in group)
        assert a[0].tenant == Tenant(name="team-a", weight=2, max_running=4, max_queued=9, kv_share=0.5)
        assert b[0].tenant == Tenant(name="team-b", tokens_per_minute=600)
        assert c[0].tenant == Tenant(name="team-c", priority=3)
        assert d[0].tenant == Tenant(name="key-1")


@pytest.mark.parametrize("wrong", ["0", "-1", "nan", "inf", "soon", "1e9", ""])
def test_timeouts_that_cannot_be_meant_are_refused_by_name(wrong: str) -> None:
    with LiveServer(FakeLLM(hello)) as live:
        response = httpx.get(live.url + "/v1/models", headers={"x-request-timeout": wrong})
        assert (response.status_code, response.json()["error"]["param"]) == (400, "X-Request-Timeout")
        assert httpx.get(live.url + "/health", headers={"x-request-timeout": wrong}).status_code == 200


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("keys: [{name: a, key: x, wieght: 2}]", "wieght"),
        ("keys: [{name: a, key: x, weight: 0}]", "weight of 'a'"),
        ("keys: [{name: a, key: x, max_running: 0}]", "max_running of 'a'"),
        ("keys: [{name: a, key: x, max_queued: -1}]", "max_queued of 'a'"),
        ("keys: [{name: a, key: x, kv_share: 1.5}]", "kv_share of 'a'"),
        ("keys: [{name: a, key: x, tokens_per_minute: 0}]", "tokens_per_minute of 'a'"),
        ("keys: [{name: a, key: x, priority: 10000000}]", "priority of 'a'"),
        ("keys: [{name: a, key: x, weight: two}]", "weight"),
        ("keys: [{name: a}]", "one of key, key_file, sha256"),
        ("keys: [{name: a, key: x, sha256: '00'}]", "one of key"),
        ("keys: [{name: a, sha256: '00'}]", "64 hexadecimal digits"),
        ("keys: [{name: a, key_file: /nowhere}]", "cannot read /nowhere"),
        ("keys: [{name: a, key: ''}]", "is empty"),
        ("keys: [{name: a, key: ' x'}]", "spaces around"),
        ("keys: [{name: a, key: x}, {name: a, key: y}]", "two API keys have the name 'a'"),
        (r'keys: [{name: "a\0b", key: x}]', "control character"),
        ("keys: [{name: a, key: x}, {name: b, key: x}]", "two names have the same API key"),
        ("keys: [{name: a, key: sésame}]", "same API key"),
        ("kyes: []", "kyes"),
        ("keys: [", "cannot read"),
        ("- 1", "object"),
    ],
)
def test_wrong_key_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        load_keys(keys_file(tmp_path, text))
    assert "sésame" not in caught.value.message


def test_no_keys_file_is_an_error_that_names_it() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_keys(AccessConfig(keys_file="/nowhere.yaml"))


def test_no_key_is_ever_shown(capfd: pytest.CaptureFixture[str]) -> None:
    access: Any = AccessConfig(api_key=("sesame-secret",))
    with LiveServer(FakeLLM(hello), access) as live:
        response = httpx.get(live.url + "/v1/models", headers={"x-api-key": "wrong-secret"})
    shown = response.text + str(capfd.readouterr())
    assert "secret" not in shown
