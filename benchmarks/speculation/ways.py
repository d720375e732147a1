"""Servers, and the ways in which they are asked."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.client import Answer, ask
from benchmarks.peers import llama_cpp
from benchmarks.peers.servers import Server, free_port, headrace, start


@dataclass(frozen=True)
class Way:
    """One way to get an answer."""

    name: str
    server: Server
    fields: dict[str, object] = field(default_factory=dict)

    def answer(self, prompt: str, tokens: int) -> Answer:
        """Ask once.

        Raises:
            RuntimeError: the server did not answer.
        """
        body = {
            "model": "default",
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        found = asyncio.run(ask("127.0.0.1", self.server.port, body | self.fields, "/v1/completions"))
        if found.error is not None or len(found.stamps) < 2:
            raise RuntimeError(f"{self.name}: {found.error or 'no answer'}")
        return found


def add_ours(
    ways: list[Way], target: Path | str, draft: Path | str, depths: tuple[int, ...], program: str
) -> None:
    """Headrace, one server: off, as many drafts as pay, and fixed depths."""
    server = headrace(target, program, ("--speculate", f"draft={draft}", "--max-num-seqs", "4"))
    ways += [Way("headrace, plain", server, {"speculate": "off"}), Way("headrace, draft", server)]
    ways += [Way(f"headrace, draft, depth {k}", server, {"speculate": f"draft,depth={k}"}) for k in depths]


def add_theirs(
    ways: list[Way], target: Path, draft: Path, depths: tuple[int, ...], found: llama_cpp.LlamaCpp
) -> None:
    """llama.cpp: a server without a draft model, and one for each number of drafts."""
    threads = str(found.threads)
    for depth in (0, *depths):
        port = free_port()
        command = [str(found.programs / "llama-server"), "-m", str(target), "--host", "127.0.0.1"]
        command += ["--port", str(port), "-t", threads, *["-fa", "on", "-np", "1", "-c", "4096", "--no-ui"]]
        if depth:
            command += ["-md", str(draft), "-td", threads, "--spec-draft-n-max", str(depth)]
        server = start(f"llama.cpp-{depth}", command, port, environment=found.environment)
        ways.append(Way(f"llama.cpp, draft, depth {depth}" if depth else "llama.cpp, plain", server))
