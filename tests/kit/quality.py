"""Text and measures to compare two models' next-token distributions."""

import numpy as np

WINDOW = 500


def text() -> str:
    """English prose with code in it: the language reference that comes with Python."""
    from pydoc_data.topics import topics

    return "\n\n".join(
        topics[name] for name in ("assignment", "execmodel", "import", "typesmethods", "strings")
    )


def windows(encode, count: int) -> list[list[int]]:
    """`count` tokens of the text in windows of `WINDOW`, each its own context."""
    ids = encode(text())[:count]
    assert len(ids) == count
    return [ids[i : i + WINDOW] for i in range(0, count, WINDOW)]


def divergence(reference, other) -> tuple[np.ndarray, np.ndarray]:
    """KL(reference || other) of each row in nats [T], and whether the best token is the same [T]."""
    p, q = _log_softmax(reference), _log_softmax(other)
    return (np.exp(p) * (p - q)).sum(axis=-1), p.argmax(axis=-1) == q.argmax(axis=-1)


def _log_softmax(x):
    x = np.asarray(x, np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))
