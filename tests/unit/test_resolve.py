"""Settings to concrete values: reasons, limits, and refusals that say what would fit."""

import re
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from headrace.base.config import (
    DeviceConfig,
    EngineConfig,
    KVConfig,
    ModelConfig,
    ScheduleConfig,
    SpeculateConfig,
)
from headrace.base.errors import ConfigError
from headrace.base.tasks import Speculation
from headrace.compute.ops.bind import head_sizes
from headrace.compute.ops.facts import BackendFacts
from headrace.compute.ops.heads import HeadSizes
from headrace.engine import build as build_module
from headrace.engine import resolve as resolve_module
from headrace.engine.resolve import DeviceFacts, ModelFacts, geometry_of, resolve
from headrace.engine.sizing import WORKING_BYTES

MODEL = ModelFacts(
    name="m",
    description="a llama",
    max_length=2048,
    vocab_size=100,
    layers=4,
    kv_heads=2,
    head_size=64,
    stored_bytes=100 << 20,
    parameters=100_000_000,
)
DEVICE = DeviceFacts(
    backend="native",
    isa="avx2",
    threads=4,
    reasons=("built in", "best of two", "four cores"),
    memory_bytes=8 << 30,
    memory_reason="cgroup",
    heads=head_sizes("native"),
)


def config(**sections) -> EngineConfig:
    kinds = {"model": ModelConfig, "device": DeviceConfig, "kv": KVConfig, "schedule": ScheduleConfig}
    kinds["speculate"] = SpeculateConfig
    return EngineConfig(**{name: kinds[name](**values) for name, values in sections.items()})


def test_auto_values_have_reasons():
    found = resolve(config(), MODEL, DEVICE)
    assert (found.threads, found.max_num_seqs, found.max_num_batched_tokens) == (4, 64, 512)
    assert found.max_model_len == 2048
    assert all(s.reason for s in found.settings)
    assert {"auto"} == {s.asked for s in found.settings if s.name.startswith("schedule.")}
    table = found.table()
    assert all(s.name in table and s.reason in table for s in found.settings)


def test_a_new_backend_needs_no_word_of_the_engine(monkeypatch):
    """What differs between backends stands in their folders: settings follow from what one says of itself."""
    for keeps_weights, weights in ((True, MODEL.stored_bytes), (False, 4 * MODEL.parameters)):
        said = BackendFacts(
            heads=HeadSizes(step=2, most=64),
            keeps_weights=keeps_weights,
            kv_dtype="int8",
            kv_reason="because",
            is_fast=False,
        )
        module = ModuleType("facts")
        module.FACTS = said
        monkeypatch.setitem(sys.modules, "headrace.compute.ops.backends.imagined.facts", module)
        monkeypatch.setitem(sys.modules, "headrace.compute.ops.backends.imagined", ModuleType("imagined"))
        found = resolve(config(), MODEL, replace(DEVICE, backend="imagined", heads=head_sizes("imagined")))
        assert found.geometry.dtype == "int8"
        noted = next(s for s in found.settings if s.name == "kv.dtype")
        assert (noted.value, noted.reason) == ("int8", "because")
        assert found.model.weight_bytes(found.backend) == weights
    for file in (resolve_module, build_module):
        assert not re.search(r"""["'](native|reference)["']""", Path(file.__file__).read_text())


@pytest.mark.parametrize("size", [4, 36, 264, 512])
def test_head_sizes_the_kernels_lack_are_refused_before_loading(size):
    model = replace(MODEL, head_size=size)
    with pytest.raises(ConfigError, match=rf"size is {size}; .* multiples of 8 up to 256: use --backend"):
        resolve(config(), model, DEVICE)
    other = replace(DEVICE, backend="reference", heads=head_sizes("reference"))
    assert resolve(config(), model, other).geometry.head_size == size


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_size", "block", "dtype", "want"),
    [
        (1, 1, 64, 16, "int8", 2112),
        (30, 3, 64, 32, "int8", 30 * 3 * 2 * 2112),
        (1, 1, 40, 16, "int8", 1344),
        (2, 2, 40, 5, "int8", 4 * 5 * 84),
        (1, 1, 64, 16, "int16", 4160),
        (2, 2, 40, 5, "int16", 4 * (2 * 5 * 40 * 2 + 80 + 20)),
        (1, 1, 64, 16, "f16", 4096),
        (30, 3, 64, 16, "f16", 368640),
        (30, 3, 64, 16, "f32", 737280),
        (24, 2, 128, 1, "f16", 24576),
    ],
)
def test_one_sizing_function(layers, kv_heads, head_size, block, dtype, want):
    """Field lesson QU-7: plan, pool and report use the bytes of the number format asked for."""
    model = replace(MODEL, layers=layers, kv_heads=kv_heads, head_size=head_size)
    asked = config(kv={"block_size": block, "dtype": dtype, "num_blocks": 4096})
    assert geometry_of(asked, model).block_bytes == want
    found = resolve(asked, model, DEVICE)
    assert found.kv_bytes == 4096 * want
    assert found.geometry.block_bytes == want


@pytest.mark.parametrize(
    ("backend", "asked", "want"),
    [
        ("native", "auto", "int16"),
        ("reference", "auto", "f16"),
        ("native", "f16", "f16"),
        ("reference", "int8", "int8"),
    ],
)
def test_the_format_of_keys_and_values_follows_the_backend_unless_asked_for(backend, asked, want):
    found = resolve(config(kv={"dtype": asked}), MODEL, replace(DEVICE, backend=backend))
    assert found.geometry.dtype == found.pinned().kv.dtype == want
    said = next(s for s in found.settings if s.name == "kv.dtype")
    assert (said.asked, said.value) == (asked, want)


def test_the_pool_takes_what_memory_leaves():
    """Field lesson CP-3."""
    block_bytes = resolve(config(), MODEL, DEVICE).geometry.block_bytes
    small = replace(DEVICE, memory_bytes=MODEL.stored_bytes + WORKING_BYTES + 200 * block_bytes)
    found = resolve(config(), MODEL, small)
    assert 100 < found.num_blocks <= 200
    assert found.kv_bytes + MODEL.stored_bytes + WORKING_BYTES <= small.memory_bytes
    assert found.max_model_len == min(2048, found.num_blocks * 16)
    with pytest.raises(ConfigError, match="KV pool"):
        resolve(config(), MODEL, replace(DEVICE, memory_bytes=MODEL.stored_bytes))


def test_the_reference_backend_needs_four_bytes_per_weight():
    device = replace(DEVICE, backend="reference", memory_bytes=700 << 20)
    with pytest.raises(ConfigError, match="weights"):
        resolve(config(kv={"num_blocks": 4096}), MODEL, device)
    assert (
        resolve(config(kv={"num_blocks": 4096}), MODEL, replace(device, backend="native")).num_blocks == 4096
    )


def test_a_context_that_cannot_fit_names_the_largest_that_does():
    """Field lesson OP-1."""
    with pytest.raises(ConfigError, match="largest context that fits is 160"):
        resolve(config(model={"max_model_len": 2000}, kv={"num_blocks": 10}), MODEL, DEVICE)
    assert resolve(config(kv={"num_blocks": 10}), MODEL, DEVICE).max_model_len == 160


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({"model": {"max_model_len": 4096}}, "max_model_len"),
        ({"model": {"max_model_len": 1}}, "max_model_len"),
        ({"schedule": {"max_num_seqs": 0}}, "max_num_seqs"),
        ({"schedule": {"max_num_seqs": 16, "max_num_batched_tokens": 8}}, "below schedule.max_num_seqs"),
        ({"schedule": {"prefill_step_ms": 0.0}}, "prefill_step_ms"),
        ({"schedule": {"max_queued_tokens": -1}}, "max_queued_tokens"),
        ({"kv": {"block_size": 0}}, "block_size"),
        ({"kv": {"num_blocks": 0}}, "KV pool"),
        ({"kv": {"pool_bytes": 64 << 30}}, "fit"),
    ],
)
def test_impossible_settings_are_refused_by_name(sections, word):
    with pytest.raises(ConfigError, match=word):
        resolve(config(**sections), MODEL, DEVICE)


def test_pinned_settings_resolve_to_the_same():
    first = resolve(config(kv={"num_blocks": 10}), MODEL, DEVICE)
    again = resolve(first.pinned(), MODEL, replace(DEVICE, memory_bytes=5 << 30))
    same = ("threads", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "num_blocks", "limits")
    assert all(getattr(first, name) == getattr(again, name) for name in same)


def test_without_chunks_a_step_holds_a_whole_prompt():
    limits = resolve(config(schedule={"chunked_prefill": False}), MODEL, DEVICE).step_limits
    assert limits.max_tokens == 2048
    assert resolve(config(), MODEL, DEVICE).step_limits.max_tokens == 512


def test_large_steps_take_memory_from_the_pool_and_what_cannot_fit_says_what_would():
    """OP-1: the error names who needs what, and the change to make."""
    model = replace(MODEL, layers=24, width=2048, mlp_width=8192, vocab_size=150_000)
    memory = replace(DEVICE, memory_bytes=2 << 30)
    kv = {"num_blocks": None}
    small = resolve(config(kv=kv), model, memory)
    large = resolve(config(kv=kv, schedule={"max_num_batched_tokens": 4096}), model, memory)
    assert large.num_blocks < small.num_blocks
    need = 4 * 4096 * (6 * 2048 + 4 * 8192) + 8 * 64 * 150_000
    assert large.kv_bytes + model.stored_bytes + need < memory.memory_bytes
    with pytest.raises(
        ConfigError, match=r"working memory \d+: give the process (\d+) bytes or more"
    ) as caught:
        resolve(config(schedule={"max_num_batched_tokens": 16384}), model, memory)
    enough = int(re.search(r"process (\d+) bytes", caught.value.message)[1])
    roomy = replace(memory, memory_bytes=enough + (64 << 20))
    assert resolve(config(schedule={"max_num_batched_tokens": 16384}), model, roomy).num_blocks >= 1


def test_speculation_is_off_unless_asked_for_and_takes_rows_of_logits():
    off, on = resolve(config(), MODEL, DEVICE), resolve(config(speculate={"method": "auto"}), MODEL, DEVICE)
    assert (off.speculation, off.max_step_drafts) == (Speculation(), 0)
    assert (on.speculation, on.max_step_drafts) == (Speculation("auto"), 32)
    assert on.step_limits.max_logits == off.step_limits.max_logits + 32
    assert resolve(on.pinned(), MODEL, DEVICE).speculation == on.speculation


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("lookahead", "must be one of off, auto, ngram, suffix.*, got 'lookahead'"),
        ("draft", "draft needs draft=MODEL, got 'draft'"),
        ("draft,depth=3", "draft needs draft=MODEL, got 'draft,depth=3'"),
        ("ngram,depth=99", r"depth must be in \[1, 16\], got 99"),
        ("ngram,5", "must be METHOD or METHOD,depth=K"),
    ],
)
def test_methods_that_there_are_not_are_refused_by_name(method, says):
    with pytest.raises(ConfigError, match=says) as caught:
        resolve(config(speculate={"method": method}), MODEL, DEVICE)
    assert caught.value.param == "speculate.method"


def test_what_falls_short_is_marked_and_what_was_asked_for_is_not():
    def short(found):
        return [s.name for s in found.settings if s.falls_short]

    assert short(resolve(config(), MODEL, DEVICE)) == []
    small = config(kv={"num_blocks": 20})
    assert short(resolve(small, MODEL, DEVICE)) == ["model.max_model_len"]
    asked = config(kv={"num_blocks": 20}, model={"max_model_len": 320})
    assert short(resolve(asked, MODEL, DEVICE)) == []
    slow = replace(DEVICE, backend="reference", heads=head_sizes("reference"))
    assert short(resolve(config(), MODEL, slow)) == ["device.backend"]
    assert short(resolve(config(device={"backend": "reference"}), MODEL, slow)) == []


@pytest.mark.parametrize("asked", ["float32", "bfloat16"])
def test_the_choice_of_activations_is_told_and_reaches_the_backend(monkeypatch, asked):
    found = resolve(config(device={"float_activations": asked}), MODEL, DEVICE)
    said = next(s for s in found.settings if s.name == "device.float_activations")
    assert said.value == found.pinned().device.float_activations == asked
    assert ("asked for" in said.reason) == (asked == "bfloat16")
    given = {}
    monkeypatch.setattr(build_module, "choose_backend", lambda *_, **options: given.update(options))
    build_module.start_backend(found, build_module.Phases())
    assert given["rounds"] is (asked == "bfloat16")


def test_rounded_activations_are_refused_where_the_backend_has_none():
    with pytest.raises(
        ConfigError, match=r"bfloat16, which the reference backend does not offer; use"
    ) as error:
        resolve(config(device={"float_activations": "bfloat16"}), MODEL, replace(DEVICE, backend="reference"))
    assert error.value.param == "device.float_activations"
    assert resolve(config(), MODEL, replace(DEVICE, backend="reference")).backend == "reference"
