"""Say what a model needs and how fast it will be here, without loading its weights.

`headrace plan MODEL` prints bytes, contexts, sequences and predicted speed. `headrace plan simulate MODEL`
runs the real scheduler on the prediction, in virtual time, for traffic that you describe.
"""

import re
from dataclasses import replace
from typing import Annotated, Any

import typer

from headrace.base.errors import ConfigError
from headrace.cli.settings import Gathered, with_settings

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@with_settings("model", "device", "kv", "schedule", "speculate", without=("model.model", "model.seed"))
def command(  # noqa: PLR0913 - one parameter per flag
    words: Annotated[
        list[str], typer.Argument(metavar="[simulate] MODEL", help="The model; and whether to simulate.")
    ],
    memory: Annotated[
        str | None, typer.Option(help="Plan for so much memory, such as 16GiB [default: what is free here]")
    ] = None,
    context: Annotated[int | None, typer.Option(help="Tokens behind which sequences decode.")] = None,
    prompt_tokens: Annotated[str | None, typer.Option(help="Prompt lengths, N or LEAST:MOST.")] = None,
    output_tokens: Annotated[
        str | None, typer.Option(help="simulate: answer lengths, N or LEAST:MOST.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="simulate: requests a second, Poisson.")] = None,
    users: Annotated[int | None, typer.Option(help="simulate: users who wait for each answer.")] = None,
    requests: Annotated[int, typer.Option(help="simulate: requests in all.")] = 200,
    shared_tokens: Annotated[int, typer.Option(help="simulate: first tokens that prompts share.")] = 0,
    replicas: Annotated[int, typer.Option(help="simulate: engines, each on a machine like this one.")] = 1,
    slo_ttft_ms: Annotated[float | None, typer.Option(help="simulate: bound of good requests.")] = None,
    slo_tpot_ms: Annotated[float | None, typer.Option(help="simulate: bound of good requests.")] = None,
    slo_e2e_ms: Annotated[float | None, typer.Option(help="simulate: bound of good requests.")] = None,
    seed: Annotated[int, typer.Option(help="simulate: seed of arrivals and lengths.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    *,
    settings: Gathered,
) -> None:
    """Plan memory and speed of a model."""
    from headrace.base.metrics import Slo
    from headrace.tools.plan.planning import Planning
    from headrace.tools.plan.traffic import Traffic, span

    is_simulation, name = _asked(words)
    config = replace(settings.config, model=replace(settings.config.model, model=name))
    traffic = None
    if is_simulation:
        traffic = Traffic(
            num_requests=requests,
            rate=rate,
            users=users,
            prompt_tokens=span("--prompt-tokens", prompt_tokens or "256"),
            output_tokens=span("--output-tokens", output_tokens or "128"),
            shared_tokens=shared_tokens,
            seed=seed,
        )
    planning = Planning(config, memory_bytes=None if memory is None else parse_bytes(memory))
    report = planning.report(context=context, prompts=prompt_tokens if not is_simulation else None)
    if traffic is not None:
        bounds = {"ttft_s": slo_ttft_ms, "tpot_s": slo_tpot_ms, "e2el_s": slo_e2e_ms}
        slo = Slo(**{bound: value / 1e3 for bound, value in bounds.items() if value is not None})
        report["traffic"] = planning.simulate(traffic, replicas, slo)
    report["notes"] = list(planning.notes)
    _print(report, json)


def _asked(words: list[str]) -> tuple[bool, str]:
    """Whether to simulate, and the model."""
    is_simulation = words[0] == "simulate"
    if words == ["simulate"]:
        raise ConfigError("plan simulate needs a MODEL, as in `headrace plan simulate smollm2:135m --rate 1`")
    rest = words[1:] if is_simulation else words
    if len(rest) != 1:
        raise ConfigError(
            f"plan takes one model, as in `headrace plan smollm2:135m`; got {' '.join(words)!r}"
        )
    return is_simulation, rest[0]


def parse_bytes(text: str) -> int:
    """`16GiB`, `16G` or `17179869184` in bytes.

    Raises:
        ConfigError: none of these.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ConfigError(f"--memory must be bytes or such as 16GiB, got {text!r}", param="memory")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _print(report: dict[str, Any], as_json: bool) -> None:
    from headrace.tools.plan.report import tables_of

    if as_json:
        from json import dumps

        print(dumps(report))
        return
    from headrace.cli.tables import print_table

    notes = report.pop("notes")
    for number, table in enumerate(tables_of(report)):
        if number:
            print()
        print_table(*table)
    for note in notes:
        print(note)
