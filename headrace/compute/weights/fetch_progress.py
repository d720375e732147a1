"""A progress bar for downloads, on standard error, when that is a terminal; else one line per label."""

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, SpinnerColumn, TextColumn, TransferSpeedColumn


@contextlib.contextmanager
def bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show progress while the block runs; yields the function that takes label, bytes done and in all."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"fetching {title}", highlight=False)
        yield lambda label, done, total: console.print(
            f"  {label}: {done >> 20} of {total >> 20} MiB", highlight=False
        )
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console) as shown:
        task = shown.add_task(f"fetching {title}")
        yield lambda label, done, total: shown.update(task, description=label, completed=done, total=total)
