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
    # One row at a time: the float64 values of a large vocabulary in many rows would not stay in any cache.
    kl = [_row_divergence(np.float64(p), np.float64(q)) for p, q in zip(reference, other, strict=True)]
    return np.array(kl), np.argmax(reference, axis=-1) == np.argmax(other, axis=-1)


def _row_divergence(x, y) -> float:
    p, q = _log_softmax(x), _log_softmax(y)
    return float(np.exp(p) @ (p - q))


def _log_softmax(x):
    x = x - x.max()
    return x - np.log(np.exp(x).sum())
