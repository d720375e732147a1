"""Prompts for continuation. Each round has a first line of its own, so that no prompt is cached."""

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


def prompt(task: str, round_: int) -> str:
    """The text of a task in a round."""
    return f"# part {round_ + 1}\n{CODE[task]}"
