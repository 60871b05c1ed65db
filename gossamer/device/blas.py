"""The threads of BLAS, with which NumPy multiplies matrices on the host: their number, and a lower
one while some work runs."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

_lock = threading.Lock()
_usual: list[tuple[LibController, int]] = []
"""The libraries with their numbers of threads without limits; empty while there are no limits."""
_limits = 0
"""How many limits are in force, each in a thread of its own or within another."""


def threads() -> int:
    """Returns the largest number of threads that BLAS takes where no limit of `limited` is in
    force; 1 where no BLAS is found."""
    with _lock:
        return max((usual for _, usual in _usual or _numbers()), default=1)


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Lets BLAS take at most this many threads while the body of the context runs.

    The number belongs to the process: products that another Python thread computes meanwhile have
    this limit too. When the last of several limits ends, the number is what it was before the
    first.
    """
    global _limits
    with _lock:
        known = [library for library, _ in _usual]
        _usual.extend(pair for pair in _numbers() if pair[0] not in known)
        _limits += 1
        for library, usual in _usual:
            library.set_num_threads(min(most, usual))
    try:
        yield
    finally:
        with _lock:
            _limits -= 1
            if not _limits:
                for library, usual in _usual:
                    library.set_num_threads(usual)
                _usual.clear()


def _libraries() -> tuple[LibController, ...]:
    """Returns the BLAS libraries of NumPy, and of SciPy where that was imported. Each has threads
    of its own."""
    return _loaded("scipy.linalg._fblas" in sys.modules)


@functools.cache
def _loaded(has_scipy: bool) -> tuple[LibController, ...]:
    """Returns the BLAS libraries that are loaded, those that were known without SciPy by the same
    objects as then. has_scipy: whether SciPy's is loaded."""
    known = {library.filepath: library for library in (_loaded(False) if has_scipy else ())}
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple({**{library.filepath: library for library in found}, **known}.values())


def _numbers() -> list[tuple[LibController, int]]:
    return [(library, library.get_num_threads()) for library in _libraries()]
