"""Talk with a model on the terminal."""

import asyncio
from dataclasses import replace
from typing import Annotated, Any

import typer

from headrace.cli.settings import Gathered, with_settings


@with_settings("model", "device", "kv", "schedule", without=("model.model", "model.seed"))
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
    asyncio.run(_talk(settings, system, {k: v for k, v in given.items() if v is not None}))


async def _talk(settings: Gathered, system: str | None, given: dict[str, Any]) -> None:
    from rich.console import Console

    from headrace.base.errors import RequestError
    from headrace.engine.async_llm import AsyncLLM

    console = Console(highlight=False)
    config = replace(settings.config, serve=replace(settings.config.serve, in_process=True))
    with console.status("loading"):
        llm = await AsyncLLM.start(config)
    messages = [{"role": "system", "content": system}] if system is not None else []
    params = replace(llm.defaults, **({"max_tokens": None} | given))
    console.print(f"[bold]{llm.model_name}[/bold], context {llm.max_model_len} tokens; empty line ends")
    try:
        while (line := await asyncio.to_thread(_ask, console)) is not None:
            messages.append({"role": "user", "content": line})
            try:
                answer = await _answer(llm.chat(messages, params))
            except RequestError as error:
                console.print(f"[red]{error.message}[/red]", markup=True)
                messages.pop()
                continue
            messages.append({"role": "assistant", "content": answer})
    finally:
        await llm.close(0.0)


async def _answer(outputs: Any) -> str:
    text: list[str] = []
    async for output in outputs:
        if output.error is not None:
            raise output.error
        for delta in output.choices:
            text.append(delta.text)
            print(delta.text, end="", flush=True)  # plain: a model's text is no markup
    print()
    return "".join(text)


def _ask(console: Any) -> str | None:
    try:
        return console.input("[bold green]> [/bold green]").strip() or None
    except EOFError:
        return None
