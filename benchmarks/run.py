"""Measure the machine's limits, Headrace against llama-bench, servers under load. Goes on where it stopped.

python -m benchmarks.run --quick                                    about 3 minutes, SmolLM2 only
python -m benchmarks.run                                            everything but vLLM
python -m benchmarks.run --parts served --peers llama.cpp,openvino,vllm --models smollm2:135m --pairs 5
"""

import argparse
import os
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from benchmarks import bare, limits, report, served
from benchmarks.costs import cost_of
from benchmarks.engine import Engine
from benchmarks.peers import llama_cpp, openvino_launch, servers, vllm
from benchmarks.store import ROOT, Store, build_id
from benchmarks.workloads import WORKLOADS
from headrace.compute.weights.catalogue import locate

PARTS = ("limits", "prefill", "decode", "batch", "served")
PEERS = ("llama.cpp", "openvino", "vllm")
MODELS = ("smollm2:135m", "qwen2.5-coder:0.5b", "qwen2.5-coder:1.5b")
BEGAN = time.monotonic()


def note(text: str) -> None:
    print(f"[{time.monotonic() - BEGAN:6.0f} s] {text}", flush=True)


class Run:
    """One command's work.

    Args:
        args: see `parse`.
        store: where rows go.
    """

    def __init__(self, args: argparse.Namespace, store: Store) -> None:
        self.args = args
        self.store = store
        self.threads = len(os.sched_getaffinity(0))
        self.llama = self._find_llama()
        store.note(machine=limits.machine())
        if self.llama:
            store.note(peers={"llama.cpp": self.llama.version()})

    def _find_llama(self) -> llama_cpp.LlamaCpp | None:
        if "llama.cpp" not in self.args.peers:
            return None
        try:
            return llama_cpp.find(self.args.llama_dir, self.threads)
        except FileNotFoundError as error:
            note(f"no llama.cpp: {error}")
            return None

    def model(self, name: str) -> None:
        """Every part for one model."""
        path = locate(name)
        label = path.stem if Path(name).exists() else name
        rounds = self.args.float_activations == "bfloat16"
        label += " rounded" if rounds else ""
        self.store.note(costs={label: vars_of(cost_of(path, rounds=rounds))})
        parts = [p for p in self.args.parts if p in {"prefill", "decode", "batch"}]
        if parts:
            engine = Engine(path, float_activations=self.args.float_activations)
            try:
                self._bare(label, path, engine, parts)
            finally:
                engine.close()
        if "served" in self.args.parts:
            self._served(label, path)

    def _bare(self, label: str, path: Path, engine: Engine, parts: list[str]) -> None:
        self.store.note(costs={label: {**self.store.data["costs"][label], "step_tokens": engine.step_tokens}})
        bench = bare.Bench(label, path, engine, self.llama)
        if self.args.quick:
            bench.prompts, bench.depths, bench.sequences = (512,), (0, 2048), (1, 16)
        bench.prompts = self.args.prompts or bench.prompts
        bench.depths = self.args.depths or bench.depths
        bench.sequences = self.args.sequences or bench.sequences
        longest = engine.opened.resolved.max_model_len - bare.STEPS - 1
        bench.depths = tuple(d for d in bench.depths if d <= longest)
        bench.micro_batches = self._micro_batches(label, path, bench.prompts) if "prefill" in parts else {}
        for part in parts:
            self.probe(label, part, "before")
            for pair in range(self.args.pairs):
                bare.measure(self.store, bench, part, pair, note)
            self.probe(label, part, "after")

    def _micro_batches(self, label: str, path: Path, prompts: tuple[int, ...]) -> dict[int, int]:
        """llama.cpp's best -ub: tried once per model, then remembered."""
        known = self.store.data.setdefault("micro_batches", {}).get(label, {})
        if self.llama and not all(str(n) in known for n in prompts):
            found = self.llama.best_micro_batches(path, prompts)
            known = {str(n): u for n, u in found.items()}
            self.store.note(micro_batches={label: known})
            note(f"{label}: llama.cpp is fastest with -ub {known}")
        return {int(n): u for n, u in known.items()}

    def _served(self, label: str, path: Path) -> None:
        with ExitStack() as stack:
            ours = servers.headrace(path, self.args.headrace, self.args.headrace_args.split())
            stack.callback(ours.stop)
            up = [ours]
            for peer in self.args.peers:
                started = self._start(peer, label, path)
                if started:
                    stack.callback(started.stop)
                    up.append(started)
            self.probe(label, "served", "before")
            plan = served.Plan(up, self.args.workloads, self.args.pairs, self.args.scale, note)
            served.measure(self.store, label, plan)
        self.probe(label, "served", "after")

    def _start(self, peer: str, label: str, path: Path) -> servers.Server | None:
        """A peer's server; one that is missing or cannot run this model is said and left out."""
        args = self.args
        began = time.monotonic()
        try:
            if peer == "llama.cpp" and self.llama:
                known = self.store.data.get("micro_batches", {}).get(label, {})
                server = self.llama.server(path, known.get("512", 128))
            elif peer == "openvino":
                python = args.openvino_dir / "bin/python"
                self.store.note(peers={peer: openvino_launch.version(python)})
                server = openvino_launch.server(python, path, self.threads)
            elif peer == "vllm":
                self.store.note(peers={peer: vllm.version(args.vllm_dir)})
                server = vllm.server(args.vllm_dir, path, self.threads, ROOT / "build/peers/checkpoints")
            else:
                return None
        except (FileNotFoundError, RuntimeError) as error:
            note(f"{label}: no {peer}: {error}")
            return None
        note(f"{label}: {peer} is up after {time.monotonic() - began:.0f} s")
        return server

    def probe(self, model: str, part: str, when: str) -> None:
        """The machine's limits now."""
        if "limits" not in self.args.parts:
            return
        try:
            found = limits.probe()
        except FileNotFoundError as error:
            note(f"no limits: {error}")
            return
        self.store.add(
            {"part": "limits", "model": model, "cell": part, "pair": when, "who": "machine", **found}
        )
        note(f"limits {when} {model} {part}: {found}")


def vars_of(cost: object) -> dict[str, float]:
    return {k: getattr(cost, k) for k in cost.__slots__}  # type: ignore[attr-defined]


def listed(known: tuple[str, ...]) -> object:
    """An argument type: names of `known`, separated by commas."""

    def parse(text: str) -> list[str]:
        names = [x for x in text.split(",") if x]
        wrong = [x for x in names if x not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; known: {', '.join(known)}")
        return names

    return parse


def whole(text: str) -> tuple[int, ...]:
    """An argument type: whole numbers, separated by commas."""
    return tuple(int(x) for x in text.split(","))


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    peers_dir = ROOT / "build/peers"
    add = parser.add_argument
    add("--parts", type=listed(PARTS), default=list(PARTS), help=f"of {','.join(PARTS)}")
    add("--models", default=",".join(MODELS), help="catalogue names or paths")
    add("--peers", type=listed(PEERS), default=["llama.cpp", "openvino"], help=f"of {','.join(PEERS)}")
    add("--workloads", type=listed(tuple(WORKLOADS)), default=list(WORKLOADS), help="of the part served")
    add("--prompts", type=whole, help="prompt lengths of the part prefill")
    add("--depths", type=whole, help="contexts of the part decode")
    add("--sequences", type=whole, help="batch sizes of the part batch")
    add("--pairs", type=int, default=5, help="repetitions of each measurement")
    add("--scale", type=float, default=1.0, help="size of the served workloads; 0.5 halves the requests")
    add("--quick", action="store_true", help="SmolLM2 only, fewer sizes, 2 pairs")
    add("--out", type=Path, default=ROOT / "results/bench.json")
    add("--fresh", action="store_true", help="drop what the file holds")
    add("--write", action="store_true", help="write tables and plots into docs/ at the end")
    add(
        "--page",
        type=Path,
        default=report.PAGE,
        help="where --write writes to; each is of one kind of machine",
    )
    add("--llama-dir", type=Path, default=peers_dir / "llama")
    add("--openvino-dir", type=Path, default=peers_dir / "openvino")
    add("--vllm-dir", type=Path, default=peers_dir / "vllm")
    add("--headrace", default=str(Path(sys.executable).with_name("headrace")))
    add("--headrace-args", default="", help='flags of `headrace serve`, such as "--prefill-step-ms 150"')
    add("--float-activations", default="float32", choices=("float32", "bfloat16"), help="of the bare engine")
    args = parser.parse_args(argv)
    if args.quick:
        args.models, args.pairs, args.scale = MODELS[0], 2, 0.5
        args.workloads = [w for w in args.workloads if w in {"single", "chat16"}]
        if args.out == parser.get_default("out"):
            args.out = args.out.with_name("quick.json")
    return args


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an exit stops the servers, a signal would not
    args = parse(sys.argv[1:])
    store = Store(args.out, build_id(), fresh=args.fresh)
    run = Run(args, store)
    if args.write:
        report.check_page(store.data, args.page)  # now, not after an hour of measuring
    for name in args.models.split(","):
        if args.parts == ["limits"]:
            run.probe("-", "limits", "alone")
            break
        run.model(name)
    print(report.render(store.data))
    if args.write:
        report.write(store.data, args.page)


if __name__ == "__main__":
    main()
