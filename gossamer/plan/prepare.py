"""Prepares variants: packs weights and compiles kernels, and measures the time and memory that this
work takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.weights import Pack, Weights

_SWITCH_SECONDS = 2e-4
"""Seconds after which a thread that runs Python code hands the interpreter to a thread that waits
for it. Python's default is 5 ms; this value is a rule of thumb for any host."""


@contextmanager
def responsive() -> Iterator[None]:
    """Within a `with` block, makes threads wait less for the interpreter. A thread that works with
    a device makes many short calls. After each of them it may have to wait for another thread, one
    that builds kernels, reads files or answers requests and keeps the interpreter for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


@dataclass(frozen=True)
class BuildCost:
    """The cost of preparing a variant: packing weights, generating and compiling kernels.

    seconds: the time that preparing takes by the clock, in this process and before it in the
    process that built the variant for it. The time includes waiting for variants that are built at
    the same time. A packed form or kernel that was there before counts as zero.
    from_cache: whether a kernel was read from the disk cache instead of compiled.
    nbytes: bytes of packed weights and, where it is known, of the code of kernels; None on the
    host. Memory that a vendor's library allocates for itself is not known.
    forms: the bytes of each packed form of the layer's constants, by the form's name. A packed form
    is an array that is made of the constants and laid out as one kernel reads it.
    """

    seconds: float
    from_cache: bool
    nbytes: int | None
    forms: Mapping[str, int] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class BuiltElsewhere:
    """This is the work of another process for a candidate, besides kernels in the kernel cache.

    forms: the packed forms by name.
    seconds: seconds that the work took by the clock.
    from_cache: whether a kernel had been in the disk cache before.
    """

    forms: Mapping[str, np.ndarray]
    seconds: float
    from_cache: bool = False


# without warnings of NumPy, because weights may be huge or not finite; the check of a candidate's
# outputs finds wrong results
@np.errstate(all="ignore")
def build(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
          device: Device, built: BuiltElsewhere | None = None) -> tuple[State, BuildCost]:
    """Return the state that algorithm.prepare() makes, and the cost of making it. built: the work
    of another process for the same candidate; its seconds are part of the cost."""
    watched = _RecordingWeights(weights)
    if built is not None:
        weights.offer(built.forms)
    start = time.perf_counter()
    try:
        state = algorithm.prepare(watched, problem, variant, device)
    finally:
        if built is not None:
            weights.withdraw(built.forms)
    state.packed = tuple(watched.forms.values())
    seconds = time.perf_counter() - start + (built.seconds if built is not None else 0.0)
    from_cache = (any(launch.kernel.from_cache for launch in state.launches) if built is None
                  else built.from_cache)
    return state, BuildCost(seconds, from_cache,
                            _device_bytes(state) if device.compiles else None,
                            {key: buffer.nbytes for key, buffer in watched.forms.items()})


Prepared = tuple[State, BuildCost]
"""The state of a variant, and the cost of preparing it."""

_Made = TypeVar("_Made")


def side_by_side(device: Device,
                 makers: Sequence[Callable[[], _Made]]) -> Sequence[Callable[[], _Made]]:
    """Return for each maker a function that returns the maker's result or raises its error.

    Where the device does not build side by side, the makers themselves are returned, not yet
    called. Otherwise all makers have been called on return, in one thread for each processor that
    the process may use.
    """
    if not device.builds_side_by_side:
        return makers
    pool = ThreadPoolExecutor(processors())
    try:
        futures = [pool.submit(make) for make in makers]
        wait(futures)
    finally:
        # after an interrupt nobody needs the builds that are not done
        pool.shutdown(wait=False, cancel_futures=True)
    return [future.result for future in futures]


def _device_bytes(state: State) -> int:
    """Return the bytes of packed weights, other buffers and code that a state uses."""
    buffers = [*state.packed, *(argument for launch in state.launches
                                for argument in launch.arguments if isinstance(argument, Buffer))]
    code = {id(launch.kernel): launch.kernel.code_bytes or 0 for launch in state.launches}
    return sum({id(buffer): buffer.nbytes for buffer in buffers}.values()) + sum(code.values())


class _RecordingWeights(Weights):
    """Weights that record which packed forms are asked for."""

    def __init__(self, weights: Weights) -> None:
        self.arrays = weights.arrays
        self.layer = weights.layer
        self.forms: dict[str, Buffer] = {}
        self._weights = weights

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Hash of the constants, which is computed once for all candidates."""
        return self._weights.digest

    def packed(self, key: str, pack: Pack) -> Buffer:
        self.forms[key] = self._weights.packed(key, pack)
        return self.forms[key]
