"""Fixtures shared by all kinds of tests."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from headrace.base.env import cache_dir

settings.register_profile("quick", max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
settings.register_profile("full", max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
settings.load_profile("quick")


def catalogue_file(name: str) -> Path:
    """The GGUF file of a catalogue model, fetched into the user's cache when it is not there yet."""
    path = cache_dir() / "models" / (name.replace(":", "-") + ".gguf")
    if path.exists():
        return path
    from headrace.compute.weights.catalogue import locate

    return locate(name)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    return catalogue_file("smollm2:135m")


@pytest.fixture(scope="session")
def qwen_small_path() -> Path:
    return catalogue_file("qwen2.5-coder:0.5b")


@pytest.fixture(scope="session")
def qwen_large_path() -> Path:
    return catalogue_file("qwen2.5-coder:1.5b")
