"""LangChain's chat model and the `llm` command line against the real server and the embedded model."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from headrace.base.env import child_environment
from tests.serve.conftest import Live

QUESTION = "What is the capital of France?"


class Place(pydantic.BaseModel):
    """A city."""

    model_config = pydantic.ConfigDict(extra="forbid")

    city: str = pydantic.Field(max_length=20)
    days: int = pydantic.Field(ge=1, le=9)


@tool
def get_weather(city: str, days: int) -> str:
    """The forecast for a city."""
    return f"{days} days of sun in {city}"


@tool
def get_time() -> str:
    """The time of day."""
    return "noon"


def chat(live: Live, **given: Any) -> ChatOpenAI:
    settings: dict[str, Any] = {"temperature": 0, "max_tokens": 16, "max_retries": 0, "timeout": 60} | given
    return ChatOpenAI(model="smollm2", base_url=live.url + "/v1", api_key="none", **settings)


def expected(live: Live, tokens: int = 16) -> str:
    """What the official client is told."""
    with openai.OpenAI(base_url=live.url + "/v1", api_key="none", max_retries=0) as client:
        answer = client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=tokens,
        )
    return answer.choices[0].message.content or ""


def test_langchain_invokes(live_server: Live) -> None:
    answer = chat(live_server).invoke(QUESTION)
    assert answer.content == expected(live_server)
    assert answer.response_metadata["finish_reason"] in {"stop", "length"}
    assert answer.usage_metadata is not None
    assert 0 < answer.usage_metadata["output_tokens"] <= 16
    assert answer.usage_metadata["total_tokens"] == (
        answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    )


def test_langchain_streams_what_it_invokes(live_server: Live) -> None:
    parts = list(chat(live_server, stream_usage=True).stream(QUESTION))
    assert sum(bool(part.content) for part in parts) > 2
    whole = parts[0]
    for part in parts[1:]:
        whole += part
    assert isinstance(whole, AIMessageChunk)
    assert whole.content == expected(live_server)
    assert whole.usage_metadata == chat(live_server).invoke(QUESTION).usage_metadata


async def test_langchain_answers_async_and_in_batches(live_server: Live) -> None:
    model = chat(live_server)
    told = expected(live_server)
    assert (await model.ainvoke(QUESTION)).content == told
    assert "".join([str(part.content) async for part in model.astream(QUESTION)]) == told
    assert [answer.content for answer in await model.abatch([QUESTION] * 3)] == [told] * 3


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("temperature", [0, 1])
def test_langchain_gets_structured_output(live_server: Live, method: Any, temperature: int) -> None:
    model = chat(live_server, temperature=temperature, seed=7, max_tokens=80)
    place = model.with_structured_output(Place, method=method, strict=True).invoke(
        "How long is it dry in Oslo?"
    )
    assert isinstance(place, Place)


def test_langchain_gets_the_call_it_names_and_returns_its_result(live_server: Live) -> None:
    model = chat(live_server, max_tokens=80)
    named = model.bind_tools([get_time, get_weather], tool_choice="get_weather", strict=True)
    asked = HumanMessage("How is the weather in Oslo?")
    answer = named.invoke([asked])
    assert isinstance(answer, AIMessage)
    assert [call["name"] for call in answer.tool_calls] == ["get_weather"]
    assert answer.invalid_tool_calls == []
    result = get_weather.invoke(answer.tool_calls[0])
    assert isinstance(result, ToolMessage)

    streamed = None
    for part in named.stream([asked]):
        streamed = part if streamed is None else streamed + part
    assert isinstance(streamed, AIMessageChunk)
    assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [
        (call["name"], call["args"]) for call in answer.tool_calls
    ]

    assert model.invoke([asked, answer, result]).content


def test_langchain_passes_on_the_servers_words(live_server: Live) -> None:
    with pytest.raises(openai.BadRequestError, match="512"):
        chat(live_server).invoke("word " * 3000)


def llm(home: Path, *arguments: str) -> str:
    """What the command prints, with its settings and logs under `home`."""
    environment = child_environment() | {"LLM_USER_PATH": str(home), "NO_COLOR": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "llm", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def llm_home(live_server: Live, tmp_path: Path) -> Path:
    model = {"model_id": "local", "model_name": "smollm2", "api_base": live_server.url + "/v1"}
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([model]))  # JSON is YAML
    return tmp_path


def test_llm_answers_prompts_streamed_and_whole(live_server: Live, llm_home: Path) -> None:
    told = expected(live_server)
    ask = ["-m", "local", "-o", "temperature", "0", "-o", "max_tokens", "16", QUESTION]
    assert llm(llm_home, *ask).strip() == told.strip()
    assert llm(llm_home, *ask, "--no-stream").strip() == told.strip()
    logged = json.loads(llm(llm_home, "logs", "--json"))
    assert [entry["response"] for entry in logged] == [told] * 2
    tokens = [(entry["input_tokens"], entry["output_tokens"]) for entry in logged]
    assert tokens[0] == tokens[1]
    assert 0 < tokens[0][1] <= 16
