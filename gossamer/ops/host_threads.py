"""How many threads of BLAS or ONNX Runtime an algorithm of the host takes: a setting of its config,
so that it is saved and reported like any other. One number holds for all layers of a plan.

All threads are the default, as they are of NumPy and ONNX Runtime. Those that work on one product
wait for each other: where another program has one of their processors, each product may last until
that program's turn ends, and one thread is faster.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Variant

Threads = int | str

THREADS = "threads"
"""The name of the setting."""
ONE: Threads = 1
ALL: Threads = "all"
"""The values of the setting: a library takes one thread, or as many as it may."""

_SERIAL = 2**18
"""Largest number of multiply-adds of a product for which OpenBLAS takes one thread anyway."""

Config = tuple[tuple[str, int | str], ...]


def thread_configs(multiply_adds: int | None = None) -> list[Config]:
    """Returns the configs that differ in the number of threads.

    multiply_adds: those of one product at any batch size; None where that depends on the batch
    size, whose configs are to be the same at all. They do not depend on the threads that BLAS has
    here, so that a plan that was saved with more of them or fewer means the same.
    """
    one, every = ((THREADS, ONE),), ((THREADS, ALL),)
    if multiply_adds is not None and multiply_adds <= _SERIAL:
        return [one]
    return [one, every]


def of_threads(variants: Iterable[Variant], threads: Threads,
               device: Device) -> Iterable[Variant]:
    """Returns those of an algorithm's variants that take this number of threads on the host; all of
    them where they take any number alike, as those of other devices do."""
    if device.compiles:
        return variants
    listed = list(variants)
    return [variant for variant in listed
            if dict(variant.config).get(THREADS, threads) == threads] or listed


def threads_of(variant: Variant) -> AbstractContextManager[None]:
    """Returns the context in which BLAS has the threads of the variant's config."""
    if (THREADS, ONE) in variant.config:
        return blas.limited(1)
    return blas.limited(processors()) if _has_too_many() else nullcontext()


def number_of(threads: Threads) -> int:
    """Returns the threads of ONNX Runtime for a value of the setting. "All" is the number of
    processors, or OMP_NUM_THREADS where that is less; BLAS follows that variable by itself; 0
    stands for those that ONNX Runtime takes where nothing limits the process: one for each core,
    bound to it."""
    if threads == ONE:
        return 1
    wanted = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    most = min(processors(), int(wanted) if wanted.isdigit() and int(wanted) else sys.maxsize)
    return 0 if most == os.cpu_count() else most


@functools.cache
def _has_too_many() -> bool:
    """Returns whether BLAS takes more threads than the limit of the container has processors, as
    it does not look at that limit."""
    return blas.threads() > processors()
