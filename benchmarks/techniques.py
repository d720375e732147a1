"""Put the table of techniques into a page, between its marks.

python -m benchmarks.techniques build/techniques.md README.md
"""

import sys
from pathlib import Path

BEGIN, END = "<!-- begin:techniques -->\n", "<!-- end:techniques -->"


def put(page: str, table: str) -> str:
    """The page with the table between the marks.

    Raises:
        ValueError: the page has no marks.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN.strip()} and {END}")
    return before + BEGIN + table.rstrip("\n") + "\n" + END + after


if __name__ == "__main__":
    source, target = (Path(name) for name in sys.argv[1:3])
    target.write_text(put(target.read_text(), source.read_text()))
