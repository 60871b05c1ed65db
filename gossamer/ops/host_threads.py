"""The number of threads of BLAS or ONNX Runtime.

The setting is a part of the config of the host's algorithms, so that it is saved and reported like
any other setting. All layers of a plan use the same number of threads.

By default algorithms take all threads, as NumPy and ONNX Runtime do. The threads that work on one
product wait for each other. Where another program runs on the processor of one of these threads,
each product may last until that program's time slice ends. One thread is then faster.
"""

from __future__ import annotations

import functools
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
"""The values of the setting that are tried. With ONE a library takes one thread; with ALL it takes
all threads that it may take. A plan may also be made for a number of threads, which takes the place
of ALL."""

_SETTING = re.compile(rf"(?:^| ){THREADS}=(\w+)")
_SERIAL = 2**18
"""The most multiply-adds of a product for which OpenBLAS takes only one thread, even where it may
take more threads."""

Config = tuple[tuple[str, int | str], ...]


def thread_configs(multiply_adds: int | None = None) -> list[Config]:
    """Return one config for each value that makes a difference.

    The configs do not depend on the number of threads that BLAS has on this machine, so that a plan
    that was saved on another machine has the same configs here.

    multiply_adds: number of multiply-adds of one product; None where it depends on the batch size,
    because configs have to be the same for all batch sizes.
    """
    one, every = ((THREADS, ONE),), ((THREADS, ALL),)
    if multiply_adds is not None and multiply_adds <= _SERIAL:
        return [one]
    return [one, every]


def of_threads(variants: Iterable[Variant], threads: Threads,
               device: Device) -> Iterable[Variant]:
    """Return the variants with a number of threads.

    Variants without a setting of threads are included. Returns all variants where no variant is of
    these two kinds, and on devices other than the host.
    """
    if device.compiles:
        return variants
    listed = [_for_number(variant, threads) for variant in variants]
    return [variant for variant in listed
            if dict(variant.config).get(THREADS, threads) == threads] or listed


def _for_number(variant: Variant, threads: Threads) -> Variant:
    """Return a variant with a number of threads in place of all."""
    if threads in (ONE, ALL) or (THREADS, ALL) not in variant.config:
        return variant
    return replace(variant, config=tuple(
        (name, threads if name == THREADS else value) for name, value in variant.config))


def threads_in(config_text: str) -> Threads | None:
    """Return the setting in a config's text; None without one."""
    found = _SETTING.search(config_text)
    return None if found is None else int(found[1]) if found[1].isdigit() else found[1]


def without_threads(config_text: str) -> str:
    """Return a config's text without the setting."""
    return _SETTING.sub("", config_text).strip()


@contextmanager
def threads_of(variant: Variant) -> Iterator[None]:
    """Multiply with a variant's threads, and warn of no number."""
    threads = dict(variant.config).get(THREADS, ALL)
    limit: AbstractContextManager[None] = nullcontext()
    if isinstance(threads, int):
        limit = blas.limited(min(threads, processors()))
    elif _has_too_many():
        limit = blas.limited(processors())
    with limit, np.errstate(all="ignore"):
        yield


def number_of(threads: Threads) -> int:
    """Return the number of threads of ONNX Runtime.

    It is no more than there are processors. ALL means the number of processors, or OMP_NUM_THREADS
    where that is less; BLAS reads this variable itself. Returns 0 where nothing limits the process:
    ONNX Runtime then takes one thread for each core, and binds each thread to its core.
    """
    if isinstance(threads, int):
        return min(threads, processors())
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    most = min(processors(), int(wanted) if wanted.isdigit() and int(wanted) else sys.maxsize)
    return 0 if most == os.cpu_count() else most


def workers(threads: Threads) -> int:
    """Return the number of threads of generated code."""
    return number_of(threads) or processors()


@functools.cache
def _has_too_many() -> bool:
    """Return whether BLAS takes more threads than there are processors.

    BLAS does not know the limit of a container.
    """
    return blas.threads() > processors()
