"""The access log: one JSON object a line on the standard error output, without prompts unless asked."""

import contextlib
import sys
from typing import Any

import msgspec

from headrace.serve.front.record import Record

_TIMINGS = ("queue_s", "prefill_s", "decode_s", "preempted")


def write_line(record: Record) -> None:
    """Write the line of a record. Keys appear by name; queries and headers do not appear."""
    with contextlib.suppress(OSError, ValueError):  # nobody reads the log: not a reason to fail
        sys.stderr.write(msgspec.json.encode(line_of(record)).decode() + "\n")


def line_of(record: Record) -> dict[str, Any]:
    """A record as the log shows it."""
    line: dict[str, Any] = {
        "time": round(record.start_unix_s, 3),
        "method": record.method,
        "path": record.path,
        "status": record.status,
        "seconds": round(record.seconds, 6),
        "bytes": record.num_bytes,
        "client": record.client,
        "key": record.key,
        "whole": record.is_whole,
    }
    answered = record.answered
    if answered.request_id:
        line |= {
            "request_id": answered.request_id,
            "prompt_tokens": answered.prompt_tokens,
            "cached_tokens": answered.cached_tokens,
            "completion_tokens": answered.completion_tokens,
            "finish_reasons": answered.finish_reasons,
            "ttft_s": None if answered.ttft_s is None else round(answered.ttft_s, 6),
        }
        line |= {name: round(answered.timings[name], 6) for name in _TIMINGS if name in answered.timings}
    if record.body is not None:
        line["body"] = record.body.decode(errors="replace")
    return line
