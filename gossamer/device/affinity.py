"""The logical processors on which a thread may run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


def allowed() -> list[int]:
    """Return the logical processors that this thread may use.

    The list is empty if the operating system cannot bind threads to logical processors.
    """
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@contextmanager
def bound(processors: Sequence[int]) -> Iterator[None]:
    """Bind this thread to logical processors within a `with` block.

    An empty list changes nothing. Without binding, the operating system may schedule several
    threads on one logical processor. If one of these threads spins while it waits for another, the
    work takes several times as long as with binding.
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
