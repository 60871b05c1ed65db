"""Shows a bar of how many inputs of a network are done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def input_bar() -> Iterator[Progress]:
    """Shows a bar while the body of the with statement runs, where stderr is a terminal."""
    console = Console(stderr=True)
    with Progress(TextColumn("{task.description}", markup=False), BarColumn(),
                  MofNCompleteColumn(), TimeRemainingColumn(), console=console, transient=True,
                  disable=not console.is_terminal) as progress:
        yield progress
