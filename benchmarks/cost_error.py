"""How far a running server's prediction of its steps is off, under a mixed load.

    python -m benchmarks.cost_error MODEL [--seconds 60] [--users 8]

A fresh server (its model of steps knows nothing but its first guesses), users who ask again when they are
answered, with prompts of 16 to 1,200 tokens and answers of 8 to 128. Every ten seconds the server's own
metrics are read: the sum of absolute errors over the time of the steps, by phase, in these ten seconds.
"""

import argparse
import random
import threading

from benchmarks.planned import ask
from headrace.base.clock import now_s
from headrace.tools.ablate.launch import serving
from headrace.tools.doctor.scrape import scrape

WINDOW_S = 10.0
PHASES = ("decode", "prefill")
PROMPT, ANSWER = (16, 1200), (8, 128)


def use(url: str, seed: int, end_s: float) -> None:
    """A user who asks until the time is over."""
    rng = random.Random(seed)
    while now_s() < end_s:
        ask(url, [rng.randrange(10, 30000) for _ in range(rng.randint(*PROMPT))], rng.randint(*ANSWER))


def error(before: dict[str, float], after: dict[str, float], phase: str) -> str:
    """The relative error of a phase between two readings."""

    def grown(name: str) -> float:
        key = f'headrace_{name}_total{{phase="{phase}"}}'
        return after.get(key, 0.0) - before.get(key, 0.0)

    seconds, steps = grown("phase_step_seconds"), grown("phase_steps")
    if not seconds:
        return "no steps"
    signed = grown("step_time_predicted_seconds") / seconds - 1.0
    return f"{grown('step_time_error_seconds') / seconds:.1%} ({signed:+.1%} in sum, {steps:.0f} steps)"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--users", type=int, default=8)
    args = parser.parse_args()
    print("| seconds | decode | prefill |\n|---|---|---|")
    with serving(args.model, ()) as url:
        began_s = now_s()
        end_s = began_s + args.seconds
        users = [threading.Thread(target=use, args=(url, i, end_s)) for i in range(args.users)]
        for one in users:
            one.start()
        before = dict(scrape(url, None).values)
        while (at_s := now_s()) < end_s - 0.5:
            threading.Event().wait(min(WINDOW_S, end_s - at_s))
            after = dict(scrape(url, None).values)
            told = " | ".join(error(before, after, phase) for phase in PHASES)
            print(f"| {at_s - began_s:.0f} to {now_s() - began_s:.0f} | {told} |", flush=True)
            before = after
        for one in users:
            one.join()


if __name__ == "__main__":
    main()
