"""Prompts. Each round has a first line of its own, so that no prompt is cached."""

CODE = {
    "account": '''from dataclasses import dataclass


@dataclass
class Account:
    """A bank account."""

    owner: str
    balance: float = 0.0

    def deposit(self, amount: float) -> None:
        """Add money to the account."""
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount

    def withdraw(self, amount: float) -> None:
        """Take money from the account."""
''',
    "matrix": '''def transpose(matrix: list[list[float]]) -> list[list[float]]:
    """Rows become columns."""
    return [list(column) for column in zip(*matrix)]


def multiply(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    """The product of two matrices."""
''',
    "sort": '''def quicksort(items: list[int]) -> list[int]:
    """Sort a list of integers with quicksort, without changing it."""
''',
    "parse": '''import argparse


def parse_arguments() -> argparse.Namespace:
    """Read the command line: an input file, an output file, and a flag for more output."""
''',
}

"""To be continued."""

_CLASS = '''class Basket:
    """What a customer is about to buy."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.items: list[tuple[str, int, float]] = []

    def add(self, name: str, count: int, price: float) -> None:
        """Put something into the basket."""
        if count <= 0:
            raise ValueError(f"count must be positive, got {count}")
        if price < 0.0:
            raise ValueError(f"price must not be negative, got {price}")
        self.items.append((name, count, price))

    def remove(self, name: str) -> None:
        """Take everything of that name out."""
        self.items = [item for item in self.items if item[0] != name]

    def total(self) -> float:
        """What it all costs."""
        return sum(count * price for _, count, price in self.items)

    def receipt(self) -> str:
        """The lines of a receipt."""
        lines = [f"{count} x {name} at {price:.2f}" for name, count, price in self.items]
        return "\\n".join([f"Receipt for {self.owner}", *lines, f"total {self.total():.2f}"])
'''

_LOG = "\n".join(
    f"2026-03-0{4 + i // 6} {10 + i}:{10 + 5 * i}:{(i * 31) % 60:02} {level} pump-{1 + i % 3} {text}"
    for i, (level, text) in enumerate(
        (
            (
                "ERROR",
                "inlet pressure 0.41 bar is below the limit of 0.80 bar, pump stopped by the controller",
            ),
            ("ERROR", "bearing temperature 91 C is above the limit of 85 C, waiting for the operator"),
            ("INFO", "started"),
            ("ERROR", "no answer from the frequency converter within 2000 ms, bus address 17"),
            ("ERROR", "flow 12.5 l/s differs from the set value 20.0 l/s by more than a third"),
            ("INFO", "maintenance interval set to 4000 hours"),
            ("ERROR", "outlet valve V-203 did not report closed, position sensor reads 14 percent"),
            ("ERROR", "level in tank B is 3.92 m, above the limit of 3.80 m, overflow alarm raised"),
        )
    )
)

COPYING = {
    "edit": f"Rename the class Basket to Cart and the method total to total_price everywhere in this file. "
    f"Answer with the whole changed file and nothing else.\n\n```python\n{_CLASS}```",
    "extract": f"Print all lines of this log that contain ERROR, unchanged and in order, "
    f"and nothing else.\n\n```\n{_LOG}\n```",
}
"""To be answered in a chat; the answers repeat most of what they are given."""

ADVERSE = {
    "river": "Why do rivers meander? Answer in one paragraph of plain sentences.",
    "letter": "Write a short letter to a neighbour whose dog barks at night. Be kind.",
    "story": "Tell a story of a lighthouse keeper who finds a map. Begin at once.",
    "advice": "I have two free days in a town by the sea in winter. What would you do there?",
}
"""To be answered in a chat; the answers repeat next to nothing."""

WRITING = {
    "function": "Write a Python function that merges two sorted lists, with a docstring and an example.",
    "class": "Write a Python class for a stack with the methods push, pop and peek, with docstrings.",
}
"""To be answered in a chat, with code."""

CHAT = COPYING | ADVERSE | WRITING


def prompt(task: str, round_: int) -> str:
    """The text of a task in a round."""
    return f"# part {round_ + 1}\n{(CODE | CHAT)[task]}"
