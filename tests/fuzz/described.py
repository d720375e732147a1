"""Bodies drawn by schemathesis from the description of the API: what it allows, and what it forbids."""

import argparse
import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.generation import GenerationMode

from headrace.serve.app import ROUTE_FILES
from headrace.serve.endpoint import Endpoint
from headrace.serve.openapi import describe
from tests.fuzz.bodies import Tally, Target, judge, keep_quiet

ROUTES = [
    route
    for routes in ROUTE_FILES.all().values()
    for route in routes
    # a stream without an end is no answer to wait for
    if isinstance(route, Endpoint) and route.about.media_type != "text/event-stream"
]


def run(count: int, number: int = 0, seconds: float = 1e9) -> Tally:
    """Send `count` requests to each operation, half of them forbidden ones; none after so many seconds."""
    whole = describe(ROUTES)
    target, tally, end_s = Target(), Tally(), time.monotonic() + seconds
    with asyncio.Runner() as runner:
        for result in schemathesis.openapi.from_dict(whole).get_all_operations():
            operation: Any = result.ok()
            statuses = {"405", *whole["paths"][operation.path][operation.method.lower()]["responses"]}

            def send(case: Any, statuses: set[str]) -> None:
                if time.monotonic() > end_s:
                    return
                content = _content(case.body)
                headers = {str(k): str(v) for k, v in (case.headers or {}).items()}
                ask = case.method, case.formatted_path, content, headers
                status = runner.run(judge(target, ask, tally, "described"))[0]
                if content and status and str(status) not in statuses:
                    tally.faults.append(
                        f"{case.method} {case.path} {content!r:.600}: {status} is not described"
                    )

            for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
                _each(
                    operation.as_strategy(generation_mode=mode),
                    count // 2,
                    number,
                    partial(send, statuses=statuses),
                )
    return tally


def _each(cases: Any, count: int, number: int, act: Callable[[Any], None]) -> None:
    @seed(number)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases)
    def each(case: Any) -> None:
        act(case)

    with suppress(Unsatisfiable):  # nothing about this operation can be forbidden
        each()


def _content(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError):  # schemathesis' sign for "no body"
        return b""


def main() -> int:
    """Run for a time; 1 when something was found."""
    keep_quiet()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    given_ = parser.parse_args()
    tally, end_s, number = Tally(), time.monotonic() + given_.seconds, given_.seed
    while (left_s := end_s - time.monotonic()) > 0:
        made = run(20, number, left_s)
        tally.statuses += made.statuses
        tally.slowest_s = max(tally.slowest_s, made.slowest_s)
        tally.faults += made.faults
        number += 1
    print(f"{tally.statuses.total()} described bodies: {tally}")
    print(*tally.faults[:20], sep="\n")
    return int(bool(tally.faults))


if __name__ == "__main__":
    raise SystemExit(main())
