"""Serve a model over HTTP: the OpenAI API under /v1, and pages for operators."""

import asyncio
from dataclasses import fields
from typing import Annotated, Any

import typer

from headrace.base.config import EngineConfig, all_settings
from headrace.cli.settings import Gathered, with_settings


@with_settings(*(section.name for section in fields(EngineConfig)), without=("model.model",))
def command(
    model: Annotated[
        str | None,
        typer.Argument(
            help="Catalogue name, .gguf file, checkpoint directory or hub id [default: smollm2:135m]"
        ),
    ] = None,
    check: Annotated[bool, typer.Option("--check", help="Print the resolved settings and exit.")] = False,
    *,
    settings: Gathered,
) -> None:
    """Serve a model."""
    del model  # it is in the settings
    if check:
        from headrace.engine.build import open_model
        from headrace.serve.address import check as check_address
        from headrace.serve.front.keys import load_keys
        from headrace.serve.server import check_batches

        check_address(settings.config.serve)
        check_batches(settings.config.batch)
        load_keys(settings.config.access)
        _print_settings(open_model(settings.config, with_text=False).resolved, settings, is_whole=True)
        return

    from headrace.base.memory import keep_small
    from headrace.engine.process.spawn import spawn
    from headrace.serve.address import bind

    keep_small()
    sock = bind(settings.config.serve)  # first: a taken port costs no start
    # Both processes import their modules; then one loads the model while the other imports the server.
    asked = settings.config.model
    spawned = None if settings.config.serve.in_process else spawn(asked.model, asked.load_format)

    from headrace.engine.async_llm import AsyncLLM, Launch

    launch = Launch(settings.config, spawned) if spawned else None
    from headrace.serve.server import serve

    def announce(llm: AsyncLLM, url: str) -> None:
        _print_settings(llm.resolved, settings)
        print(
            f"Headrace serves {llm.model_name} at {url} (API under /v1, dashboard at /dashboard)", flush=True
        )

    asyncio.run(serve(settings.config, announce, sock, launch))


def _print_settings(resolved: Any, gathered: Gathered, *, is_whole: bool = False) -> None:
    """The resolved settings: what was asked for and where, what holds, and why.

    `is_whole`: those too that hold as they are.
    """
    from headrace.cli.tables import print_table

    rows: list[tuple[str, str, str, str]] = []
    for setting in resolved.settings:
        origin = gathered.origin_by_name.get(setting.name) or gathered.origin_by_name.get(
            f"model.{setting.name}"
        )
        asked = f"{setting.asked} ({origin})" if origin else setting.asked
        rows.append((setting.name, asked, setting.value, setting.reason))
    if is_whole:
        rows += _plain_settings({row[0] for row in rows} | {"model.model"}, gathered)
    print_table(("setting", "asked", "value", "why"), rows)


def _plain_settings(shown: set[str], gathered: Gathered) -> list[tuple[str, str, str, str]]:
    """Settings that nothing else decides; keys are counted, not shown."""
    rows: list[tuple[str, str, str, str]] = []
    for info in all_settings():
        name = f"{info.section}.{info.name}"
        if name in shown:
            continue
        value = getattr(getattr(gathered.config, info.section), info.name)
        text = {None: "none", (): "none"}.get(value, str(value))
        if name == "access.api_key" and value:
            text = f"{len(value)} keys"
        origin = gathered.origin_by_name.get(name)
        rows.append(
            (name, f"{text} ({origin})" if origin else "", text, "asked for" if origin else "default")
        )
    return rows
