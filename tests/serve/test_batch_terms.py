"""A line through the whole application: on the terms of its key, in the background, its tokens counted."""

import json
from pathlib import Path
from typing import Any, cast

from headrace.base.config import AccessConfig, BatchConfig, EngineConfig
from headrace.base.terms import Tenant, Terms
from headrace.engine.async_llm import AsyncLLM
from headrace.serve.app import build_app
from tests.serve.fake import FakeLLM, hello

KEYS = """
keys:
  - {name: team-a, key: alpha, weight: 2, kv_share: 0.5, tokens_per_minute: 600}
  - {name: team-b, key: beta}
"""


async def test_a_line_runs_on_its_keys_terms_and_its_tokens_are_counted_for_it(tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text(KEYS)
    llm = FakeLLM(hello)
    config = EngineConfig(
        access=AccessConfig(keys_file=str(keys)), batch=BatchConfig(dir=str(tmp_path / "store"))
    )
    _, state = build_app(cast("AsyncLLM", llm), config)
    store = state.batch_worker.store
    lines: list[dict[str, Any]] = [
        {"custom_id": f"c{i}", "method": "POST", "url": "/v1/completions", "body": {"prompt": "ab"}}
        for i in range(3)
    ]
    file = store.add_file("\n".join(map(json.dumps, lines)).encode(), "in", "team-a")
    about = dict.fromkeys(("in_progress_at", "finalizing_at", "output_file_id", "error_file_id"))
    about |= {"input_file_id": file["id"], "status": "validating", "request_counts": {}}
    batch = store.add_batch(about, "team-a")
    await state.batch_worker._run_batch(batch)
    assert batch["request_counts"] == {"completed": 3, "failed": 0}
    tenant = Tenant(name="team-a", weight=2, kv_share=0.5, tokens_per_minute=600)
    assert [seen.terms for seen in llm.seen] == [Terms(tenant=tenant, is_background=True)] * 3
    shown = state.metrics.registry.get_sample_value
    asked = {"key": "team-a", "kind": "prompt"}
    assert shown("headrace_key_tokens_total", asked) == 6
    assert shown("headrace_key_tokens_total", asked | {"kind": "generation"}) == 3 * len(
        "Hello wörld".encode()
    )
    assert shown("headrace_key_tokens_total", asked | {"key": "team-b"}) is None
