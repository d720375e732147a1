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
    "\\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌ"
    "ῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲"
    "𑢠-𑣟𞤀-𞥃]+"
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

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """The library's form: the cuts, then bytes to the byte-level alphabet."""
        cuts = [pre_tokenizers.Split(Regex(p), behavior="isolated") for p in self.patterns]
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, spell])


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


def word_rule(name: str | None) -> WordRule:
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
    if name not in RULE_BY_NAME:
        raise CheckpointError(
            f"unknown pre-tokenizer {name!r} (tokenizer.ggml.pre); guessing would give wrong tokens. "
            f"Name the model's tokenizer.json with --tokenizer. Known: {known}"
        )
    return RULE_BY_NAME[name]
