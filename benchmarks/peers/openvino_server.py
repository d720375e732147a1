"""Chat completions over OpenVINO GenAI's ContinuousBatchingPipeline, streaming only.

    python openvino_server.py MODEL.gguf --port 8001 --threads 2

One process makes steps, another speaks HTTP: `step()` holds the interpreter's lock, and in one process tokens
would reach the socket steps late. Runs in OpenVINO's own environment.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

Event = tuple[int, str, bool, dict]
"""Number of the request, new text, whether it ended, usage so far."""


@dataclass
class Job:
    """A request under way in the pipeline."""

    handle: Any
    wanted: int
    prompt: int
    got: int = 0


class Pipeline:
    """The pipeline's process: takes (number, body), sends lists of events."""

    def __init__(self, args: argparse.Namespace, connection: Connection) -> None:
        import openvino_genai as genai  # noqa: PLC0415 - only this process loads it

        self._genai = genai
        self._connection = connection
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = args.cache_gib
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = args.step_tokens
        scheduler.max_num_seqs = 256
        properties = {"INFERENCE_NUM_THREADS": args.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self._live: dict[int, Job] = {}

    def run(self) -> None:
        """Until the other process is gone."""
        self._connection.send("ready")
        try:
            while True:
                while not self._live or self._connection.poll():
                    self._admit(*self._connection.recv())
                self._pipeline.step()
                events = [event for number in list(self._live) if (event := self._read(number))]
                if events:
                    self._connection.send(events)
        except (EOFError, BrokenPipeError):
            return

    def _admit(self, number: int, body: dict) -> None:
        text = self._tokenizer.apply_chat_template(body["messages"], True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        config = self._genai.GenerationConfig()
        config.max_new_tokens = body["max_tokens"]
        config.ignore_eos = bool(body.get("ignore_eos"))
        config.apply_chat_template = False
        handle = self._pipeline.add_request(number, ids, config)
        self._live[number] = Job(handle, body["max_tokens"], ids.shape[1])

    def _read(self, number: int) -> Event | None:
        job, tokens = self._live[number], []
        while job.handle.can_read():
            for output in job.handle.read().values():
                tokens += list(output.generated_ids)
        job.got += len(tokens)
        finished = job.handle.get_status() == self._genai.GenerationStatus.FINISHED
        ended = job.got >= job.wanted or finished
        if ended:
            del self._live[number]
        if not tokens and not ended:
            return None
        usage = {"prompt_tokens": job.prompt, "completion_tokens": job.got}
        return number, self._tokenizer.decode(tokens) if tokens else "", ended, usage


def drive(args: argparse.Namespace, connection: Connection) -> None:
    Pipeline(args, connection).run()


class Server:
    """HTTP/1.1, one request a connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._queues: dict[int, asyncio.Queue] = {}
        self._number = 0

    def take(self) -> None:
        """Hand events of the pipeline's process to their requests."""
        try:
            while self._connection.poll():
                for number, *event in self._connection.recv():
                    self._queues[number].put_nowait(event)
        except EOFError:
            os._exit(1)  # the pipeline died: its error is in the log

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            if head.startswith("get"):
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
            else:
                length = next(
                    int(x.split(":")[1]) for x in head.splitlines() if x.startswith("content-length")
                )
                await self._answer(json.loads(await reader.readexactly(length)), writer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, body: dict, writer: asyncio.StreamWriter) -> None:
        self._number += 1
        number, events = self._number, asyncio.Queue()
        self._queues[number] = events
        self._connection.send((number, body))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        ended = False
        while not ended:
            text, ended, usage = await events.get()
            # an empty piece is no event for the client: a token without text of its own is sent as a blank
            event = {"choices": [{"index": 0, "delta": {"content": text or " "}}]}
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        del self._queues[number]
        done = {"choices": [], "usage": usage}
        writer.write(b"data: " + json.dumps(done).encode() + b"\n\ndata: [DONE]\n\n")


async def serve(args: argparse.Namespace, connection: Connection) -> None:
    server = Server(connection)
    asyncio.get_running_loop().add_reader(connection.fileno(), server.take)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", args.port, limit=1 << 24)
    await listener.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gib", type=int, default=4)
    parser.add_argument("--step-tokens", type=int, default=256)
    args = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=drive, args=(args, theirs), daemon=True)
    process.start()
    theirs.close()
    if ours.recv() != "ready":  # EOFError: it could not read the model, and said why
        raise RuntimeError("the pipeline did not start")
    asyncio.run(serve(args, ours))


if __name__ == "__main__":
    main()
