"""How many threads of BLAS an algorithm of the host takes: a setting of its config, so that it is
measured, saved and reported like any other.

Several threads that work on one product wait for each other. Where another program has one of their
processors, each product may last until that program's turn ends, so that all threads can take fifty
times as long as one. A single thread is at most as many times slower as there are processors. Hence
one thread comes first, and is taken where nothing is measured.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

from gossamer.device import blas
from gossamer.ops.algorithm import Variant

THREADS = "threads"
"""The name of the setting."""
ALL = "all"
"""The value of the setting with which BLAS takes as many threads as it has."""

_SERIAL = 2**18
"""Largest number of multiply-adds of a product for which OpenBLAS takes one thread anyway."""

Config = tuple[tuple[str, int | str], ...]


def thread_configs(multiply_adds: int | None = None) -> list[Config]:
    """Returns the configs that differ in the number of threads, the default one first.

    multiply_adds: those of one product at any batch size; None where that depends on the batch
    size, whose configs are to be the same at all. Where BLAS has one thread there is nothing to
    set.
    """
    if blas.threads() == 1:
        return [()]
    one, every = ((THREADS, 1),), ((THREADS, ALL),)
    if multiply_adds is not None and multiply_adds <= _SERIAL:
        return [one]
    return [one, every]


def threads_of(variant: Variant) -> AbstractContextManager[None]:
    """Returns the context in which BLAS has the threads of the variant's config."""
    return blas.limited(1) if (THREADS, 1) in variant.config else nullcontext()
