"""How byte-level vocabularies cut text into words before merging: facts of each model family, by GGUF name.

A family's rule is a list of regular expressions, applied one after the other: each cuts the pieces of the one
before into its matches and what lies between them. A wrong rule costs quality without an error, so a name
that is not known is refused.
"""
# ruff: noqa: RUF001  (the look-alikes of ASCII are meant)

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from headrace.base.errors import CheckpointError

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ASCII_PUNCTUATION = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"
_CJK = "[一-龥\u0800-一가-\ud7ff]+"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _words(*, digits: str, letters: str = r"\p{L}", tail: str = r"[\r\n]*", others: str = "") -> str:
    """The pattern that cl100k began: contractions, words, digit groups, symbols, white space."""
    return (
        rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}"
        rf"| ?[^\s\p{{L}}{others}\p{{N}}]+{tail}|{_SPACES}"
    )


def _cased_words(*, digits: str, contraction: str) -> str:
    """The pattern that o200k began: words end where lower case turns to upper case."""
    mark = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{mark}{_UPPER}*{_LOWER}+{contraction}|{mark}{_UPPER}+{_LOWER}*{contraction}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
    )


_DEEPSEEK3_WORDS = (
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z"
    "\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481"
    "\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf"
    "\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d"
    "\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4"
    "\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f"
    "\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17"
    "\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb"
    "\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
    "]+"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WordRule:
    """One family's way to cut text.

    `whole_words`: a word that is an entry of the vocabulary is that token, without merging. `adds_bos`: the
    begin token is put first unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    whole_words: bool = False
    adds_bos: bool = False

    def cuts(self) -> pre_tokenizers.PreTokenizer:
        """The library's form of the cuts alone."""
        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns])

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The library's form: the cuts, then bytes to the byte-level alphabet."""
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([self.cuts(), spell])


_GPT2 = WordRule(patterns=(GPT2,))
_DIGITS_THEN_GPT2 = WordRule(patterns=(r"\p{N}", GPT2))
_LLAMA3 = WordRule(patterns=(_words(digits=r"\p{N}{1,3}"),), whole_words=True, adds_bos=True)
_LLAMA3_MERGED = WordRule(patterns=_LLAMA3.patterns)
_QWEN2 = WordRule(patterns=(_words(digits=r"\p{N}"),))
_GPT4O = WordRule(patterns=(_cased_words(digits=r"\p{N}{1,3}", contraction=f"{_CONTRACTION}?"),))
_DEEPSEEK3 = WordRule(patterns=(r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3_WORDS))
_NOT_SENTENCE_MARKS = r" ?[^(\s|.,!?…。，、।۔،)]+"

_RULES: dict[WordRule, tuple[str, ...]] = {
    _GPT2: (
        *(
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "gigachat",
            "a.x-4.0",
            "mellum",
        ),
        *("exaone4", "jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "modern-bert"),
    ),
    _DIGITS_THEN_GPT2: (
        *("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"),
    ),
    _LLAMA3: (
        *(
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ),
    ),
    _LLAMA3_MERGED: ("dbrx", "smaug-bpe", "chatglm-bpe"),
    WordRule(patterns=_LLAMA3.patterns, whole_words=True): ("glm4", "glm5"),
    _QWEN2: (
        "qwen2",
        "deepseek-r1-qwen",
        "kormo",
        "f2llmv2",
        "megrez",
        "stablelm2",
        "hunyuan",
        "solar-open",
        "grok-2",
    ),
    WordRule(patterns=(_words(digits=r"\p{N}", letters=r"[\p{L}\p{M}]", others=r"\p{M}"),)): ("qwen35",),
    _GPT4O: ("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    WordRule(patterns=(_cased_words(digits=r"\p{N}", contraction=""),), whole_words=True, adds_bos=True): (
        "tekken",
    ),
    _DEEPSEEK3: ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
    WordRule(
        patterns=(r"[\r\n]", _DEEPSEEK_LETTERS, r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", _CJK, r"\p{N}+")
    ): ("deepseek-llm",),
    WordRule(patterns=(r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")): ("deepseek-coder",),
    WordRule(patterns=(r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]")): ("falcon",),
    WordRule(patterns=(_NOT_SENTENCE_MARKS,)): ("poro-chat", "bloom", "gpt3-finnish"),
    WordRule(patterns=(_NOT_SENTENCE_MARKS, r"\p{N}")): ("viking",),
    WordRule(
        patterns=(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}"
            r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        )
    ): ("bailingmoe", "bailingmoe2", "llada-moe"),
    WordRule(
        patterns=(
            rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",
        )
    ): ("seed-coder",),
    WordRule(patterns=(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]")): ("default",),
}

RULE_BY_NAME = {name: rule for rule, names in _RULES.items() for name in names}
"""Every rule by the name that `tokenizer.ggml.pre` gives it."""


def word_rule(name: object) -> WordRule:
    """The rule of that name.

    Raises:
        CheckpointError: the file names no rule, or one that Headrace lacks; the message lists those it has.
    """
    known = ", ".join(sorted(RULE_BY_NAME))
    if name is None:
        raise CheckpointError(
            "the GGUF file does not say how its vocabulary cuts text (no tokenizer.ggml.pre: an old file); "
            f"convert it again, or name the model's tokenizer.json with --tokenizer. Known: {known}"
        )
    if not isinstance(name, str) or name not in RULE_BY_NAME:
        raise CheckpointError(
            f"unknown pre-tokenizer {name!r:.80} (tokenizer.ggml.pre); guessing would give wrong tokens. "
            f"Name the model's tokenizer.json with --tokenizer. Known: {known}"
        )
    return RULE_BY_NAME[name]
