"""Measure servers and engines: `bench serve`, `compare A B`, `throughput`, `latency`, `ablate`."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.base.errors import RequestError
from headrace.cli.ablate import ablate
from headrace.cli.loads import (
    ASKED,
    FLAGS,
    LOOPS,
    asked_of,
    check_folders,
    dataset_of,
    watching,
    with_flags,
    write_text,
)
from headrace.cli.settings import Gathered, with_settings

command = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Measure servers (serve, compare), techniques (ablate), an engine alone (throughput, latency).",
)
command.command("ablate")(ablate)

Json = Annotated[Path | None, typer.Option("--json", help="Write figures and every request; - prints them.")]
Markdown = Annotated[Path | None, typer.Option("--markdown", help="Write the tables.")]
Plot = Annotated[
    Path | None, typer.Option("--plot", help="Write charts: .html alone; .png, .svg, .pdf with matplotlib.")
]
Model = Annotated[str | None, typer.Option("--model", help="Model to ask [default: the server's first]")]
Key = Annotated[str | None, typer.Option("--api-key", envvar="OPENAI_API_KEY", help="Sent as bearer token.")]
IgnoreEos = Annotated[
    bool,
    typer.Option(
        "--ignore-eos/--no-ignore-eos", help="Ask for answers of full length (a field that OpenAI refuses)."
    ),
]
Repeat = Annotated[int, typer.Option("--repeat", help="Repetitions that are measured.")]

OFFLINE = ("model", "device", "kv", "schedule", "speculate")
"""Sections of the settings that an engine in this process has flags of."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


@dataclass(frozen=True, slots=True)
class Files:
    """Where results go; checked before anything is measured."""

    json: Path | None
    markdown: Path | None
    plot: Path | None

    def check(self) -> None:
        """Refuse names that cannot be written.

        Raises:
            RequestError: an unknown ending, or a folder that is not there.
        """
        from headrace.tools.bench.report import plot

        if self.plot is not None:
            plot.check(self.plot)
        check_folders(self.json, self.markdown, self.plot)

    def write(self, title: str, facts: dict[str, Any], text: str, charts: Sequence[Any]) -> None:
        """Write what was asked for; print the tables, unless JSON goes to standard output."""
        from headrace.tools.bench.report import plot

        if str(self.json) != "-":
            print(text, end="")
        write_text(self.json, "json", json.dumps({"title": title} | facts, indent=1))
        write_text(self.markdown, "markdown", f"# {title}\n\n{text}")
        if self.plot is not None:
            plot.write(self.plot, title, charts, text)


@command.command("serve")
@with_flags(FLAGS, LOOPS, ASKED)
def serve(  # noqa: PLR0913 - one parameter per flag
    url: Annotated[
        str, typer.Option("--url", help="The server, with or without /v1.")
    ] = "http://127.0.0.1:8000",
    model: Model = None,
    api_key: Key = None,
    ignore_eos: IgnoreEos = True,
    ramp: Annotated[
        bool, typer.Option("--ramp", help="Raise --rate or --concurrency until the server is saturated.")
    ] = False,
    json_file: Json = None,
    markdown: Markdown = None,
    plot: Plot = None,
    *,
    given: dict[str, Any],
) -> None:
    """Send a load to an OpenAI-compatible server and measure its answers."""
    from headrace.tools.bench.wire import Client, Target

    asked = asked_of(given, ignore_eos=ignore_eos)
    files = Files(json_file, markdown, plot)
    files.check()
    client = Client(Target.from_url(url, api_key))
    if asyncio.run((_ramp if ramp else _serve)(client, model, asked, files)):
        raise typer.Exit(INTERRUPTED)


async def _ready(client: Any, model: str | None, asked: Any) -> Any:
    """The form of the requests, after the server has answered some short ones."""
    from headrace.tools.bench.run import first_model, warm_up

    wish = asked.wish(model or await first_model(client))
    await warm_up(client, wish, asked.plan.warmup)
    return wish


async def _serve(client: Any, model: str | None, asked: Any, files: Files) -> bool:
    """Measure; what there is by then is told of a load that is interrupted. Whether it was."""
    from headrace.tools.bench.drive import cut
    from headrace.tools.bench.report import charts, tables
    from headrace.tools.bench.run import described, measure
    from headrace.tools.bench.summary import summarize

    with watching() as (begin, count):
        begin("warm-up")
        wish = await _ready(client, model, asked)
        begin(described(asked.plan))
        done: list[Any] = []

        def keep(outcome: Any) -> None:
            done.append(outcome)
            count(outcome)

        try:
            load = await measure(client, wish, asked.plan, keep)
        except asyncio.CancelledError:
            if not done:
                raise
            load = cut(done)
    summary = summarize(load, asked.plan.slo)
    facts = tables.summary_json(summary) | {"requests": tables.requests_json(load)}
    title = f"{wish.model} at {client.target.host}:{client.target.port}: {described(asked.plan)}"
    files.write(title, facts, tables.summary_markdown(summary), charts.of_load(load))
    if not summary.completed:
        first = load.outcomes[0]
        raise RequestError(f"no request was completed; the first: {first.failure}: {first.detail}")
    return load.is_cut


async def _ramp(client: Any, model: str | None, asked: Any, files: Files) -> bool:
    """Raise the load; the levels that were through are told when it is interrupted. Whether it was."""
    from headrace.tools.bench.ramp import ramp
    from headrace.tools.bench.report import charts, tables
    from headrace.tools.bench.run import described

    unit = "users" if asked.plan.users is not None else "requests/s"
    with watching() as (begin, count):
        begin("warm-up")
        wish = await _ready(client, model, asked)
        found = await ramp(client, wish, asked.plan, lambda level: begin(f"{level:.4g} {unit}"), count)
    title = f"{wish.model} at {client.target.host}:{client.target.port}: {described(asked.plan)}, raised"
    files.write(title, tables.ramp_json(found), tables.ramp_markdown(found), charts.of_ramp(found))
    return found.is_cut


@command.command("compare")
@with_flags(FLAGS, LOOPS, ASKED)
def compare(  # noqa: PLR0913 - one parameter per flag
    a: Annotated[str, typer.Argument(help="URL of the first server.")],
    b: Annotated[str, typer.Argument(help="URL of the second server; ratios above 1: it is better.")],
    pairs: Annotated[int, typer.Option("--pairs", help="Pairs of loads, one to each server.")] = 6,
    model: Model = None,
    model_b: Annotated[
        str | None, typer.Option("--model-b", help="Model to ask B for [default: as A's, or its first]")
    ] = None,
    api_key: Key = None,
    ignore_eos: IgnoreEos = True,
    json_file: Json = None,
    markdown: Markdown = None,
    plot: Plot = None,
    *,
    given: dict[str, Any],
) -> None:
    """Compare two servers on the same requests, in pairs, with bootstrap intervals."""
    from headrace.tools.bench.wire import Client, Target

    asked = asked_of(given, ignore_eos=ignore_eos)
    files = Files(json_file, markdown, plot)
    files.check()
    clients = [Client(Target.from_url(url, api_key)) for url in (a, b)]
    asyncio.run(_compare(clients, (model, model_b or model), asked, pairs, files))


async def _compare(
    clients: list[Any], models: tuple[str | None, str | None], asked: Any, pairs: int, files: Files
) -> None:
    from headrace.tools.bench import compare as comparing
    from headrace.tools.bench.report import charts, tables
    from headrace.tools.bench.run import described

    comparing.check_pairs(pairs)
    with watching() as (begin, count):
        begin("warm-up")
        sides = [
            comparing.Side(client, await _ready(client, model, asked))
            for client, model in zip(clients, models, strict=True)
        ]

        def half(number: int, name: str) -> None:
            begin(f"pair {number + 1} of {pairs}, {name}")

        found = await comparing.compare(sides[0], sides[1], asked.plan, pairs, half, count)
    names = [f"{s.wish.model} at {s.client.target.host}:{s.client.target.port}" for s in sides]
    title = f"A ({names[0]}) and B ({names[1]}): {described(asked.plan)}"
    files.write(
        title, tables.comparison_json(found), tables.comparison_markdown(found), charts.of_comparison(found)
    )


@command.command("throughput")
@with_flags(FLAGS)
@with_settings(*OFFLINE, without=("model.model", "model.seed"))
def throughput(
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    repeat: Repeat = 3,
    json_file: Json = None,
    *,
    given: dict[str, Any],
    settings: Gathered,
) -> None:
    """Complete many prompts at once, in this process: tokens a second without server and client."""
    from headrace.tools.bench import offline

    del model  # it is in the settings
    _offline(settings, json_file, lambda llm: offline.throughput(llm, dataset_of(given), repeat))


@command.command("latency")
@with_settings(*OFFLINE, without=("model.model", "model.seed"))
def latency(  # noqa: PLR0913 - one parameter per flag
    model: Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")],
    batch_size: Annotated[int, typer.Option("--batch-size", help="Requests at once.")] = 1,
    input_tokens: Annotated[
        int, typer.Option("--input-tokens", help="Tokens of each prompt, exactly.")
    ] = 128,
    output_tokens: Annotated[int, typer.Option("--output-tokens", help="Tokens of each answer.")] = 128,
    repeat: Repeat = 5,
    json_file: Json = None,
    *,
    settings: Gathered,
) -> None:
    """Complete one batch of equal requests, in this process: seconds from beginning to end."""
    from headrace.tools.bench import offline

    del model  # it is in the settings
    batch = offline.Batch(batch_size, input_tokens, output_tokens)
    _offline(settings, json_file, lambda llm: offline.latency(llm, batch, repeat))


def _offline(settings: Gathered, json_file: Path | None, measured: Callable[[Any], Any]) -> None:
    from headrace.engine.llm import LLM

    files = Files(json_file, None, None)
    files.check()
    with LLM(settings.config) as llm:
        found = measured(llm)
        files.write(str(settings.config.model.model), found.json(), found.markdown(), ())
