"""Tables on the terminal; wide lines when the output is no terminal."""

import shutil
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table on standard output, as wide as it needs when that is no terminal."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if terminal else 240
    table = Table(*header, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*row)
    Console(width=width, highlight=False, soft_wrap=not terminal).print(table)
