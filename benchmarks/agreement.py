"""Hold `headrace bench serve` against `vllm bench serve` on the same streams of a live server.

    python -m benchmarks.agreement URL --vllm ENV/bin/vllm --tokenizer DIR [--json FILE]

The server is asked once, by several users at a time, and every event of every answer is kept as it came: its
bytes and its moment. A server that sends exactly these events at these moments is then measured by both
tools in turn, ours twice: two runs against the live server would differ by the server, not by the tools.
vLLM needs a folder with the model's tokenizer, and pandas to read prompts from a file.

An event whose choice has no text (many servers end a stream with one) is an output to vLLM and none to
`headrace bench`. Such events are told; `--one-count` joins each to the event before it, so that both tools
count the same outputs.
"""

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.servers import free_port
from headrace.base.errors import UnreachableError
from headrace.tools.bench.ask import Wish
from headrace.tools.bench.datasets.choose import DatasetChoice, choose
from headrace.tools.bench.report.tables import summary_json
from headrace.tools.bench.run import Plan, first_model, measure, warm_up
from headrace.tools.bench.summary import summarize
from headrace.tools.bench.wire import Client, Target

MOST = 0.03
"""The largest relative difference of a figure that counts as agreement."""
LATENCIES = ("ttft", "tpot", "itl", "e2el")
SHARES = {"mean": "mean", "p50": "median", "p90": "p90", "p99": "p99"}
RATES = {
    "requests": "request_throughput",
    "output_tokens": "output_throughput",
    "total_tokens": "total_token_throughput",
}
PATH = "/v1/completions"
Event = tuple[float, str]
"""Seconds after its request was sent, and the data of one event."""


@dataclass(frozen=True)
class Asked:
    """The load: prompts, tokens of each answer, users at a time."""

    prompts: Sequence[str]
    output_tokens: int
    users: int


@dataclass(frozen=True)
class Row:
    """One figure by both tools."""

    name: str
    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        """Relative to theirs; equal zeros do not differ."""
        if self.ours == self.theirs:
            return 0.0
        return self.ours / self.theirs - 1.0 if self.theirs else float("inf")


def has_text(data: str) -> bool | None:
    """Whether an event's choice has text; None: it has no choice (usage, the end)."""
    with suppress(ValueError):
        choices = json.loads(data).get("choices")
        return bool(choices[0].get("text")) if choices else None
    return None


def joined(events: Sequence[Event]) -> list[Event]:
    """The events without those whose choice has no text; a finish reason goes to the last that has some."""
    kept = [event for event in events if has_text(event[1]) is not False]
    texts = [i for i, (_, data) in enumerate(kept) if has_text(data)]
    if texts and len(kept) < len(events):
        at, data = kept[texts[-1]]
        event = json.loads(data)
        event["choices"][0]["finish_reason"] = "length"
        kept[texts[-1]] = (at, json.dumps(event))
    return kept


async def record(client: Client, wish: Wish, asked: Asked) -> dict[str, list[Event]]:
    """Ask the live server and keep each prompt's events."""
    clock, todo, found = asyncio.get_running_loop().time, iter(asked.prompts), dict[str, list[Event]]()

    async def user() -> None:
        for prompt in todo:
            body, began = wish.body([{"content": prompt}], asked.output_tokens), clock()
            found[prompt] = [(clock() - began, data.decode()) async for data in client.events(PATH, body)]

    async with asyncio.TaskGroup() as group:
        for _ in range(asked.users):
            group.create_task(user())
    return found


async def replay(port: int, model: str, streams: Mapping[str, Sequence[Event]]) -> None:
    """Serve the streams to whoever sends their prompts, for ever; other prompts get the first stream."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await _exchange(reader, writer, model, streams):
                pass
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port, limit=1 << 22) as server:
        await server.serve_forever()


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    model: str,
    streams: Mapping[str, Sequence[Event]],
) -> bool:
    """One request and its answer; whether the connection stays."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    clock = asyncio.get_running_loop().time
    began = clock()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
    body = await reader.readexactly(int(fields.get("content-length", 0)))
    if head.startswith("get"):
        listing = json.dumps({"object": "list", "data": [{"id": model, "object": "model"}]}).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(listing), listing))
    else:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n")
        writer.write(b"Transfer-Encoding: chunked\r\n\r\n")
        events = streams.get(json.loads(body)["prompt"]) or next(iter(streams.values()))
        for at, data in events:
            if (wait := began + at - clock()) > 0:
                await asyncio.sleep(wait)
            line = f"data: {data}\n\n".encode()
            writer.write(b"%x\r\n%s\r\n" % (len(line), line))
        writer.write(b"0\r\n\r\n")
    await writer.drain()
    return fields.get("connection") != "close"


def serve(port: int, model: str, streams: Mapping[str, Sequence[Event]]) -> None:
    """The replaying server, in a process of its own."""
    with suppress(KeyboardInterrupt):
        asyncio.run(replay(port, model, streams))


async def is_up(client: Client, timeout_s: float = 30.0) -> None:
    """Wait for the replaying server.

    Raises:
        UnreachableError: it is not there in time.
    """
    for _ in range(int(timeout_s / 0.05)):
        with suppress(UnreachableError):
            await first_model(client)
            return
        await asyncio.sleep(0.05)
    await first_model(client)


async def by_ours(port: int, wish: Wish, prompts: Path, users: int) -> dict[str, Any]:
    """The figures of `headrace bench serve`, as its JSON has them."""
    client = Client(Target.from_url(f"http://127.0.0.1:{port}"))
    await is_up(client)
    await warm_up(client, wish, 2)
    return summary_json(
        summarize(await measure(client, wish, Plan(DatasetChoice(str(prompts)), users=users)))
    )


def by_vllm(
    program: Path, tokenizer: Path, port: int, wish: Wish, prompts: Path, asked: Asked
) -> dict[str, Any]:
    """The figures of `vllm bench serve`, as its JSON has them.

    Raises:
        RuntimeError: it failed; says how.
    """
    result = prompts.with_name("vllm.json")
    command = [
        *(str(program), "bench", "serve", "--backend", "openai", "--base-url", f"http://127.0.0.1:{port}"),
        *("--endpoint", PATH, "--model", wish.model, "--tokenizer", str(tokenizer)),
        *("--dataset-name", "custom", "--dataset-path", str(prompts), "--skip-chat-template"),
        *("--custom-output-len", str(asked.output_tokens), "--num-prompts", str(len(asked.prompts))),
        *("--max-concurrency", str(asked.users), "--ignore-eos", "--temperature", "0", "--num-warmups", "2"),
        *("--disable-tqdm", "--percentile-metrics", ",".join(LATENCIES), "--metric-percentiles", "50,90,99"),
        *("--save-result", "--result-dir", str(result.parent), "--result-filename", result.name),
    ]
    run = subprocess.run(command, check=False, capture_output=True, text=True, timeout=600)
    if run.returncode or not result.is_file():
        raise RuntimeError(f"{' '.join(command)} gave {run.returncode}: {run.stderr[-800:]}")
    return json.loads(result.read_text())


def compared(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[Row]:
    """All figures that both tools have: duration, rates, and four shares of four latencies (ms)."""
    rows = [Row("duration (s)", ours["seconds"], theirs["duration"])]
    rows += [Row(f"{name}/s", ours["rates"][name], theirs[key]) for name, key in RATES.items()]
    for name in LATENCIES:
        rows += [
            Row(f"{name} {share} (ms)", ours[f"{name}_ms"][share], theirs[f"{key}_{name}_ms"])
            for share, key in SHARES.items()
        ]
    return rows


def markdown(rows: Sequence[Row], again: Sequence[Row]) -> str:
    """A row for each figure: ours, theirs, how far they differ, and how far our second run does."""
    lines = ["| figure | headrace bench | vllm bench | differ by | second run |", "|---|---:|---:|---:|---:|"]
    for row, second in zip(rows, again, strict=True):
        cells = (
            f"{row.ours:.3f}",
            f"{row.theirs:.3f}",
            f"{row.difference:+.2%}",
            f"{second.difference:+.2%}",
        )
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def largest(rows: Sequence[Row]) -> Row:
    """The figure on which the tools differ most."""
    return max(rows, key=lambda row: abs(row.difference))


async def recorded(url: str, model: str | None, asked: Asked) -> tuple[Wish, dict[str, list[Event]]]:
    """The form of the requests, and what the live server answered to them."""
    client = Client(Target.from_url(url))
    extra = {"temperature": 0, "ignore_eos": True}
    wish = Wish(model or await first_model(client), is_chat=False, extra=extra)
    await warm_up(client, wish, 2)
    return wish, await record(client, wish, asked)


def run(args: argparse.Namespace) -> list[list[Row]]:
    """Record, replay, measure with both tools; the figures of our two runs against theirs."""
    shape = DatasetChoice(num_talks=args.prompts, input_tokens=args.input_tokens)
    prompts = [talk.turns[0].messages[0]["content"] for talk in choose(shape)]
    asked = Asked(prompts, args.output_tokens, args.users)
    wish, streams = asyncio.run(recorded(args.url, args.model, asked))
    empty = sum(has_text(data) is False for events in streams.values() for _, data in events)
    print(f"{len(streams)} streams recorded; {empty} events have a choice without text")
    if args.one_count:
        streams = {prompt: joined(events) for prompt, events in streams.items()}
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(port, wish.model, streams))
    process.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "prompts.jsonl"
            lines = [json.dumps({"prompt": p, "max_tokens": asked.output_tokens}) for p in prompts]
            file.write_text("\n".join(lines) + "\n")
            first = asyncio.run(by_ours(port, wish, file, asked.users))
            theirs = by_vllm(args.vllm, args.tokenizer, port, wish, file, asked)
            second = asyncio.run(by_ours(port, wish, file, asked.users))
    finally:
        process.terminate()
        process.join()
    return [compared(ours, theirs) for ours in (first, second)]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="any server with /v1/completions and ignore_eos")
    parser.add_argument("--vllm", type=Path, required=True, help="the program vllm")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with the model's tokenizer")
    parser.add_argument("--model", help="[default: the server's first]")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--input-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--one-count", action="store_true", help="join events without text to those before")
    parser.add_argument("--json", type=Path, help="write all rows")
    args = parser.parse_args()
    rows, again = run(args)
    print(markdown(rows, again))
    most, second = largest(rows), largest(again)
    print(f"\nlargest difference: {most.name} {most.difference:+.2%}")
    print(f"of our second run: {second.name} {second.difference:+.2%}")
    if args.json:
        both = {"first": [asdict(row) for row in rows], "second": [asdict(row) for row in again]}
        args.json.write_text(json.dumps(both, indent=1))
    return 0 if abs(most.difference) <= MOST else 1


if __name__ == "__main__":
    sys.exit(main())
