"""Makes one small file of the traces of many runs, for the test that judges them again.

python -m benchmarks.doctor.traces FOLDER tests/golden/doctor_traces.json

Of each run: what counters grew by, and the means of gauges, in the order of `names`.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.doctor.causes import CAUSES
from headrace.engine.doctor.trace import Trace
from headrace.tools.doctor.scrape import read_trace

KEPT = re.compile(
    r"process_cpu_seconds_total|headrace_(engine|program|grammar|num|phase|memory_roof|compute_roof|decode_row|"
    r"compute_threads|kv_cache|limit|http_(request|body|unread)_|prompt_tokens|generation_tokens|step_|"
    r"request_queue_time|numeric)\w*(\{phase=\"\w+\"\})?"
)


def is_counter(name: str) -> bool:
    return re.sub(r"\{.*", "", name).endswith(("_total", "_sum", "_count"))


def reduced(folder: Path) -> dict[str, Any]:
    """All runs of a folder."""
    found: dict[str, Trace] = {path.stem: read_trace(path) for path in sorted(folder.glob("*.jsonl"))}
    names = sorted({n for t in found.values() for n in t.scrapes[-1].values if KEPT.fullmatch(n)})
    runs = []
    for cause in CAUSES:
        for stem, trace in found.items():
            if stem.rpartition("-")[0] != stem_of(cause):
                continue
            values = [trace.delta(n) if is_counter(n) else trace.mean(n) for n in names]
            runs.append([cause, float(f"{trace.seconds:.4g}"), *(float(f"{v:.4g}") for v in values)])
    return {"names": names, "runs": runs}


def stem_of(cause: str) -> str:
    """The beginning of the names of a cause's traces."""
    return re.sub(r"\W", "-", cause)


if __name__ == "__main__":
    made = reduced(Path(sys.argv[1]))
    lines = ",\n".join(json.dumps(run) for run in made["runs"])
    Path(sys.argv[2]).write_text(f'{{"names": {json.dumps(made["names"])},\n"runs": [\n{lines}\n]}}\n')
