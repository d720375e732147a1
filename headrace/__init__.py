"""Headrace: an exact inference engine and server for large language models.

Reading order: `base` (values), `host` (decisions), `compute` (one step on one device), `engine` (joins them),
`serve` and `tools` (what users meet), `cli`. See `docs/architecture.md`.

The public names are imported on first use, so that `import headrace` stays in the range of milliseconds.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME_BY_NAME = {
    "LLM": "headrace.engine.llm",
    "AsyncLLM": "headrace.engine.async_llm",
    "SamplingParams": "headrace.base.request",
    "Grammar": "headrace.base.grammar",
    "EngineConfig": "headrace.base.config",
}

__all__ = ["LLM", "AsyncLLM", "EngineConfig", "Grammar", "SamplingParams", "__version__"]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    home = _HOME_BY_NAME.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)
