"""Find settings that suit a workload by measuring, with the evidence."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.cli.loads import FLAGS, LOOPS, asked_of, check_folders, watching, with_flags, write_text

Model = Annotated[str, typer.Argument(help="Catalogue name, .gguf file, checkpoint directory or hub id.")]
Budget = Annotated[float, typer.Option("--budget", help="Seconds of measuring.")]
Lossy = Annotated[bool, typer.Option("--allow-lossy", help="Try settings that change answers a little, too.")]
MAX_KL = 0.005
"""With the 0.5B model int8 keys and values bring 0.3e-3, such whose keys are not shifted 8e-3
(docs/quality.md).
"""
MaxKl = Annotated[
    float,
    typer.Option(
        "--max-kl",
        help="With --allow-lossy: refuse what moves answers further. Mean KL divergence of the next token "
        "from that of the exact settings, in nats, on the load's own texts.",
    ),
]
Only = Annotated[list[str] | None, typer.Option("--only", help="A setting to try, section.field; repeat it.")]
Drafters = Annotated[
    list[str] | None,
    typer.Option(
        "--speculate",
        help="Try this way of speculating, too: draft=MODEL, early-exit=N, medusa=PATH ...; repeat it.",
    ),
]
Flag = Annotated[
    list[str] | None,
    typer.Option(
        "--flag",
        help="More of `serve` for all servers, as --flag=--threads=2; of settings that are tried: the start.",
    ),
]
Pairs = Annotated[int, typer.Option("--most-pairs", help="Pairs of a comparison at most.")]
Write = Annotated[Path | None, typer.Option("--write", help="Write the settings as YAML, with the evidence.")]
Json = Annotated[Path | None, typer.Option("--json", help="Write every ratio; - prints them.")]


@with_flags(FLAGS, LOOPS)
def command(  # noqa: PLR0913 - one parameter per flag
    model: Model,
    budget: Budget = 900.0,
    allow_lossy: Lossy = False,
    max_kl: MaxKl = MAX_KL,
    only: Only = None,
    speculate: Drafters = None,
    flag: Flag = None,
    most_pairs: Pairs = 30,
    write: Write = None,
    json_file: Json = None,
    *,
    given: dict[str, Any],
) -> None:
    """Measure settings on a load (as `bench serve` takes it) and keep what is better than the defaults.

    With --flag=--no-enable-prefix-caching or the like the search begins there instead of at the defaults.
    """
    from headrace.base.errors import RequestError
    from headrace.tools.bench.run import described
    from headrace.tools.tune import report
    from headrace.tools.tune.duel import Rules
    from headrace.tools.tune.knobs import free_threads, knobs, split_flags
    from headrace.tools.tune.live import LivePairs
    from headrace.tools.tune.search import Bound, Search

    if not 0 < budget < float("inf"):
        raise RequestError(f"--budget must be above 0 seconds, got {budget:g}", param="budget")
    if not 0 < max_kl < float("inf"):
        raise RequestError(f"--max-kl must be above 0 nats, got {max_kl:g}", param="max_kl")
    check_folders(write, json_file)
    rules = Rules(most_pairs=most_pairs)
    start, rest = split_flags(flag or ())
    turned = knobs(
        with_lossy=allow_lossy,
        only=tuple(only or ()),
        start=start,
        drafters=tuple(speculate or ()),
        num_threads=free_threads(rest),
    )
    asked = asked_of(given, ignore_eos=True)
    with watching() as (begin, _), LivePairs(model, asked.plan, rest, start) as pairs:
        begin("starting")
        pairs.start()

        def told(trial: Any) -> None:
            begin(f"{trial.knob or 'against the start'}: pair {len(trial.ratios)}, {trial.verdict}")

        bound = Bound(pairs.loss, max_kl) if allow_lossy else None
        found = Search(pairs.measure, rules, budget, told, start, bound).run(turned)
    text = report.markdown(found, rules)
    if str(json_file) != "-":
        print(text, end="")
    write_text(json_file, "json", json.dumps(report.as_json(found, rules), indent=1))
    load = f"{model}, {described(asked.plan)}" + (f", SLO {given['slo']}" if given.get("slo") else "")
    write_text(write, "write", report.settings_file(found, rules, load))
