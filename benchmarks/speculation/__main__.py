"""Measure drafting with a pair of models, or, without a draft model, with what texts repeat.

python -m benchmarks.speculation --target big.gguf [--draft small.gguf] --llama build/peers/llama
python -m benchmarks.speculation --target big.gguf --method eagle=heads --depths 1,2,4 --tasks story,function
"""

import argparse
import json
import os
from dataclasses import asdict
from pathlib import Path

from benchmarks.peers import llama_cpp
from benchmarks.speculation.prompts import CHAT, CODE, COPYING, prompt
from benchmarks.speculation.table import Run, different, markdown, medians
from benchmarks.speculation.ways import (
    Way,
    add_both,
    add_our_lookups,
    add_ours,
    add_their_lookups,
    add_theirs,
)


def main() -> None:
    args = _arguments()
    ways: list[Way] = []
    try:
        found = llama_cpp.find(args.llama, args.threads) if args.llama else None
        if args.method is not None:
            add_ours(ways, args.target, args.method, args.depths, args.program)
        elif args.both:
            add_both(ways, args.target, args.draft, args.program)
        elif args.draft is None:
            add_our_lookups(ways, args.target, args.program)
            if found is not None:
                add_their_lookups(ways, Path(args.target), found)
        else:
            add_ours(ways, args.target, f"draft={args.draft}", args.depths, args.program)
            if found is not None:
                add_theirs(ways, Path(args.target), Path(args.draft), args.llama_depths, found)
        asked = [w for w in ways if not args.ways or any(part in w.name for part in args.ways)]
        runs = measure(asked, args.tasks, args.rounds, args.tokens)
    finally:
        for server in {id(way.server): way.server for way in ways}.values():
            server.stop()
    plain = asked[0].name
    wrong = different(runs, [way.name for way in asked if way.server is asked[0].server])
    table = markdown(medians(runs), plain)
    args.out.mkdir(parents=True, exist_ok=True)
    data = {
        "target": args.target,
        "draft": args.draft,
        "runs": [asdict(run) for run in runs],
        "differ": wrong,
    }
    (args.out / "speculation.json").write_text(json.dumps(data, indent=1))
    (args.out / "speculation.md").write_text(table)
    print(table)
    if wrong:
        raise SystemExit(f"answers differ from those without drafts: {'; '.join(wrong)}")


def measure(ways: list[Way], tasks: list[str], rounds: int, tokens: int) -> list[Run]:
    """All ways in turn, each first as often as the others; a first round warms up and does not count."""
    runs = []
    for round_ in range(rounds + 1):
        for i, task in enumerate(tasks):
            turn = (round_ + i) % len(ways)
            for way in ways[turn:] + ways[:turn]:
                answer = way.answer(prompt(task, round_), tokens, is_chat=task in CHAT)
                if round_:
                    runs.append(Run(task, way.name, round_, 1 / answer.tpot, answer.text))
    order = {way.name: i for i, way in enumerate(ways)}
    return sorted(runs, key=lambda run: (run.task, order[run.way], run.round))


def _names(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True, help="the model, a .gguf file")
    parser.add_argument("--draft", help="the draft model, a .gguf file; left out: lookups, on copying tasks")
    parser.add_argument("--method", help="instead, what --speculate takes: eagle=heads, early-exit=10 ..")
    parser.add_argument("--both", action="store_true", help="lookups, the draft model, and both of them")
    parser.add_argument("--llama", type=Path, help="folder of an installed llama.cpp; left out without")
    parser.add_argument("--depths", type=_numbers, default=(4,), help="fixed depths beside auto")
    parser.add_argument("--llama-depths", type=_numbers, default=(3, 5), help="drafts of llama.cpp's servers")
    parser.add_argument("--tasks", type=_names, default=[], help=f"of {','.join((*CODE, *CHAT))}")
    parser.add_argument("--ways", type=_names, default=[], help="only those whose names contain one of these")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--program", default="headrace")
    parser.add_argument("--out", type=Path, default=Path("build/speculation"))
    args = parser.parse_args()
    args.tasks = args.tasks or list(COPYING if args.draft is None else CODE)
    return args


if __name__ == "__main__":
    main()
