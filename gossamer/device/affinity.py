"""The processors on which a thread may run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def allowed() -> list[int]:
    """Return the processors that this thread may use; an empty list where the operating system
    cannot bind threads to processors."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def bound(processors: Sequence[int]) -> Iterator[None]:
    """Bind this thread to these processors within a `with` block; an empty list changes nothing.

    Threads that are not bound may be put on one processor. Where one of them spins until another
    has done its work there, the work takes several times as long.
    """
    before = allowed()
    if not processors:
        yield
        return
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
