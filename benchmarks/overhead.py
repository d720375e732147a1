"""What a step costs around its native part, by part: microseconds per step that only decodes.

    python -m benchmarks.overhead MODEL.gguf [--rows 1,4,16,32] [--steps 100] [--sampling greedy]

The real engine core, text side and event encoder run in one thread, and each part is timed by itself (what
a part calls is booked on the callee). `native` and `draw` are the kernels; everything else is overhead. The
tiny model has next to no native time: its parts run with warm caches, the least that they can cost.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.base.config import EngineConfig, ModelConfig, ScheduleConfig
from headrace.base.request import SamplingParams
from headrace.engine.build import build_core, open_model
from headrace.engine.frontend import Frontend
from headrace.engine.intake import Ask
from headrace.engine.process import ipc
from headrace.serve.answering import Answering, Told
from headrace.serve.metrics import RequestClock, ServerMetrics
from headrace.serve.routes.chat import ChatShape
from headrace.serve.schema.answers import Envelope
from headrace.serve.schema.chat import ChatBody
from headrace.serve.schema.sampling import validate
from headrace.serve.schema.support import CHAT_NEUTRAL

PROMPT = 64
KERNELS = ("native", "draw")
TEXT = ("ipc encode", "ipc decode", "text", "events")
SAMPLING = {
    "greedy": SamplingParams(temperature=0.0, ignore_eos=True, seed=1),
    "temperature": SamplingParams(temperature=0.8, ignore_eos=True, seed=1),
    "top_p": SamplingParams(temperature=0.8, top_p=0.9, top_k=40, ignore_eos=True, seed=1),
}


class Stopwatch:
    """Exclusive seconds by part, one list entry per step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []
        self._now: defaultdict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            began = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                spent = time.perf_counter() - began
                self._now[name] += spent - self._inner.pop()
                self._inner[-1] += spent

        return run

    def wrap(self, thing: Any, method: str, name: str) -> None:
        setattr(thing, method, self.timed(name, getattr(thing, method)))

    def end_step(self) -> None:
        self.steps.append(dict(self._now))
        self._now.clear()


class Wire:
    """An engine that is driven by hand."""

    def __init__(self, core: Any) -> None:
        self.phases: dict[str, float] = {}
        self.core = core

    def start(self, on_event: Any) -> None:
        self.on_event = on_event

    def send(self, command: Any) -> None:
        self.core.add(command.requests)

    def beat(self) -> None:
        return None

    def close(self) -> None:
        self.core.close()


class Native:
    """A native program whose `run` can be replaced."""

    def __init__(self, program: Any) -> None:
        self.run, self.maxima = program.run, program.maxima


def tiny(folder: Path) -> Path:
    """A model of one thin layer, without a tokenizer."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 2048,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class Bench:
    """One engine with its text side, timed."""

    def __init__(self, model: str, load_format: str, rows: int, threads: int | None) -> None:
        config = EngineConfig(
            model=ModelConfig(model=model, load_format=load_format, max_model_len=2048),
            schedule=ScheduleConfig(max_num_seqs=rows),
        )
        self.opened = open_model(config, with_text=load_format == "auto")
        self.core = build_core(self.opened)
        self.wire = Wire(self.core)
        self.frontend = Frontend(self.opened, self.wire)
        self.watch = Stopwatch()
        self.outputs: list[Any] = []
        self.told: dict[str, Told] = {}
        self._instrument()

    def _instrument(self) -> None:
        watch, runner = self.watch, self.core.runner
        parts = runner._parts
        parts.program.native = Native(parts.program.native)
        watch.wrap(parts.program.native, "run", "native")
        watch.wrap(parts.backend, "sample", "draw")
        made = parts.backend.sampler
        parts.backend.sampler = lambda *given: watch.timed("draw", made(*given))
        watch.wrap(self.core.scheduler, "plan", "plan")
        watch.wrap(self.core.scheduler, "commit", "commit")
        watch.wrap(runner._inputs, "gather", "inputs")
        watch.wrap(runner._decode, "prepare", "inputs")
        watch.wrap(runner._decode, "finish", "draws")
        watch.wrap(runner._draws, "take", "draws")
        watch.wrap(self.core, "run", "runner")
        self.step = watch.timed("core", self.core.step)
        self.encode = watch.timed("ipc encode", ipc.encode)
        self.decode = watch.timed("ipc decode", ipc.decode)
        self.read = watch.timed("text", self.wire.on_event)
        self.tell = watch.timed("events", self._tell)

    def submit(self, number: int, params: SamplingParams) -> None:
        ids = [3 + (7 * number + i) % 200 for i in range(PROMPT)]
        prepared = self.frontend.submit(Ask(prompt=ids, params=params), self.outputs.append)
        body = validate(
            ChatBody, {"messages": [{"role": "user", "content": "x"}], "stream": True}, CHAT_NEUTRAL
        )
        answering = Answering(
            served=None,
            body=body,
            shape=ChatShape(body, None),
            envelope=Envelope.chat(prepared.request_id, "model"),
            num_choices=1,
        )
        self.told[prepared.request_id] = Told(answering, 1, RequestClock(ServerMetrics()))

    def _tell(self) -> int:
        return sum(len(data) for o in self.outputs for data in self.told[o.request_id].news(0, o))

    def one(self) -> None:
        news = self.step()
        if news is not None:
            frame = self.encode(news)
            self.read(self.decode(frame[4], frame[5:]))
            self.tell()
            self.outputs.clear()
        self.watch.end_step()


def measure(
    model: str, load_format: str, rows: int, steps: int, warm: int, params: SamplingParams
) -> dict[str, float]:
    """Median microseconds of each part over the steps in which every row decodes."""
    bench = Bench(model, load_format, rows, None)
    for number in range(rows):
        bench.submit(number, params)
    while bench.core.scheduler.stats().waiting:
        bench.one()
    for _ in range(warm):
        bench.one()
    bench.watch.steps.clear()
    for _ in range(steps):
        bench.one()
    bench.frontend.close()
    names = dict.fromkeys(name for step in bench.watch.steps for name in step)
    return {n: 1e6 * statistics.median(s.get(n, 0.0) for s in bench.watch.steps) for n in names}


def table(found: dict[int, dict[str, float]]) -> str:
    """Parts by rows, with the sums that matter."""
    names = list(next(iter(found.values())))
    order = [n for n in names if n not in KERNELS + TEXT] + list(TEXT) + list(KERNELS)
    lines = ["| part | " + " | ".join(f"{r} rows" for r in found) + " |", "|---|" + "---|" * len(found)]
    lines += [f"| {n} | " + " | ".join(f"{f.get(n, 0):.0f}" for f in found.values()) + " |" for n in order]
    for label, left_out in (("engine, without kernels", KERNELS + TEXT), ("all, without kernels", KERNELS)):
        sums = (sum(v for n, v in f.items() if n not in left_out) for f in found.values())
        lines.append(f"| **{label}** | " + " | ".join(f"**{s:.0f}**" for s in sums) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="a .gguf file; without one only the tiny model runs")
    parser.add_argument("--rows", default="1,4,16,32")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument(
        "--warm",
        type=int,
        default=20,
        help="steps before those that are timed; after 512 the cost model learns from one step in four",
    )
    parser.add_argument("--sampling", choices=tuple(SAMPLING), default="greedy")
    args = parser.parse_args()
    rows = [int(r) for r in args.rows.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        subjects = [("tiny model", str(tiny(Path(folder))), "dummy")]
        if args.model:
            subjects.append((Path(args.model).name, args.model, "auto"))
        for label, model, load_format in subjects:
            params = SamplingParams(
                **{f: getattr(SAMPLING[args.sampling], f) for f in ("temperature", "top_p", "top_k", "seed")},
                ignore_eos=True,
                max_tokens=args.warm + args.steps + 200,
            )
            found = {r: measure(model, load_format, r, args.steps, args.warm, params) for r in rows}
            print(f"\n{label}, {args.sampling}, microseconds per step\n\n{table(found)}")


if __name__ == "__main__":
    main()
