"""The number of threads of BLAS, the library by which NumPy and SciPy multiply matrices."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

_lock = threading.Lock()
_unlimited: list[tuple[LibController, int]] = []
"""The libraries that are limited now, each with its number of threads before the first limit."""
_OF_SCIPY = ("scipy.linalg._fblas", "scipy.special._ufuncs")
"""The modules of SciPy that load its own BLAS."""
_limits = 0
"""Number of `limited` blocks that are running, in different threads or one within another."""


def threads() -> int:
    """Return the largest number of threads that a BLAS library takes outside of `limited`; 1 where
    no BLAS is found."""
    with _lock:
        return max((count for _, count in _unlimited or _thread_counts()), default=1)


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Limit BLAS to at most `most` threads within a `with` block.

    The limit holds for the whole process, other Python threads included. Where blocks overlap, the
    limit of the block that began last holds. The end of the last block restores the numbers of
    threads from before the first one.
    """
    global _limits
    with _lock:
        known = [library for library, _ in _unlimited]
        _unlimited.extend(pair for pair in _thread_counts() if pair[0] not in known)
        _limits += 1
        for library, count in _unlimited:
            library.set_num_threads(min(most, count))
    try:
        yield
    finally:
        with _lock:
            _limits -= 1
            if not _limits:
                for library, count in _unlimited:
                    library.set_num_threads(count)
                _unlimited.clear()


def _libraries() -> tuple[LibController, ...]:
    """Return the BLAS libraries of NumPy, and of SciPy where it has loaded its own. Each library
    has threads of its own."""
    return _loaded(sum(module in sys.modules for module in _OF_SCIPY))


@functools.cache
def _loaded(scipy_modules: int) -> tuple[LibController, ...]:
    """Return the BLAS libraries that are loaded, each as the same object in every result.

    scipy_modules: how many modules of _OF_SCIPY are imported. The argument makes the cache search
    again after each further import; libraries that an earlier search found are taken from there.
    """
    before = _loaded(scipy_modules - 1) if scipy_modules else ()
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple({library.filepath: library for library in (*found, *before)}.values())


def _thread_counts() -> list[tuple[LibController, int]]:
    """Return the libraries, each with its present number of threads."""
    return [(library, library.get_num_threads()) for library in _libraries()]
