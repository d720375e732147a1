"""`headrace bench ablate`: what each technique gains on this machine with this model."""

import asyncio
import json
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.loads import check_folders, watching, write_text

Model = Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")]
Only = Annotated[list[str] | None, typer.Option("--only", help="A technique by its name; repeat it.")]
Flag = Annotated[
    list[str] | None, typer.Option("--flag", help="More of `serve` for both servers, as --flag=--threads=2.")
]
Json = Annotated[Path | None, typer.Option("--json", help="Write every figure; - prints them.")]


def ablate(
    model: Model,
    only: Only = None,
    pairs: Annotated[int, typer.Option("--pairs", help="Pairs of loads, one without and one with.")] = 5,
    flag: Flag = None,
    json_file: Json = None,
    markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the table.")] = None,
) -> None:
    """Switch each technique off and on and compare, in pairs, on the load that shows it."""
    from headrace.tools.ablate import run, table
    from headrace.tools.ablate.techniques import Technique, chosen

    check_folders(json_file, markdown)
    techniques = chosen(tuple(only or ()))
    with watching() as (begin, count):

        def half(technique: Technique, number: int, side: str) -> None:
            begin(f"{technique.name}: pair {number + 1} of {pairs}, {side}")

        watch = run.Watch(on_half=half, on_done=count)
        found = asyncio.run(run.ablate(model, techniques, pairs, tuple(flag or ()), watch))
    text = table.markdown(found)
    if str(json_file) != "-":
        print(text, end="")
    write_text(json_file, "json", json.dumps(table.as_json(found), indent=1))
    write_text(markdown, "markdown", text)
