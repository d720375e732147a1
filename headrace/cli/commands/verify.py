"""Prove on your own model and prompts that how a request is run changes no bit of its answer.

Each prompt is answered alone; then the same requests run in a batch, in chunks, from the prefix cache,
through preemption, with other threads and instruction sets, and with drafts. Every token and log-probability
is compared with ==. Exit status 1: something differs.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.base.errors import ConfigError
from headrace.cli.settings import Gathered, with_settings


@with_settings("model", "device", "kv", "schedule", without=("model.model", "model.seed"))
def command(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    prompts: Annotated[
        Path | None, typer.Option(help='Prompts, one per line or JSON lines with "prompt".')
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 32,
    case: Annotated[list[str] | None, typer.Option(help="Run this case; may be repeated.")] = None,
    speculate: Annotated[
        list[str] | None,
        typer.Option(
            help="Verify this way of speculating, as `serve` takes it: draft=MODEL, early-exit=N, "
            "medusa=PATH, eagle=PATH, auto, ngram or suffix; may be repeated [default: ngram]"
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    settings: Gathered,
) -> None:
    """Verify the exactness contract."""
    from headrace.tools.verify.prompts import BUILT_IN, read_prompts
    from headrace.tools.verify.verifying import WRONG, Verdict, Verifying, total_text

    del model  # it is in the settings
    if not 1 <= max_tokens <= 4096:
        raise ConfigError(f"--max-tokens must be in [1, 4096], got {max_tokens}", param="max_tokens")
    texts = BUILT_IN if prompts is None else read_prompts(prompts)
    verifying = Verifying(settings.config, texts, max_tokens, speculate or ())
    verdicts: list[Verdict] = []
    for verdict in verifying.run(case or ()):
        verdicts.append(verdict)
        if not json:
            print(verdict.text(), flush=True)
    is_exact = not any(verdict.outcome in WRONG for verdict in verdicts)
    if json:
        from json import dumps

        listed = [{**asdict(verdict), "outcome": verdict.outcome} for verdict in verdicts]
        print(dumps({"exact": is_exact, "prompts": len(texts), "cases": listed}))
    else:
        print(total_text(len(texts), verdicts))
    if not is_exact:
        raise typer.Exit(1)
