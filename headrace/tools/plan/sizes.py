"""Memory of a model here: its parts, and the contexts and sequences that fit."""

from dataclasses import dataclass

from headrace.engine.resolve import Resolved
from headrace.engine.sizing import Beside

IDLE_BYTES = 100 << 20
"""Both processes without a model: interpreters, libraries, the server's code."""
VOCAB_ENTRY_BYTES = 120
"""Of an entry of the vocabulary, in the process that tokenizes."""
CONTEXTS = (1024, 4096, 16384, 65536)
"""Contexts for which the number of sequences is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes by part, and what they hold."""

    weight_bytes: int
    kv_token_bytes: int
    kv_pool_bytes: int
    activation_bytes: int
    """Activations, logits and slots of the largest step."""
    process_bytes: int
    """Kept besides, for interpreters, libraries and the tokenizer of both processes."""
    resident_bytes: int
    """What both processes will hold once the pool has been filled."""
    available_bytes: int
    pool_tokens: int
    max_model_len: int
    beside: Beside
    """Of what drafts; the other sizes hold it already."""
    sequences: tuple[tuple[int, int], ...]
    """(context in tokens, sequences of that length that the pool holds, at most max_num_seqs)."""

    @property
    def total_bytes(self) -> int:
        """What must be granted: the parts with their reserves, as the pool is sized with."""
        parts = (self.weight_bytes, self.kv_pool_bytes, self.activation_bytes, self.process_bytes)
        return sum(parts)


def sizes_of(resolved: Resolved, available_bytes: int, context: int | None) -> Sizes:
    """The sizes of resolved settings.

    Args:
        resolved: concrete settings.
        available_bytes: what they were resolved for.
        context: a context to tell the sequences of; None: some common ones.
    """
    geometry, shape = resolved.geometry, resolved.step_shape
    tokens = resolved.num_blocks * geometry.block_size
    beside = resolved.beside
    weights = resolved.model.weight_bytes(resolved.backend) + beside.weight_bytes
    idle = IDLE_BYTES + VOCAB_ENTRY_BYTES * shape.vocab_size
    contexts = (context,) if context else (*CONTEXTS, resolved.max_model_len)
    found = sorted({c for c in contexts if c <= resolved.max_model_len})
    return Sizes(
        weight_bytes=weights,
        kv_token_bytes=-(-resolved.kv_bytes // tokens),
        kv_pool_bytes=resolved.kv_bytes,
        activation_bytes=shape.step_bytes + beside.step_bytes,
        process_bytes=shape.working_bytes - shape.step_bytes,
        resident_bytes=weights + resolved.kv_bytes + shape.activation_bytes + beside.step_bytes + idle,
        available_bytes=available_bytes,
        pool_tokens=tokens,
        max_model_len=resolved.max_model_len,
        beside=beside,
        sequences=tuple((c, min(tokens // c, resolved.max_num_seqs)) for c in found),
    )
