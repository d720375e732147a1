"""The file is the registration: plugins are the modules of a folder.

A module `families/qwen3.py` registers the plugin `qwen3`; the object is the module attribute named by the
registry. Listing reads file names only; a module is imported when its plugin is asked for. Names that begin
with an underscore are helpers of the folder, no plugins.
"""

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Generic, TypeVar, cast

from headrace.base.errors import NotFoundError

T = TypeVar("T")


@dataclass(frozen=True)
class Registry(Generic[T]):
    """Plugins of one kind.

    Args:
        kind: the word for error messages ("model family").
        package: dotted name of the folder.
        attribute: module attribute that holds the plugin.
    """

    kind: str
    package: str
    attribute: str

    def names(self) -> tuple[str, ...]:
        """Registered names, sorted."""
        return _module_names(self.package)

    def get(self, name: str) -> T:
        """The plugin of that name.

        Raises:
            NotFoundError: no such file; the message lists what there is.
        """
        if name not in self.names():
            raise NotFoundError(f"unknown {self.kind} {name!r}; known: {', '.join(self.names())}")
        return cast("T", getattr(import_module(f"{self.package}.{name}"), self.attribute))

    def all(self) -> dict[str, T]:
        """Every plugin by name (imports all of them)."""
        return {name: self.get(name) for name in self.names()}


@cache
def _module_names(package: str) -> tuple[str, ...]:
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return ()
    folders = [Path(p) for p in spec.submodule_search_locations]
    found = {f.stem for folder in folders for f in folder.glob("*.py") if not f.stem.startswith("_")}
    found |= {f.name for folder in folders for f in folder.iterdir() if (f / "__init__.py").is_file()}
    return tuple(sorted(n for n in found if not n.startswith("_")))
