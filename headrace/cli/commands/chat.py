"""Talk with a model on the terminal."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import typer

from headrace.cli.conversation import chat_ids
from headrace.cli.settings import Gathered, with_settings
from headrace.engine.outputs import RequestOutput


@with_settings("model", "device", "kv", "schedule", "speculate", without=("model.model", "model.seed"))
def command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Catalogue name, .gguf file, checkpoint directory or hub id [default: smollm2:135m]"
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 takes the most likely token.")] = None,
    seed: Annotated[int | None, typer.Option(help="Same seed, same answers.")] = None,
    *,
    settings: Gathered,
) -> None:
    """Talk with a model; an empty line or Ctrl-D ends, Ctrl-C stops an answer."""
    del model  # it is in the settings
    given = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    _talk(settings, system, {k: v for k, v in given.items() if v is not None})


def _talk(settings: Gathered, system: str | None, given: dict[str, Any]) -> None:
    from rich.console import Console

    from headrace.base.errors import RequestError
    from headrace.engine.llm import LLM

    console = Console(highlight=False)
    with console.status("loading"):
        llm = LLM(settings.config)
    with llm:
        messages = [{"role": "system", "content": system}] if system is not None else []
        params = replace(llm.defaults, **({"max_tokens": None} | given))
        limit = llm.resolved.max_model_len
        console.print(f"{llm.resolved.model.name}, context {limit} tokens; an empty line ends", markup=False)
        while (line := _ask(console)) is not None:
            messages.append({"role": "user", "content": line})
            try:
                answer = _answer(llm.stream(chat_ids(llm, messages), params))
            except RequestError as error:
                console.print(error.message, style="red", markup=False)
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer})


def _answer(outputs: Iterator[RequestOutput]) -> str:
    """Print an answer as it comes; Ctrl-C ends it early and keeps what is there."""
    text: list[str] = []
    try:
        for output in outputs:
            if output.error is not None:
                raise output.error
            for delta in output.choices:
                text.append(delta.text)
                print(delta.text, end="", flush=True)  # plain: a model's text is no markup
    except KeyboardInterrupt:
        text.append("")
    print()
    return "".join(text)


def _ask(console: Any) -> str | None:
    try:
        return console.input("[bold green]> [/bold green]").strip() or None
    except EOFError:
        return None
