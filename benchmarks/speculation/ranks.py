"""Ranks that heads give to the right tokens of held-out answers; what trees of drafts would gain (`trees`).

python -m benchmarks.speculation.ranks MODEL --method eagle --heads FOLDER \\
    --step-ms 4.5 --row-ms 0.35 --pass-ms 0.6
"""

import argparse
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speculation.trees import markdown
from headrace.base.config import EngineConfig, ModelConfig, ScheduleConfig
from headrace.base.request import SamplingParams
from headrace.engine.llm import LLM
from headrace.tools.distill import make, run
from headrace.tools.distill.folder import read_folder
from headrace.tools.distill.plan import Plan
from headrace.tools.distill.prompts import make_prompts
from headrace.tools.distill.resume import tokens_of
from headrace.tools.distill.states import Reader
from headrace.tools.distill.text import BATCH, answers


def main() -> None:
    """Write texts, rank, print the tables."""
    args = _arguments()
    ranks = measured(args.model, args.method, args.heads, args.tokens)
    print(f"{ranks.shape[1]} places; rank 1, 2, 3, 4 at each, given the right tokens before it:")
    for depth, row in enumerate(_given(ranks), 1):
        print(f"  place {depth}: " + ", ".join(f"{(row == rank).mean():.1%}" for rank in range(4)))
    for step_ms, row_ms, pass_ms in zip(args.step_ms, args.row_ms, args.pass_ms, strict=True):
        print(f"\nstep {step_ms} ms, row {row_ms} ms, pass {pass_ms} ms\n")
        print(markdown(ranks, (1, 2, 3, 4, 6, 8, 12, 16), (step_ms, row_ms, pass_ms)))


def _given(ranks: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Of each place of the chain the ranks where all before were likeliest."""
    right = np.logical_and.accumulate(ranks == 0, axis=0)
    return [ranks[0], *(row[before] for row, before in zip(ranks[1:], right[:-1], strict=True))]


def measured(model: str, method: str, heads: Path, num_tokens: int) -> NDArray[np.int64]:
    """Ranks [depth, places] on greedy answers to prompts that these heads were not trained on."""
    report, tensors = read_folder(heads)
    config = EngineConfig(model=ModelConfig(model=model), schedule=ScheduleConfig(max_num_seqs=BATCH))
    llm = LLM(config)
    try:
        prompts = make_prompts(None, report["seed"])[:BATCH]
        greedy = SamplingParams(temperature=0.0, seed=report["seed"], max_tokens=192)
        samples = list(answers(llm, prompts, greedy, 1.0, num_tokens))
    finally:
        llm.close()
    reader = Reader(config, partial(run.taps_of, method))
    try:
        texts = [reader.read(sample.ids, sample.num_prompt) for sample in samples]
        depth = len(report["acceptance_by_depth"])
        plan = Plan(method=method, out=heads, heads=depth, seed=report["seed"])
        maker: Any = make.make_medusa if method == "medusa" else make.make_eagle
        tokens = tokens_of(plan, tensors, reader.spec.vocab_size)
        trainer = maker(reader, tokens, texts, plan, tensors)(1.0)
    finally:
        reader.close()
    return trainer.ranks(texts)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--method", choices=("medusa", "eagle"), required=True)
    parser.add_argument("--heads", type=Path, required=True, help="a folder that `headrace distill` wrote")
    parser.add_argument("--tokens", type=int, default=5000, help="of answers")
    for name, what in (
        ("step", "of a plain step"),
        ("row", "of a row more"),
        ("pass", "of a pass of the heads"),
    ):
        parser.add_argument(f"--{name}-ms", type=float, nargs="+", required=True, help=f"milliseconds {what}")
    return parser.parse_args()


if __name__ == "__main__":
    main()
