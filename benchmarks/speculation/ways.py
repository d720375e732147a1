"""Servers, and the ways in which they are asked."""

import asyncio
from collections.abc import Mapping
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

    def answer(self, prompt: str, tokens: int, *, is_chat: bool = False) -> Answer:
        """Ask once: for a continuation, or for an answer in a chat.

        Raises:
            RuntimeError: the server did not answer.
        """
        text = {"messages": [{"role": "user", "content": prompt}]} if is_chat else {"prompt": prompt}
        body = text | {"model": "default", "max_tokens": tokens, "temperature": 0, "ignore_eos": not is_chat}
        path = "/v1/chat/completions" if is_chat else "/v1/completions"
        found = asyncio.run(ask("127.0.0.1", self.server.port, body | self.fields, path))
        if found.error is not None or len(found.stamps) < 2:
            raise RuntimeError(f"{self.name}: {found.error or 'no answer'}")
        return found


def add_ours(
    ways: list[Way], target: Path | str, speculate: str, depths: tuple[int, ...], program: str
) -> None:
    """Headrace, one server: off, as many drafts as pay, and fixed depths."""
    method = speculate.partition("=")[0]
    wishes = {method: None} | {f"{method}, depth {k}": f"{method},depth={k}" for k in depths}
    _add_headrace(ways, target, speculate, wishes, program)


def add_both(ways: list[Way], target: Path | str, draft: Path | str, program: str) -> None:
    """Headrace, one server: off, drafts from what the text repeats, those of a model, and both."""
    wishes = {"both": None, "auto": "auto", "draft": "draft"}
    _add_headrace(ways, target, f"auto,draft={draft}", wishes, program)


def add_our_lookups(ways: list[Way], target: Path | str, program: str) -> None:
    """Headrace, one server: off, and drafts from what the text repeats."""
    _add_headrace(ways, target, "auto", {name: name for name in ("auto", "ngram", "suffix")}, program)


def _add_headrace(
    ways: list[Way], target: Path | str, speculate: str, wishes: Mapping[str, str | None], program: str
) -> None:
    """One server, asked for no drafts, and for what `wishes` says by name; None: for nothing, as it comes."""
    server = headrace(target, program, ("--speculate", speculate, "--max-num-seqs", "4"))
    for name, wish in {"plain": "off", **wishes}.items():
        ways.append(Way(f"headrace, {name}", server, {"speculate": wish} if wish else {}))


def add_theirs(
    ways: list[Way], target: Path, draft: Path, depths: tuple[int, ...], found: llama_cpp.LlamaCpp
) -> None:
    """llama.cpp: a server without a draft model, and one for each number of drafts."""
    threads = str(found.threads)
    _add_llama(ways, "llama.cpp, plain", target, found, [])
    for depth in depths:
        # A draft model alone is loaded and not used.
        flags = ["-md", str(draft), "-td", threads, "--spec-type", "draft-simple"]
        flags += ["--spec-draft-n-max", str(depth)]
        _add_llama(ways, f"llama.cpp, draft, depth {depth}", target, found, flags)


def add_their_lookups(ways: list[Way], target: Path, found: llama_cpp.LlamaCpp) -> None:
    """llama.cpp: without drafts, and with its lookup as it comes and for shorter matches and drafts."""
    _add_llama(ways, "llama.cpp, plain", target, found, [])
    kind = ["--spec-type", "ngram-simple"]
    _add_llama(ways, "llama.cpp, ngram-simple", target, found, kind)
    short = ["--spec-ngram-simple-size-n", "4", "--spec-ngram-simple-size-m", "8"]
    _add_llama(ways, "llama.cpp, ngram-simple, 4 and 8", target, found, kind + short)


def _add_llama(ways: list[Way], name: str, target: Path, found: llama_cpp.LlamaCpp, flags: list[str]) -> None:
    port = free_port()
    command = [str(found.programs / "llama-server"), "-m", str(target), "--host", "127.0.0.1"]
    command += ["--port", str(port), "-t", str(found.threads)]
    command += ["-fa", "on", "-np", "1", "-c", "4096", "--no-ui", *flags]
    label = "".join(c if c.isalnum() else "-" for c in name)
    ways.append(Way(name, start(label, command, port, environment=found.environment)))
