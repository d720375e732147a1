"""The one place that looks at environment variables; everything else goes through the settings tree."""

import os
from collections.abc import Mapping
from pathlib import Path

PREFIX = "HEADRACE_"


def settings_from_env() -> Mapping[str, str]:
    """Variables `HEADRACE_SECTION_FIELD`, lower case, without the prefix."""
    return {k[len(PREFIX) :].lower(): v for k, v in os.environ.items() if k.startswith(PREFIX)}


def cache_dir() -> Path:
    """Folder for models and packed weights.

    `HEADRACE_CACHE_DIR`, else `XDG_CACHE_HOME/headrace`, else `~/.cache/headrace`.
    """
    own = os.environ.get("HEADRACE_CACHE_DIR")
    if own:
        return Path(own)
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "headrace"


def child_environment() -> dict[str, str]:
    """A copy of the environment for a child process."""
    return dict(os.environ)


def calm_blas() -> None:
    """Let idle threads of numpy's linear algebra sleep instead of spinning; call before numpy is imported."""
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
