"""A model that loads in its engine process while this one does something else."""

import asyncio
import socket
from dataclasses import replace

import pytest

from headrace.base.clock import now_s
from headrace.base.config import AccessConfig, ModelConfig, WatchConfig
from headrace.base.errors import ConfigError, EngineDeadError, NotFoundError
from headrace.compute.weights.catalogue import present
from headrace.compute.weights.checkpoint import open_checkpoint
from headrace.engine.async_llm import AsyncLLM, Launch
from headrace.engine.build import open_model
from headrace.engine.process.spawn import spawn
from headrace.serve.server import serve
from tests.engine.test_process import PARAMS, config, gather, is_alive
from tests.engine.test_process_limits import spawn_hanging
from tests.kit.engine import tiny_llama


def lives(launch: Launch) -> bool:
    process_id = launch.client.process_id
    assert process_id is not None
    return is_alive(process_id)


@pytest.mark.parametrize("hint", [(), (str(tiny_llama()), "auto"), ("/nowhere.gguf", "auto"), ("x", "gguf")])
async def test_a_launched_model_answers_as_one_that_was_started(hint):
    launch = Launch(config(), spawn(*hint))
    client = launch.client
    launched = await AsyncLLM.start(config(), launch)
    started = await AsyncLLM.start(config())
    try:
        assert launched.client is client
        first, second = await asyncio.gather(
            gather(launched, [5, 6, 7], PARAMS), gather(started, [5, 6, 7], PARAMS)
        )
        assert first == second
        assert list(launched.phases)[-3:] == ["tokenizer", "chat template", "engine process"]
    finally:
        await launched.close()
        await started.close()


def test_a_checkpoint_that_was_opened_early_counts_for_its_own_path_only(tmp_path):
    path = present(str(tiny_llama()))
    assert path is not None
    early = open_checkpoint(path, "auto")
    assert open_model(config(), with_text=False, early=early).checkpoint is early
    other = open_model(config(), with_text=False, early=replace(early, path=tmp_path)).checkpoint
    assert other.path == path
    assert other.content_id == early.content_id
    assert present(str(tmp_path / "none.gguf")) is None
    assert present("nobody/nothing") is None


def test_a_launch_does_not_wait_for_the_model():
    began_s = now_s()
    launch = Launch(replace(config(), watch=WatchConfig(load_s=1.0)), spawn_hanging())
    assert now_s() - began_s < 20
    assert lives(launch)
    with pytest.raises(EngineDeadError, match=r"not loaded the model after 1 s"):
        launch.result()
    assert not lives(launch)


def test_a_launch_that_finds_no_model_ends_its_process(tmp_path):
    spawned = spawn()
    asked = replace(config(), model=ModelConfig(model=str(tmp_path / "none.gguf")))
    with pytest.raises(NotFoundError, match=r"none\.gguf"):
        Launch(asked, spawned)
    spawned.process.wait(20)


async def test_settings_that_are_refused_end_a_launched_process():
    launch = Launch(config(), spawn())
    asked = replace(config(), access=AccessConfig(keys_file="/nowhere/keys"))
    with socket.socket() as sock, pytest.raises(ConfigError, match="/nowhere/keys"):
        await serve(asked, lambda *_: None, sock, launch)
    assert not lives(launch)
