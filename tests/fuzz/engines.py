"""Bodies against a real engine on a tiny model: what passes the door is compiled, scheduled and run."""

import json
from pathlib import Path

from headrace.base.config import (
    DeviceConfig,
    EngineConfig,
    KVConfig,
    ModelConfig,
    ScheduleConfig,
    ServeConfig,
)
from headrace.engine.async_llm import AsyncLLM
from headrace.host.text.chat import CHATML
from tests.fuzz.bodies import Tally, Target, run
from tests.kit.scripted import scripted_checkpoint
from tests.kit.vocabs import byte_library

LENGTH = 64


def checkpoint() -> Path:
    """A model of 320 tokens that writes small letters in turn, with a tokenizer and a chat template."""
    folder = scripted_checkpoint({i: 97 + (i + 1) % 26 for i in range(320)}, length=LENGTH)
    byte_library().save(str(folder / "tokenizer.json"))
    marks = {"eos_token": "<|im_end|>", "bos_token": "<s>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(marks))
    return folder


def config() -> EngineConfig:
    """One thread, few blocks: requests wait, and are put off."""
    return EngineConfig(
        model=ModelConfig(model=str(checkpoint())),
        device=DeviceConfig(threads=1, weight_cache="off"),
        kv=KVConfig(block_size=4, num_blocks=48),
        schedule=ScheduleConfig(max_num_seqs=4, max_num_batched_tokens=32),
        serve=ServeConfig(in_process=True, served_model_name="fake"),
    )


async def run_engine(count: int, seed: int, seconds: float = 1e9) -> Tally:
    """As `bodies.run`; also: the engine stays healthy and holds nothing at the end."""
    llm = await AsyncLLM.start(config())
    try:
        tally = await run(count, seed, seconds, Target(llm))
        health, stats = llm.health(), await llm.stats()
        if not (health.alive and health.ready):
            tally.faults.append(f"the engine is not healthy: {health}")
        for name in ("running", "waiting", "blocks_held"):
            if stats.gauges[name]:
                tally.faults.append(f"{name} is {stats.gauges[name]} at the end")
    finally:
        await llm.close()
    return tally
