"""Serve a model over HTTP: the OpenAI API under /v1, and pages for operators."""

import asyncio
from typing import Annotated, Any

import typer

from headrace.cli.settings import Gathered, with_settings


@with_settings(
    "model", "device", "kv", "schedule", "serve", "access", "watch", "observe", without=("model.model",)
)
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

        _print_settings(open_model(settings.config, with_text=False).resolved, settings)
        return

    from headrace.engine.process.spawn import spawn

    # The engine process imports its modules while this one imports the server.
    spawned = None if settings.config.serve.in_process else spawn()

    from headrace.engine.async_llm import AsyncLLM
    from headrace.serve.server import serve

    def announce(llm: AsyncLLM, url: str) -> None:
        _print_settings(llm.resolved, settings)
        print(f"Headrace serves {llm.model_name} at {url}", flush=True)

    asyncio.run(serve(settings.config, announce, spawned))


def _print_settings(resolved: Any, gathered: Gathered) -> None:
    """The resolved settings: what was asked for and where, what holds, and why."""
    from headrace.cli.tables import print_table

    rows: list[tuple[str, str, str, str]] = []
    for setting in resolved.settings:
        origin = gathered.origin_by_name.get(setting.name) or gathered.origin_by_name.get(
            f"model.{setting.name}"
        )
        asked = f"{setting.asked} ({origin})" if origin else setting.asked
        rows.append((setting.name, asked, setting.value, setting.reason))
    print_table(("setting", "asked", "value", "why"), rows)
