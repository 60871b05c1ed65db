"""Reads and limits the number of threads of BLAS, the library with which NumPy multiplies matrices
on the host."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

_lock = threading.Lock()
_usual: list[tuple[LibController, int]] = []
"""The libraries, each with the number of threads that it takes without a limit; the list is empty
while no limit is in force."""
_OF_SCIPY = ("scipy.linalg._fblas", "scipy.special._ufuncs")
"""Modules that load SciPy's own BLAS."""
_limits = 0
"""Number of limits that are in force, in different threads or one within another."""


def threads() -> int:
    """Return the largest number of threads that BLAS takes where no limit of `limited` is in
    force; 1 where no BLAS is found."""
    with _lock:
        return max((usual for _, usual in _usual or _numbers()), default=1)


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Within a `with` block, limits BLAS to at most this many threads.

    The number belongs to the process: products that another Python thread computes meanwhile have
    this limit too. When the last of several limits ends, the number is again what it was before the
    first limit began.
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
    """Return the BLAS libraries of NumPy, and of SciPy where a module that uses it was imported.
    Each library has threads of its own."""
    return _loaded(sum(module in sys.modules for module in _OF_SCIPY))


@functools.cache
def _loaded(modules: int) -> tuple[LibController, ...]:
    """Return the BLAS libraries that are loaded. A library is the same object in every result.
    modules: number of SciPy's modules that are loaded."""
    known = {library.filepath: library for library in (_loaded(modules - 1) if modules else ())}
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple({**{library.filepath: library for library in found}, **known}.values())


def _numbers() -> list[tuple[LibController, int]]:
    return [(library, library.get_num_threads()) for library in _libraries()]
