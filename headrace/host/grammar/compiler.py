"""From a grammar to a matcher, under limits on time and memory.

The library counts its work ("fuel"), so the limits below hold on every machine alike; what they do not count
is refused before (`schema`).
"""

import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from headrace.base.clock import now_s
from headrace.base.errors import RequestError
from headrace.base.grammar import PARAM, Grammar, GrammarKind
from headrace.host.grammar.library import any_to_lark, library
from headrace.host.grammar.matcher import Matcher, error_text
from headrace.host.grammar.schema import check_schema
from headrace.host.text.tokenizer import Tokenizer

INITIAL_FUEL = 100_000
"""Of the first expressions of the lexer: at most 50 ms and 16 MB."""
STEP_FUEL = 100_000
"""Of one mask; 14,000 take about a millisecond."""
MAX_LEXER_STATES = 10_000
"""Of one matcher, 1 to 2 kB each."""
MAX_SYMBOLS = 200_000
"""Of the productions: what a schema unfolds to."""
MAX_MATCHER_BYTES = 16 << 20
"""Of a new matcher, as the limits above allow."""
MIN_MATCHER_BYTES = 64 << 10
BYTES_PER_S = 200_000_000
"""A matcher's memory by the time it took to make: 20 to 170 kB were measured for a millisecond."""
MAX_GBNF_CHARS = 16 << 10


class GrammarVocabulary:
    """A model's tokens as the library wants them; 0.1 to 0.5 s of work.

    Args:
        tokenizer: spells the tokens.
        vocab_size: rows of the model's head; masks have as many bits.
        end_ids: the tokens that end an answer.

    Raises:
        RequestError: the model has no end token, so that no answer could end.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_ids: Collection[int]) -> None:
        ends = sorted(i for i in end_ids if i < vocab_size)
        if not ends:
            raise RequestError(
                "this model names no end token, so no structured answer could end", param=PARAM
            )
        self.vocab_size = vocab_size
        self.words = (vocab_size + 31) // 32
        """32-bit words of a mask."""
        lib = library()
        wrapped = _Tokens(tokenizer, vocab_size, ends[0])
        self.inner: Any = lib.LLTokenizer(lib.TokenizerWrapper(wrapped), n_vocab=vocab_size, eos_token=ends)


class _Tokens:
    """What the library asks a tokenizer for; the names are the library's."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, end_id: int) -> None:
        self.eos_token_id = end_id
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.token_bytes(i) for i in range(vocab_size)]
        self.special_token_ids = [t.id for t in tokenizer.specials if t.id < vocab_size]
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
        return self._tokenizer.encode(whole, add_special=False, parse_special=False)


class Compiler:
    """Makes matchers. Any thread; the library lets other threads run while it works.

    Args:
        vocabulary: the model's tokens.
    """

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary
        lib = library()
        self._matcher: Callable[..., Any] = lib.LLMatcher
        self._limits = lib.LLParserLimits(
            initial_lexer_fuel=INITIAL_FUEL,
            step_lexer_fuel=STEP_FUEL,
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=MAX_SYMBOLS,
            verbose_errors=False,
        )

    def compile(self, grammar: Grammar) -> Matcher:
        """A matcher at the beginning of an answer.

        Raises:
            RequestError: the grammar is wrong, asks for something unsupported, is too complex, or allows no
                answer; the message says what and where.
        """
        began_s = now_s()
        if grammar.kind is GrammarKind.JSON:
            check_schema(grammar.source)
        spelled = _spelled(grammar)
        inner = self._matcher(self.vocabulary.inner, spelled, log_level=0, limits=self._limits)
        if not inner.is_error():
            self._try(inner)
        if inner.is_error():
            raise RequestError(
                f"the {grammar.kind.value} grammar cannot be used: {error_text(inner.get_error())}",
                param=PARAM,
            )
        num_bytes = MIN_MATCHER_BYTES + int((now_s() - began_s) * BYTES_PER_S)
        return Matcher(inner, min(num_bytes, MAX_MATCHER_BYTES))

    def _try(self, inner: Any) -> None:
        """Make the first mask: it builds most of the lexer, and what is too complex fails here.

        Raises:
            RequestError: no token may come first.
        """
        mask = np.zeros(self.vocabulary.words, np.uint32)
        inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        if not inner.is_error() and not mask.any():
            raise RequestError("the grammar allows no first token, so there is no answer", param=PARAM)


def _spelled(grammar: Grammar) -> str:
    """The grammar as the library reads it: two that refer to each other by name, where one leads."""
    if not grammar.lead:
        return _alone(grammar)
    answer: dict[str, Any]
    if grammar.kind is GrammarKind.JSON:
        answer = {"json_schema": json.loads(grammar.source)}
    elif grammar.kind is GrammarKind.REGEX:
        answer = json.loads(_alone(grammar))["grammars"][0]
    else:
        answer = {"lark_grammar": _alone(grammar)}
    return json.dumps({"grammars": [{"lark_grammar": grammar.lead}, {**answer, "name": "answer"}]})


def _alone(grammar: Grammar) -> str:
    make = library().LLMatcher
    if grammar.kind is GrammarKind.JSON:
        return make.grammar_from_json_schema(grammar.source)
    if grammar.kind is GrammarKind.REGEX:
        return make.grammar_from_regex(grammar.source)
    return make.grammar_from_lark(_lark(grammar.source))


def _lark(source: str) -> str:
    """Lark's syntax; GBNF (llama.cpp's, with `::=`) is translated, in Python and therefore in smaller sizes.

    Raises:
        RequestError: it is GBNF, and wrong or too long.
    """
    if "::=" not in source:
        return source
    if len(source) > MAX_GBNF_CHARS:
        raise RequestError(
            f"the GBNF grammar has {len(source)} characters, limit {MAX_GBNF_CHARS}; use Lark",
            param=PARAM,
        )
    try:
        return any_to_lark()(source)
    except Exception as error:  # the translator raises what comes
        raise RequestError(f"the GBNF grammar is wrong: {error_text(str(error))}", param=PARAM) from error
