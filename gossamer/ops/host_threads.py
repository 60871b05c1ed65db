"""The number of threads of BLAS, ONNX Runtime or generated code.

The number of threads is a setting in the configs of host algorithms, so that it is saved and
reported like any other setting.

By default, algorithms use all threads, as NumPy and ONNX Runtime do, but small layers may use one
thread. The threads that compute a product wait for each other. If another program occupies the
processor of one of these threads, the product is not complete before that program's time slice
ends. A single thread is then faster.
"""

from __future__ import annotations

import functools
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import numpy as np

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Variant

Threads = int | str

THREADS = "threads"
"""The name of the setting."""
ONE: Threads = 1
ALL: Threads = "all"
"""The values of the setting that are measured. With ONE, a library uses one thread; with ALL, all
threads that it may use. If a plan is made for a given number of threads, this number replaces
ALL."""

_SETTING = re.compile(rf"(?:^| ){THREADS}=(\w+)")
_SMALL = 2**22
"""Maximum number of multiply-adds for which one thread may be faster than several. So many
multiply-adds take about 50 microseconds. Waking several threads, and waiting for them, takes a
large part of this time."""
_SERIAL = 2**18
"""Maximum number of multiply-adds of a product for which OpenBLAS uses only one thread, even if
more threads are allowed."""

Config = tuple[tuple[str, int | str], ...]


def thread_configs(multiply_adds: int | None = None) -> list[Config]:
    """Return a config for each number of threads that is worth measuring.

    The configs do not depend on the number of threads that BLAS has on this machine, so plans from
    other machines have the same configs.

    multiply_adds: number of multiply-adds of one product; None if this number depends on the batch
    size. Configs must not depend on the batch size.
    """
    one, every = ((THREADS, ONE),), ((THREADS, ALL),)
    if multiply_adds is not None and multiply_adds <= _SERIAL:
        return [one]
    return [one, every]


def of_threads(variants: Iterable[Variant], threads: Threads, device: Device,
               multiply_adds: float = math.inf) -> Iterable[Variant]:
    """Return the variants for a given number of threads, and those without this setting.

    If the number is ALL, and the problem has at most _SMALL multiply-adds, variants with one thread
    are also returned. If no variant qualifies, or if the device is not the host, all variants are
    returned.
    """
    if device.compiles:
        return variants
    listed = [_for_number(variant, threads) for variant in variants]
    admitted = {threads, ONE} if threads == ALL and multiply_adds <= _SMALL else {threads}
    return [variant for variant in listed
            if dict(variant.config).get(THREADS, threads) in admitted] or listed


def _for_number(variant: Variant, threads: Threads) -> Variant:
    """Return a variant with ALL replaced by a number of threads."""
    if threads in (ONE, ALL) or (THREADS, ALL) not in variant.config:
        return variant
    return replace(variant, config=tuple(
        (name, threads if name == THREADS else value) for name, value in variant.config))


def threads_in(config_text: str) -> Threads | None:
    """Return the number of threads in a config's text; None if it has none."""
    found = _SETTING.search(config_text)
    return None if found is None else int(found[1]) if found[1].isdigit() else found[1]


def without_host_threads(config: Config, device: Device) -> Config:
    """Return a config of the host without its number of threads.

    A config of another device is returned unchanged.
    """
    return config if device.compiles else tuple(
        setting for setting in config if setting[0] != THREADS)


def without_threads(config_text: str) -> str:
    """Return a config's text without the number of threads."""
    return _SETTING.sub("", config_text).strip()


@contextmanager
def threads_of(variant: Variant) -> Iterator[None]:
    """Limit BLAS to a variant's number of threads, and silence NumPy's warnings."""
    threads = dict(variant.config).get(THREADS, ALL)
    limit: AbstractContextManager[None] = nullcontext()
    if isinstance(threads, int):
        limit = blas.limited(min(threads, processors()))
    elif _has_too_many():
        limit = blas.limited(processors())
    with limit, np.errstate(all="ignore"):
        yield


def number_of(threads: Threads) -> int:
    """Return the number of threads for ONNX Runtime.

    The number is at most that of the processors available to the process. ALL means all available
    processors, or OMP_NUM_THREADS if it is smaller. (BLAS reads this variable itself.) Returns 0 if
    the process may use all processors of the machine. ONNX Runtime then uses one thread per core,
    and pins each thread to its core.
    """
    if isinstance(threads, int):
        return min(threads, processors())
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    most = min(processors(), int(wanted) if wanted.isdigit() and int(wanted) else sys.maxsize)
    return 0 if most == os.cpu_count() else most


def workers(threads: Threads) -> int:
    """Return the number of threads for generated code."""
    return number_of(threads) or processors()


@functools.cache
def _has_too_many() -> bool:
    """Return whether BLAS has more threads than processors are available to the process.

    This happens in containers, because BLAS does not know their limits.
    """
    return blas.threads() > processors()
