"""Train small heads that draft for a model, on text that it writes itself.

The heads are written to a folder for --speculate medusa=FOLDER, with a report of how often they are right on
text that they were not trained on. The model does not change. Needs torch: pip install 'headrace[compress]'.
"""

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.settings import Gathered, with_settings


@with_settings("model", "device", "kv", "schedule", without=("model.model", "model.seed"))
def command(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    heads: Annotated[str, typer.Option(help="What is trained: medusa or eagle.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    prompts: Annotated[
        Path | None,
        typer.Option(help="Prompts, one per line, like those that will be asked [default: built-in]"),
    ] = None,
    minutes: Annotated[float, typer.Option(help="Time in all, about.")] = 10.0,
    depth: Annotated[int, typer.Option(help="Heads, or drafts that a layer is trained for.")] = 4,
    vocab: Annotated[int, typer.Option(help="Tokens that heads know, the most frequent ones.")] = 4096,
    temperature: Annotated[float, typer.Option(help="Of the text to train on.")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="Tokens of each answer.")] = 192,
    seed: Annotated[int, typer.Option(help="Of prompts, text and training.")] = 0,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the heads in --out, with new text.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    *,
    settings: Gathered,
) -> None:
    """Train heads."""
    from headrace.cli.phases import Phased
    from headrace.tools.distill.plan import Plan
    from headrace.tools.distill.run import distill

    del model  # it is in the settings
    plan = Plan(
        method=heads,
        out=out,
        prompts=prompts,
        minutes=minutes,
        heads=depth,
        vocab=vocab,
        temperature=temperature,
        max_tokens=max_tokens,
        seed=seed,
        resume=resume,
    )
    with Phased() as watcher:
        report = distill(settings.config, plan, watcher)
    if json:
        from json import dumps

        print(dumps(report))
        return
    print(f"{out}: {report['training_tokens']} tokens, {report['steps']} steps, {report['seconds']:.0f} s")
    for place, share in enumerate(report["acceptance_by_depth"], 1):
        print(f"  the first {place} right: {share:6.1%}")
    print(f"  tokens of a step with all drafts: {report['tokens_per_step']:.2f}")
    print(f"use them with --speculate {heads}={out}")
