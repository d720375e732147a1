"""Continue a prompt, or answer it with --chat, and print the text or one JSON object."""

import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from headrace.cli.conversation import chat_ids
from headrace.cli.settings import Gathered, with_settings
from headrace.engine.outputs import RequestOutput


@with_settings("model", "device", "kv", "schedule", "speculate", without=("model.model", "model.seed"))
def command(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    prompt: Annotated[str, typer.Argument(help="The prompt; - reads standard input.")],
    chat: Annotated[bool, typer.Option("--chat", help="Render the prompt with the chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message, with --chat.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens to draw [default: 256]")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Smallest set of this probability.")] = None,
    top_k: Annotated[int | None, typer.Option(help="The k most likely tokens.")] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends the output; may be repeated.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same text.")] = None,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on after end tokens.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
    *,
    settings: Gathered,
) -> None:
    """Generate text."""
    text = sys.stdin.read() if prompt == "-" else prompt
    given: dict[str, Any] = {
        "max_tokens": 256 if max_tokens is None else max_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "seed": seed,
        "stop": tuple(stop) if stop else None,
        "ignore_eos": ignore_eos,
    }
    del model  # it is in the settings
    messages: list[dict[str, str]] | None = None
    if chat:
        messages = [{"role": "system", "content": system}] if system is not None else []
        messages.append({"role": "user", "content": text})
    _run(settings, messages if messages is not None else text, given, json)


def _run(
    settings: Gathered, prompt: str | list[dict[str, str]], given: dict[str, Any], as_json: bool
) -> None:
    from headrace.engine.llm import LLM

    with LLM(settings.config) as llm:
        load_s = sum(llm.phases.values())
        params = replace(llm.defaults, **{k: v for k, v in given.items() if v is not None})
        ids = prompt if isinstance(prompt, str) else chat_ids(llm, prompt)
        answer: dict[str, Any] = {"text": "", "token_ids": []}
        for output in llm.stream(ids, params):
            if output.error is not None:
                raise output.error
            for delta in output.choices:
                answer["text"] += delta.text
                answer["token_ids"] += delta.token_ids
                if not as_json:
                    print(delta.text, end="", flush=True)
                if delta.finish_reason is not None:
                    answer["finish_reason"] = delta.finish_reason
            if output.finished:
                answer |= _facts(output, load_s)
        _print_end(answer, as_json)


def _facts(output: RequestOutput, load_s: float) -> dict[str, Any]:
    usage = output.usage
    return {
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.prompt_tokens + usage.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": usage.cached_tokens},
        },
        "timings": {"load_s": load_s, **(output.timings or {})},
        "seed": output.seed,
        **({} if output.drafts is None else {"drafts": output.drafts.body()}),
    }


def _print_end(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        from json import dumps

        print(dumps(answer, ensure_ascii=False))
    else:
        print()
