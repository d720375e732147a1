"""The official client against the real server and the embedded model."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.serve.conftest import Live, serving

MESSAGES: Any = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(live_server: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=live_server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def metric(live: Live, name: str) -> float:
    lines = httpx.get(live.url + "/metrics").text.splitlines()
    return float(next(line for line in lines if line.startswith(name + " ")).split()[1])


def wait_for(condition: Any, seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def test_the_banner_tells_settings_with_reasons(live_server: Live) -> None:
    for word in ("schedule.max_num_seqs", "--max-num-seqs", "kv.num_blocks", "why", live_server.url):
        assert word in live_server.banner


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="smollm2", messages=MESSAGES, temperature=0, max_tokens=20)
    assert len(answer.choices[0].message.content or "") > 10
    assert answer.choices[0].finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_stream_equals_whole_and_usage_is_exact(client: openai.OpenAI) -> None:
    """AP-3: the prompt counts once, choices add up, whole and streamed alike."""
    ask: Any = {
        "model": "smollm2",
        "messages": MESSAGES,
        "temperature": 0.8,
        "seed": 5,
        "max_tokens": 24,
        "n": 3,
    }
    whole = client.chat.completions.create(**ask, extra_body={"return_token_ids": True})
    texts, reasons, usage = {0: "", 1: "", 2: ""}, [], None
    for chunk in client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            if choice.finish_reason:
                reasons.append((choice.index, choice.finish_reason))
        if chunk.usage:
            assert chunk.choices == []
            usage = chunk.usage
    assert [texts[i] for i in range(3)] == [c.message.content for c in whole.choices]
    assert sorted(reasons) == [(c.index, c.finish_reason) for c in whole.choices]
    assert len({*texts.values()}) == 3
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )
    counted = sum(len(c.model_extra["token_ids"]) for c in whole.choices if c.model_extra)
    assert usage.completion_tokens == counted
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens is not None
    assert whole.model_extra is not None
    assert whole.model_extra["seed"] == 5


def test_a_drawn_seed_repeats_the_answer(client: openai.OpenAI) -> None:
    first = client.completions.create(model="smollm2", prompt="Once", temperature=1.0, max_tokens=12)
    assert first.model_extra is not None
    again = client.completions.create(
        model="smollm2", prompt="Once", temperature=1.0, max_tokens=12, seed=first.model_extra["seed"]
    )
    assert again.choices[0].text == first.choices[0].text


def test_logprobs_do_not_depend_on_their_number_or_temperature(client: openai.OpenAI) -> None:
    def ask(**more: Any) -> list[float]:
        answer = client.completions.create(
            model="smollm2", prompt="The capital of France is", max_tokens=1, seed=1, **more
        )
        assert answer.choices[0].logprobs is not None
        return list(answer.choices[0].logprobs.top_logprobs[0].values())  # type: ignore[index]

    five, one = ask(logprobs=5, temperature=0), ask(logprobs=1, temperature=0)
    assert max(five) == max(one)
    assert max(ask(logprobs=5, temperature=0.2)) == max(five)


def test_token_ids_agree_everywhere(live_server: Live, client: openai.OpenAI, smollm2_path: Path) -> None:
    from headrace.compute.weights.checkpoint import open_checkpoint
    from headrace.engine.text import load_text

    opened = open_checkpoint(smollm2_path)
    text = load_text(opened.tokenizer_source, opened.generation, None)
    tricky: Any = [
        {"role": "system", "content": "Be <|im_end|> brief."},
        {"role": "user", "content": "Ünïcode 🎉 and  two spaces\n<|im_start|>system\nno"},
    ]
    offline = list(text.encode_chat(tricky, {}))
    served = httpx.post(live_server.url + "/tokenize", json={"messages": tricky}).json()
    chat = client.chat.completions.create(
        model="smollm2",
        messages=tricky,
        max_tokens=1,
        extra_body={"return_token_ids": True},  # type: ignore[arg-type]
    )
    assert chat.model_extra is not None
    assert served["tokens"] == offline == chat.model_extra["prompt_token_ids"]
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == served["count"] == len(offline)
    prompt = "plain <|im_end|> text"
    ids = httpx.post(live_server.url + "/tokenize", json={"prompt": prompt}).json()["tokens"]
    completion = client.completions.create(
        model="smollm2", prompt=prompt, max_tokens=1, extra_body={"return_token_ids": True}
    )
    assert completion.choices[0].model_extra is not None
    assert completion.choices[0].model_extra["prompt_token_ids"] == ids
    assert httpx.post(live_server.url + "/detokenize", json={"tokens": ids}).json()["prompt"] == prompt


def test_prompts_as_texts_and_ids(live_server: Live, client: openai.OpenAI) -> None:
    ids = httpx.post(live_server.url + "/tokenize", json={"prompt": "One two three"}).json()["tokens"]
    ask: Any = {"model": "smollm2", "temperature": 0, "max_tokens": 6}
    text = client.completions.create(prompt="One two three", **ask).choices[0].text
    assert client.completions.create(prompt=ids, **ask).choices[0].text == text
    several = client.completions.create(prompt=["One two three", "Red green"], **ask)
    assert [c.index for c in several.choices] == [0, 1]
    assert several.choices[0].text == text
    echoed = client.completions.create(prompt="One two three", echo=True, logprobs=0, **ask).choices[0]
    assert echoed.text == "One two three" + text
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert echoed.logprobs.token_logprobs[0] is None
    assert len(echoed.logprobs.token_logprobs) == len(ids) + 6


@pytest.mark.parametrize("include", [False, True])
def test_stop_strings_whole_and_streamed(client: openai.OpenAI, include: bool) -> None:
    ask: Any = {"model": "smollm2", "prompt": "1, 2, 3, 4, 5, 6,", "temperature": 0, "max_tokens": 40}
    free = client.completions.create(**ask).choices[0].text
    stop = free[7:11]
    want = free[: free.index(stop)] + (stop if include else "")
    more: Any = {"stop": [stop, "never here"], "extra_body": {"include_stop_str_in_output": include}}
    whole = client.completions.create(**ask, **more).choices[0]
    chunks = [c.choices[0] for c in client.completions.create(**ask, **more, stream=True)]
    assert whole.text == want
    assert "".join(c.text for c in chunks) == want
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.finish_reason] == ["stop"]
    assert whole.model_extra is not None
    assert whole.model_extra["stop_reason"] == stop


def test_finish_reasons_per_cause(live_server: Live, client: openai.OpenAI) -> None:
    def reason(**more: Any) -> tuple[str, Any]:
        choice = client.completions.create(model="smollm2", temperature=0, **more).choices[0]
        return choice.finish_reason, (choice.model_extra or {}).get("stop_reason")

    assert reason(prompt="Once upon", max_tokens=1) == ("length", None)
    end = httpx.post(
        live_server.url + "/tokenize", json={"prompt": "<|im_end|>", "add_special_tokens": False}
    ).json()["tokens"]
    assert len(end) == 1
    only_end: Any = {"allowed_token_ids": end}
    assert reason(prompt="Once upon", max_tokens=9, extra_body=only_end) == ("stop", None)
    ignoring: Any = only_end | {"ignore_eos": True}
    assert reason(prompt="Once upon", max_tokens=9, extra_body=ignoring) == ("length", None)
    stopping: Any = ignoring | {"stop_token_ids": end}
    assert reason(prompt="Once upon", max_tokens=9, extra_body=stopping) == ("stop", end[0])
    full: Any = {"prompt": [1000] * 510, "max_tokens": 2, "extra_body": {"ignore_eos": True}}
    assert reason(**full)[0] == "length"


@pytest.mark.parametrize("length", [511, 512, 513])
def test_the_context_limit_is_defined(live_server: Live, length: int) -> None:
    def ask(**more: Any) -> httpx.Response:
        body = {"prompt": [1000] * length, "ignore_eos": True, "temperature": 0} | more
        return httpx.post(live_server.url + "/v1/completions", json=body, timeout=60)

    assert ask(max_tokens=0).status_code == 400
    one = ask(max_tokens=1)
    if length == 511:
        assert one.status_code == 200
        assert one.json()["choices"][0]["finish_reason"] == "length"
        assert one.json()["usage"]["prompt_tokens"] == 511
        assert one.json()["usage"]["completion_tokens"] == 1
    else:
        assert one.status_code == 400
    large = ask(max_tokens=1000)
    if length == 511:  # the context ends the answer, as it would without max_tokens
        assert large.json()["choices"][0]["finish_reason"] == "length"
        assert large.json()["usage"]["completion_tokens"] == 1
        return
    assert large.status_code == 400
    assert large.json()["error"]["code"] == "context_length_exceeded"
    assert "512" in large.json()["error"]["message"]


def test_a_chat_without_limit_may_fill_the_context(live_server: Live) -> None:
    long = [{"role": "user", "content": "word " * 420}]
    body = {"messages": long, "temperature": 0, "ignore_eos": True}
    answer = httpx.post(live_server.url + "/v1/chat/completions", json=body, timeout=120).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 512


def test_the_async_client_and_many_at_once(live_server: Live) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=live_server.url + "/v1", api_key="x", timeout=60) as client:

            async def one(number: int) -> str:
                stream = await client.chat.completions.create(
                    model="smollm2", messages=MESSAGES, seed=number % 3, max_tokens=10, stream=True
                )
                return "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])

            texts = await asyncio.gather(*(one(n) for n in range(12)))
            for number in range(12):
                assert texts[number] == texts[number % 3]

    asyncio.run(main())


def test_a_disconnect_frees_what_was_held(live_server: Live) -> None:
    host, port = live_server.url[7:].split(":")
    wait_for(lambda: metric(live_server, "headrace_kv_blocks_held") == 0)
    for stream in (True, False):
        body = json.dumps(
            {"prompt": [1000] * 300, "max_tokens": 200, "n": 2, "stream": stream, "ignore_eos": True}
        ).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        for wait_s in (0.0, 0.05, 0.3):
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(head + body)
                time.sleep(wait_s)
        wait_for(
            lambda: (
                metric(live_server, "headrace_kv_blocks_held") == 0
                and metric(live_server, "headrace_num_requests_running") == 0
                and metric(live_server, "headrace_num_requests_waiting") == 0
            ),
            3.0,
        )


def test_health_answers_while_a_huge_prompt_is_refused(live_server: Live) -> None:
    answers: list[httpx.Response] = []
    prompts = ["word " * 4_000_000, "word " * 3_000_000]  # over and under the limit of the body

    def send() -> None:
        answers.extend(
            httpx.post(live_server.url + "/v1/chat/completions", timeout=60, content=body) for body in bodies
        )

    bodies = [json.dumps({"messages": [{"role": "user", "content": p}]}).encode() for p in prompts]
    sender = threading.Thread(target=send)
    start = time.monotonic()
    sender.start()
    slowest = 0.0
    with httpx.Client(base_url=live_server.url) as client:
        client.get("/health")
        while sender.is_alive():
            asked = time.monotonic()
            assert client.get("/health").status_code == 200
            slowest = max(slowest, time.monotonic() - asked)
    assert [a.status_code for a in answers] == [413, 400]
    assert slowest < 0.2
    assert time.monotonic() - start < 5


def test_overload_is_refused_quickly(smollm2_path: Path) -> None:
    flags = ("--max-num-seqs", "4", "--max-queued-requests", "4", "--max-model-len", "512", "--in-process")
    with serving(smollm2_path, *flags) as live:

        async def main() -> list[tuple[int, float, str]]:
            async with httpx.AsyncClient(base_url=live.url, timeout=60) as client:

                async def one(delay_s: float) -> tuple[int, float, str]:
                    await asyncio.sleep(delay_s)
                    body = {"prompt": "a b c", "max_tokens": 100, "ignore_eos": True, "temperature": 0}
                    start = time.monotonic()
                    answer = await client.post("/v1/completions", json=body)
                    text = answer.json()["choices"][0]["text"] if answer.status_code == 200 else ""
                    if answer.status_code == 429:
                        assert int(answer.headers["retry-after"]) >= 1
                    return answer.status_code, time.monotonic() - start, text

                first = [asyncio.create_task(one(0)) for _ in range(4)]
                await asyncio.sleep(0.2)  # they run; the next four wait
                second = [asyncio.create_task(one(0)) for _ in range(4)]
                await asyncio.sleep(0.1)
                third = [asyncio.create_task(one(0)) for _ in range(12)]
                return await asyncio.gather(*first, *second, *third)

        got = asyncio.run(main())
    assert [status for status, _, _ in got] == [200] * 8 + [429] * 12
    assert len({text for status, _, text in got if status == 200}) == 1
    assert max(seconds for status, seconds, _ in got if status == 429) < 0.5


def test_term_drains_then_ends(smollm2_path: Path) -> None:
    with serving(smollm2_path, "--max-model-len", "512", "--drain-s", "20") as live:
        lines: list[str] = []

        def read() -> None:
            body = {"prompt": "a b c", "max_tokens": 100, "ignore_eos": True, "stream": True}
            with httpx.stream("POST", live.url + "/v1/completions", json=body, timeout=60) as response:
                lines.extend(line for line in response.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: len(lines) > 3)
        live.process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        with contextlib.suppress(httpx.TransportError):  # it may be over already
            assert httpx.get(live.url + "/ready").status_code == 503
        reader.join(30)
        assert lines[-1] == "data: [DONE]"
        assert json.loads(lines[-2][6:])["choices"][0]["finish_reason"] == "length"
        assert live.process.wait(10) == 0


def test_term_cuts_after_the_grace_time(smollm2_path: Path) -> None:
    with serving(smollm2_path, "--drain-s", "0.2") as live:
        lines: list[str] = []

        def read() -> None:
            body = {"prompt": "a b c", "max_tokens": 8000, "ignore_eos": True, "stream": True}
            with (
                contextlib.suppress(httpx.TransportError),
                httpx.stream("POST", live.url + "/v1/completions", json=body, timeout=60) as response,
            ):
                lines.extend(line for line in response.iter_lines() if line)

        reader = threading.Thread(target=read)
        reader.start()
        wait_for(lambda: len(lines) > 3)
        live.process.send_signal(signal.SIGTERM)
        try:
            assert live.process.wait(10) == 0
        except subprocess.TimeoutExpired:
            pytest.fail("the server did not end")
        reader.join(10)
        assert lines[-1] == "data: [DONE]"
        reasons = [
            json.loads(line[6:]).get("choices", [{}])[0].get("finish_reason")
            for line in lines[:-1]
            if "choices" in line
        ]
        assert [r for r in reasons if r] in (["abort"], ["error"])
