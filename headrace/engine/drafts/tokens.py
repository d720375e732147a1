"""Whether the tokens of two models are the same.

Drafts are token ids, so a draft model must mean the same by each id. Sizes say little: equal ones may hide
other tokens, and heads are padded to round numbers. So the tables are compared, id by id.
"""

from headrace.base.errors import ConfigError
from headrace.base.specs import TokenizerSource
from headrace.engine.drafts.wish import PARAM
from headrace.engine.text import has_tokenizer
from headrace.host.text.tokenizer import Tokenizer, load_tokenizer


def check_same_tokens(
    target: Tokenizer | None, draft: TokenizerSource, vocab_sizes: tuple[int, int], name: str
) -> None:
    """Refuse a draft model with other tokens.

    Ids that only one of them has do no harm: they are never drafted.

    Args:
        target: the tokenizer of the model that is drafted for.
        draft: where the draft model's is.
        vocab_sizes: rows of the heads of both, the target's first; compared where neither has a tokenizer.
        name: the draft model.

    Raises:
        ConfigError: names the first id that stands for something else.
        CheckpointError: the draft model's tokenizer is broken.
    """
    other = load_tokenizer(draft) if has_tokenizer(draft) else None
    if target is None or other is None:
        if target is other and vocab_sizes[0] == vocab_sizes[1]:
            return
        raise ConfigError(
            f"{PARAM}: the tokens of draft model {name!r} cannot be compared with those of the model: "
            f"{_lacks(target, other)}; give a draft model with the same tokenizer",
            param=PARAM,
        )
    found = first_difference(target, other)
    if found is not None:
        raise ConfigError(
            f"{PARAM}: draft model {name!r} has other tokens than the model: id {found} is "
            f"{other.token_bytes(found)!r:.60} there and {target.token_bytes(found)!r:.60} here; "
            f"give a draft model with the same tokenizer",
            param=PARAM,
        )


def first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first id that both have and that stands for something else."""
    for i in range(min(one.vocab_size, other.vocab_size)):
        here, there = one.token_bytes(i), other.token_bytes(i)
        if here != there and not (_is_padding(i, here) or _is_padding(i, there)):
            return i
    return None


def _is_padding(token: int, spelled: bytes) -> bool:
    """Rows of a head without a token; GGUF files spell them."""
    return not spelled or spelled == b"[PAD%d]" % token


def _lacks(target: Tokenizer | None, other: Tokenizer | None) -> str:
    if target is None and other is None:
        return "neither has a tokenizer, and their heads differ in size"
    return "the model has no tokenizer" if target is None else "it has no tokenizer"
