"""Stop strings: found in decoded text, over token borders, before any part of a match is sent.

Text that is a beginning of some stop string is held back until it is decided. The scanner is the automaton of
Aho and Corasick (1975), so work is linear in the text however many stops there are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.base.errors import RequestError


@dataclass(slots=True)
class _Node:
    """A beginning of some stop: where each next character leads."""

    depth: int
    next: dict[str, "_Node"] = field(default_factory=dict[str, "_Node"])
    fall: "_Node | None" = None
    """The longest proper suffix that is also a beginning of some stop."""
    stop: str | None = None
    """The longest stop that ends here."""


class StopScanner:
    """Watches the text of one answer for stop strings.

    The match that is complete first counts; of those that end at one character, the one that begins first. So
    the result does not depend on how the text is cut. Only text given to `push` is searched: a stop cannot
    match across the end of the prompt.

    Args:
        stops: the stop strings, none empty.
        include: keep the stop string in the text.

    Raises:
        RequestError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        if not all(stops):
            raise RequestError("a stop string is empty; leave it out", param="stop")
        self._include = include
        self._root = _automaton(stops)
        self._node = self._root
        self._held = ""
        self._found: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Text to send now, and the stop string that was found, if any; after that nothing more is sent."""
        if self._found is not None:
            return "", self._found
        for position, char in enumerate(text):
            node = _step(self._node, self._root, char)
            self._node = node
            if node.stop is not None:
                return self._end(text, position + 1, node.stop)
        held = self._held + text
        cut = len(held) - self._node.depth
        self._held = held[cut:]
        return held[:cut], None

    def flush(self) -> str:
        """Text held back when the answer ends without a stop string."""
        rest, self._held = self._held, ""
        self._node = self._root
        return rest

    def _end(self, text: str, end: int, stop: str) -> tuple[str, str]:
        upto = self._held + text[:end]
        self._held = ""
        self._found = stop
        return (upto if self._include else upto[: len(upto) - len(stop)]), stop


def _step(node: _Node, root: _Node, char: str) -> _Node:
    while char not in node.next:
        if node.fall is None:
            return root
        node = node.fall
    return node.next[char]


def _automaton(stops: Sequence[str]) -> _Node:
    root = _Node(0)
    for stop in stops:
        node = root
        for char in stop:
            node = node.next.setdefault(char, _Node(node.depth + 1))
        node.stop = stop
    layer = [root]
    while layer:
        for node in layer:
            for char, child in node.next.items():
                child.fall = root if node.fall is None else _step(node.fall, root, char)
                child.stop = child.stop or child.fall.stop
        layer = [child for node in layer for child in node.next.values()]
    return root
