"""Which tokens end an answer."""
# ruff: noqa: RUF001  (the look-alikes of ASCII are meant)

from collections.abc import Collection

_NAMES = frozenset(
    {
        *(
            "<|endoftext|>",
            "<|im_end|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|end|>",
            "<|end_of_text|>",
            "<end_of_turn>",
        ),
        *("<EOT>", "[EOT]", "[EOS]", "<|return|>", "<|call|>", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
    }
)
"""Texts of special tokens that end a text or a turn in every family that has them."""


def ends_by_name(specials: Collection[str]) -> frozenset[str]:
    """Those of the special tokens that are known to end a text or a turn.

    GGUF files name one end token, though models trained for chat often use two or three.
    """
    found = _NAMES & frozenset(specials)
    # In the harmony format <|end|> closes one message of several; the turn ends with one of the other two.
    return found - {"<|end|>"} if {"<|return|>", "<|call|>"} <= found else found
