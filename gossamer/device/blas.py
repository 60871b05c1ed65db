"""The threads of BLAS, with which NumPy multiplies matrices on the host: their number, and a lower
one while some work runs."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

_lock = threading.Lock()
_usual: list[int] = []
"""The number of threads of each library without limits; empty while there are no limits."""
_limits = 0
"""How many limits are in force, each in a thread of its own or within another."""


def threads() -> int:
    """Returns the largest number of threads that BLAS takes where no limit of `limited` is in
    force; 1 where no BLAS is found."""
    with _lock:
        return max(_usual or _numbers(), default=1)


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Lets BLAS take at most this many threads while the body of the context runs.

    The number belongs to the process: products that another Python thread computes meanwhile have
    this limit too. When the last of several limits ends, the number is what it was before the
    first.
    """
    global _limits
    with _lock:
        if not _limits:
            _usual[:] = _numbers()
        _limits += 1
        for library, usual in zip(_libraries(), _usual, strict=True):
            library.set_num_threads(min(most, usual))
    try:
        yield
    finally:
        with _lock:
            _limits -= 1
            if not _limits:
                for library, usual in zip(_libraries(), _usual, strict=True):
                    library.set_num_threads(usual)
                _usual.clear()


@functools.cache
def _libraries() -> tuple[LibController, ...]:
    """Returns the BLAS libraries of NumPy and SciPy. Each has threads of its own."""
    # a library is found only after it was loaded
    import scipy.linalg.blas  # noqa: F401

    return tuple(ThreadpoolController().select(user_api="blas").lib_controllers)


def _numbers() -> list[int]:
    return [library.get_num_threads() for library in _libraries()]
