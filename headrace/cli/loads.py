"""Flags that describe a load, for the commands that send one; and what the user sees while it runs."""

import inspect
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import typer

from headrace.base.errors import RequestError

FLAGS: dict[str, tuple[Any, str]] = {
    "dataset": (
        str,
        "text, shared-prefix, multi-turn, long-context, code-edit, or a .json / .jsonl file [default: text]",
    ),
    "num_requests": (int, "Requests, or conversations [default: 64; all of a file]"),
    "input_tokens": (int, "Tokens of each prompt, about [default: by data set]"),
    "output_tokens": (int, "Tokens of each answer [default: by data set; what a file says]"),
    "spread": (float, "Standard deviation over mean of the lengths; 0: all are equal [default: 0]"),
    "prefix_tokens": (int, "Tokens of a shared system prompt, for shared-prefix [default: 1024]"),
    "num_prefixes": (int, "Different shared system prompts [default: 1]"),
    "turns": (int, "Turns of a conversation, for multi-turn and ShareGPT files [default: 4; 1]"),
    "seed": (int, "Same seed, same requests at the same times [default: 0]"),
}
LOOPS: dict[str, tuple[Any, str]] = {
    "concurrency": (int, "Closed loop: this many users, one request each at a time [default: 1]"),
    "rate": (float, "Open loop: requests a second, whatever is under way; inf: all at once."),
    "arrivals": (str, "Open loop: poisson, constant or bursts [default: poisson]"),
    "burst_size": (int, "Requests that come together, with bursts [default: 8]"),
    "replay": (float, "Open loop: replay the times of a trace (--dataset FILE), this many times as fast."),
    "slo": (str, "Objectives for goodput, as ttft=500ms,tpot=50ms,e2el=10s."),
    "warmup": (int, "Short requests before, not measured [default: 2]"),
}
ASKED: dict[str, tuple[Any, str]] = {
    "endpoint": (str, "chat or completions [default: chat]"),
    "timeout": (float, "Seconds after which a request counts as failed [default: 600]"),
    "extra": (str, "More fields of each request, as JSON: '{\"top_p\": 0.9}'."),
}


class Asked(NamedTuple):
    """What the flags say; the tools' own values, made from them when the command runs."""

    plan: Any
    """`tools.bench.run.Plan`."""
    wish: Callable[[str], Any]
    """From a model's name to `tools.bench.ask.Wish`."""


def with_flags(*groups: dict[str, tuple[Any, str]]) -> Callable[..., Any]:
    """Give a command these flags; it is called with its own parameters and `given`, all of theirs by name."""

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        own = [p for p in inspect.signature(run).parameters.values() if p.name != "given"]
        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        named = [(name, *flag) for group in groups for name, flag in group.items()]
        for name, kind, text in named:
            option = typer.Option(f"--{name.replace('_', '-')}", help=text, show_default=False)
            annotation = Annotated[kind | None, option]
            parameters.append(
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
            )

        def command(**values: Any) -> None:
            given = {name: values.pop(name) for name, _, _ in named}
            run(**values, given={name: value for name, value in given.items() if value is not None})

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {p.name: p.annotation for p in parameters}
        command.__doc__ = run.__doc__
        return command

    return decorate


def dataset_of(given: dict[str, Any]) -> Any:
    """The data set that the flags choose (`tools.bench.datasets.choose.DatasetChoice`)."""
    from headrace.tools.bench.datasets.choose import DatasetChoice

    names = {name: name for name in FLAGS} | {"dataset": "name", "num_requests": "num_talks"}
    return DatasetChoice(**{names[name]: value for name, value in given.items() if name in names})


def asked_of(given: dict[str, Any], *, ignore_eos: bool) -> Asked:
    """The plan and the form of the requests.

    Raises:
        RequestError: flags that contradict each other or are out of range.
    """
    from headrace.tools.bench.run import Plan, requests_of
    from headrace.tools.bench.slo import parse_slo

    plan = Plan(
        dataset=dataset_of(given),
        users=given.get("concurrency", None if {"rate", "replay"} & set(given) else 1),
        arrivals=_arrivals(given),
        speed=given.get("replay"),
        slo=parse_slo(given.get("slo", "")),
        warmup=given.get("warmup", 2),
    )
    requests_of(plan)  # what is wrong with a file shows before a server is asked
    return Asked(plan, _wish(given, ignore_eos=ignore_eos))


def _arrivals(given: dict[str, Any]) -> Any:
    from headrace.tools.bench.arrivals import Arrivals

    if "rate" not in given:
        for name in ("arrivals", "burst_size"):
            if name in given:
                raise RequestError(f"--{name.replace('_', '-')} goes with --rate", param=name)
        return None
    process = given.get("arrivals", "poisson")
    return Arrivals(given["rate"], process, given.get("burst_size", 8), given.get("seed", 0))


def _wish(given: dict[str, Any], *, ignore_eos: bool) -> Callable[[str], Any]:
    import json

    from headrace.tools.bench.ask import Wish

    endpoint, timeout_s = given.get("endpoint", "chat"), given.get("timeout", 600.0)
    if endpoint not in {"chat", "completions"}:
        raise RequestError(f"--endpoint must be chat or completions, got {endpoint!r}", param="endpoint")
    if not 0 < timeout_s < float("inf"):
        raise RequestError(f"--timeout must be above 0 seconds, got {timeout_s:g}", param="timeout")
    try:
        extra: Any = json.loads(given.get("extra", "{}"))
    except ValueError as error:
        raise RequestError(f"--extra is no JSON: {error}", param="extra") from error
    if not isinstance(extra, dict):
        raise RequestError(f"--extra must be a JSON object, got {given['extra']!r}", param="extra")
    fields: dict[str, Any] = {"temperature": 0} | ({"ignore_eos": True} if ignore_eos else {})
    fields |= cast("dict[str, Any]", extra)
    return lambda model: Wish(model, endpoint == "chat", timeout_s, fields)


@contextmanager
def watching() -> Generator[tuple[Callable[[str], None], Callable[[Any], None]]]:
    """A line on standard error while requests run, when that is a terminal.

    Gives two calls: say what runs now; count an outcome (`tools.bench.ask.Outcome`).
    """
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    counts = {"done": 0, "failed": 0, "tokens": 0}
    title = ""
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as progress:
        line = progress.add_task("", total=None)

        def show() -> None:
            text = f"{title}: {counts['done']} answered, {counts['tokens']} tokens"
            progress.update(
                line, description=text + (f", {counts['failed']} failed" if counts["failed"] else "")
            )

        def begin(what: str) -> None:
            nonlocal title
            title = what
            counts.update(done=0, failed=0, tokens=0)
            show()

        def count(outcome: Any) -> None:
            counts["failed" if outcome.failure else "done"] += 1
            counts["tokens"] += outcome.counts.output
            show()

        yield begin, count


def check_folders(*paths: Path | None) -> None:
    """Refuse files that could not be written, before anything is measured.

    Raises:
        RequestError: a folder that is not there.
    """
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise RequestError(f"{path}: the folder {path.absolute().parent} is not there")


def write_text(path: Path | None, flag: str, text: str) -> None:
    """Write a file that a flag named, if it did; `-` is standard output."""
    if path is None:
        return
    if str(path) == "-":
        print(text)
        return
    try:
        path.write_text(text)
    except OSError as error:
        raise RequestError(f"--{flag}: cannot write {path}: {error}", param=flag) from error
