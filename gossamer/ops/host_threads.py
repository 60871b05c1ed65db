"""How many threads of BLAS an algorithm of the host takes: a setting of its config, so that it is
saved and reported like any other. One number holds for all layers of a plan.

Several threads that work on one product wait for each other. Where another program has one of their
processors, each product may last until that program's turn ends, so that all threads can take fifty
times as long as one. A single thread is at most as many times slower as there are processors. Hence
one thread is the default.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant

Threads = int | str

THREADS = "threads"
"""The name of the setting."""
ONE: Threads = 1
ALL: Threads = "all"
"""The values of the setting: BLAS takes one thread, or as many as it has."""

_SERIAL = 2**18
"""Largest number of multiply-adds of a product for which OpenBLAS takes one thread anyway."""

Config = tuple[tuple[str, int | str], ...]


def thread_configs(multiply_adds: int | None = None) -> list[Config]:
    """Returns the configs that differ in the number of threads, the default one first.

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
    return blas.limited(1) if (THREADS, ONE) in variant.config else nullcontext()
