"""Grammars that came before: bad ones are refused at once, good ones find a matcher ready.

A matcher serves one answer, since answers must not share what the library's limits count; so what is kept of
a good grammar is one matcher that nobody has used, made when there is nothing else to do.
"""

from collections import OrderedDict
from threading import Lock

from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM, Grammar
from headrace.host.grammar.compiler import Compiler
from headrace.host.grammar.matcher import Matcher

MAX_ENTRIES = 1024
"""Most grammars that are remembered."""
MAX_BYTES = 8 << 20
"""Most bytes of their texts."""
MAX_READY = 32
"""Most matchers that are kept ready; one takes 10 kB to 16 MB."""


class MatcherCache:
    """Makes matchers, and remembers. Thread-safe.

    Args:
        compiler: makes what is not ready.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self.hits = 0
        """Matchers that were ready and errors that were known."""
        self._lock = Lock()
        self._errors: OrderedDict[Grammar, str | None] = OrderedDict()
        self._ready: OrderedDict[Grammar, Matcher] = OrderedDict()
        self._bytes = 0

    def take(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an answer. Raises as `Compiler.compile`."""
        with self._lock:
            error = self._errors.get(grammar)
            ready = self._ready.pop(grammar, None)
            if grammar in self._errors:
                self._errors.move_to_end(grammar)
            self.hits += int(error is not None or ready is not None)
        if error is not None:
            raise RequestError(error, param=PARAM)
        return ready or self._compile(grammar)

    def restock(self, grammar: Grammar) -> None:
        """Have a matcher of this grammar ready for the next request."""
        if grammar in self._ready or self._errors.get(grammar, "") is not None:
            return
        made = self.compiler.compile(grammar)
        with self._lock:
            self._ready[grammar] = made
            while len(self._ready) > MAX_READY:
                self._ready.popitem(last=False)

    @property
    def num_entries(self) -> int:
        """Grammars that are remembered."""
        return len(self._errors)

    @property
    def num_bytes(self) -> int:
        """Bytes of their texts."""
        return self._bytes

    @property
    def num_ready(self) -> int:
        """Matchers that are ready."""
        return len(self._ready)

    def _compile(self, grammar: Grammar) -> Matcher:
        try:
            made = self.compiler.compile(grammar)
        except RequestError as error:
            self._remember(grammar, error.message)
            raise
        self._remember(grammar, None)
        return made

    def _remember(self, grammar: Grammar, error: str | None) -> None:
        with self._lock:
            if grammar not in self._errors:
                self._bytes += _size(grammar)
            self._errors[grammar] = error
            while len(self._errors) > MAX_ENTRIES or self._bytes > MAX_BYTES:
                gone, _ = self._errors.popitem(last=False)
                self._bytes -= _size(gone)
                self._ready.pop(gone, None)


def _size(grammar: Grammar) -> int:
    return len(grammar.source) + len(grammar.lead)
