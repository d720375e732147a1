"""Which head sizes a backend's attention takes: known before anything is loaded or started (`facts`)."""

from dataclasses import dataclass

from headrace.base.errors import ShapeError


@dataclass(frozen=True, slots=True)
class HeadSizes:
    """Multiples of `step` up to `most`; None: any."""

    step: int = 1
    most: int | None = None

    def check(self, head_size: int) -> None:
        """Refuse what the kernels do not take.

        Raises:
            ShapeError: says what they take, and which backend takes the rest.
        """
        if head_size % self.step or (self.most is not None and head_size > self.most):
            raise ShapeError(
                f"this model's head size is {head_size}; attention of this backend takes multiples of "
                f"{self.step} up to {self.most}: use --backend reference"
            )
