"""The thread counts of the BLAS libraries that NumPy and SciPy call."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import LibController, ThreadpoolController

_lock = threading.Lock()
_unlimited: list[tuple[LibController, int]] = []
"""The libraries whose thread counts are limited at present, each with its original count."""
_OF_SCIPY = ("scipy.linalg._fblas", "scipy.special._ufuncs")
"""The SciPy modules that load SciPy's own BLAS."""
_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
_limits = 0
"""Number of active `limited` blocks, nested or in different threads."""


def threads() -> int:
    """Return the largest thread count among the BLAS libraries.

    Limits of `limited` blocks are ignored. The result is 1 if no BLAS library is found.
    """
    with _lock:
        return max((count for _, count in _unlimited or _thread_counts()), default=1)


def variables(count: int) -> dict[str, str]:
    """Return the environment variables that limit BLAS to `count` threads in another process."""
    return dict.fromkeys(_VARIABLES, str(count))


@contextmanager
def limited(most: int) -> Iterator[None]:
    """Limit BLAS to at most `most` threads within a `with` block.

    The limit applies to the whole process, including other Python threads. If blocks overlap, the
    limit of the block that began last applies. When the last block ends, the original thread counts
    are restored.
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
    """Return NumPy's BLAS library and, if loaded, SciPy's.

    Each library has its own thread pool.
    """
    return _loaded(sum(module in sys.modules for module in _OF_SCIPY))


@functools.cache
def _loaded(scipy_modules: int) -> tuple[LibController, ...]:
    """Return the loaded BLAS libraries, each as the same object every time.

    scipy_modules: number of imported modules of _OF_SCIPY. The number is the cache key, so that
    the search for libraries is repeated after another import. Libraries found earlier are reused.
    """
    before = _loaded(scipy_modules - 1) if scipy_modules else ()
    found = ThreadpoolController().select(user_api="blas").lib_controllers
    return tuple({library.filepath: library for library in (*found, *before)}.values())


def _thread_counts() -> list[tuple[LibController, int]]:
    """Return the libraries, each with its current thread count."""
    return [(library, library.get_num_threads()) for library in _libraries()]
