"""Chat completions over OpenVINO GenAI's ContinuousBatchingPipeline, streaming only.

    python openvino_server.py MODEL.gguf --port 8001 --threads 2

One thread makes steps; the event loop takes requests and writes events. Runs in OpenVINO's own environment.
"""

import argparse
import asyncio
import json
import threading
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import openvino_genai as genai


@dataclass
class Job:
    """A request under way; `send` takes (text, done, usage) in the event loop."""

    body: dict
    send: Any
    handle: Any = None
    wanted: int = 0
    got: int = 0
    prompt: int = 0


class Pipeline:
    """The pipeline and the thread that drives it."""

    def __init__(self, args: argparse.Namespace) -> None:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = args.cache_gib
        scheduler.enable_prefix_caching = True
        scheduler.max_num_batched_tokens = args.step_tokens
        scheduler.max_num_seqs = 256
        properties = {"INFERENCE_NUM_THREADS": args.threads}
        self._pipeline = genai.ContinuousBatchingPipeline(args.model, scheduler, "CPU", properties)
        self._tokenizer = self._pipeline.get_tokenizer()
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        self._live: list[Job] = []
        self._number = 0
        threading.Thread(target=self._drive, daemon=True).start()

    def _drive(self) -> None:
        while True:
            self._take()
            self._pipeline.step()
            for job in list(self._live):
                self._read(job)

    def _take(self) -> None:
        """Admit what waits; sleep when there is nothing to do."""
        while True:
            try:
                self._admit(self.inbox.get(block=not self._live))
            except Empty:
                return
            if self.inbox.empty():
                return

    def _admit(self, job: Job) -> None:
        text = self._tokenizer.apply_chat_template(job.body["messages"], True)
        ids = self._tokenizer.encode(text, add_special_tokens=False).input_ids
        config = genai.GenerationConfig()
        config.max_new_tokens = job.wanted = job.body["max_tokens"]
        config.ignore_eos = bool(job.body.get("ignore_eos"))
        config.apply_chat_template = False
        job.prompt = ids.shape[1]
        job.handle = self._pipeline.add_request(self._number, ids, config)
        self._number += 1
        self._live.append(job)

    def _read(self, job: Job) -> None:
        tokens: list[int] = []
        while job.handle.can_read():
            for output in job.handle.read().values():
                tokens += list(output.generated_ids)
        job.got += len(tokens)
        ended = job.got >= job.wanted or job.handle.get_status() == genai.GenerationStatus.FINISHED
        if ended:
            self._live.remove(job)
        if tokens or ended:
            text = self._tokenizer.decode(tokens) if tokens else ""
            job.send(text, ended, {"prompt_tokens": job.prompt, "completion_tokens": job.got})


class Server:
    """HTTP/1.1, one request a connection."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

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
        loop, events = asyncio.get_running_loop(), asyncio.Queue()

        def send(*event: Any) -> None:
            loop.call_soon_threadsafe(events.put_nowait, event)

        self._pipeline.inbox.put(Job(body, send))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
        ended = False
        while not ended:
            text, ended, usage = await events.get()
            # an empty piece is no event for the client, so a token without text of its own is sent as a blank
            event = {"choices": [{"index": 0, "delta": {"content": text or " "}}]}
            writer.write(b"data: " + json.dumps(event).encode() + b"\n\n")
        done = {"choices": [], "usage": usage}
        writer.write(b"data: " + json.dumps(done).encode() + b"\n\ndata: [DONE]\n\n")


async def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-gib", type=int, default=4)
    parser.add_argument("--step-tokens", type=int, default=256)
    args = parser.parse_args()
    server = await asyncio.start_server(Server(Pipeline(args)).serve, "127.0.0.1", args.port, limit=1 << 24)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
