"""Which head sizes a backend's attention takes: known before anything is loaded."""

from headrace.base.errors import ShapeError

HEAD_STEP, MAX_HEAD_SIZE = 8, 256
"""What the native kernels are written for: other sizes would leave their buffers. The reference takes any."""


def check_head_size(backend: str, head_size: int) -> None:
    """Refuse what the backend's kernels do not take.

    Raises:
        ShapeError: says what they take, and which backend takes the rest.
    """
    if backend == "native" and (head_size % HEAD_STEP or head_size > MAX_HEAD_SIZE):
        raise ShapeError(
            f"this model's head size is {head_size}; attention of the native backend takes "
            f"multiples of {HEAD_STEP} up to {MAX_HEAD_SIZE}: use --backend reference"
        )
