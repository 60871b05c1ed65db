"""Prepares variants: packs weights and compiles kernels, and measures the time and memory that this
work takes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.weights import Pack, Packed, PackedArray, Weights, build_clock

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

    seconds: the time that preparing takes. A packed form that another variant has made before
    counts with the time of making it; a kernel that this process has compiled before counts as
    zero. Time spent waiting for variants that are built at the same time is left out.
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
    """The packed forms and kernels that another process has made for a candidate.

    forms: the packed forms by name.
    seconds: processor seconds of this work without packing.
    kernels: the kernels, as kernel_cache.hand_over returns them.
    """

    forms: Mapping[str, PackedArray]
    seconds: float
    kernels: Mapping[str, bytes | None]


# without warnings of NumPy, because weights may be huge or not finite; the check of a candidate's
# outputs finds wrong results
@np.errstate(all="ignore")
def build(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
          device: Device, built: BuiltElsewhere | None = None) -> tuple[State, BuildCost]:
    """Returns the state that algorithm.prepare() makes, and the cost of making it. built: the work
    of another process for the same candidate; its seconds are part of the cost."""
    watched = _RecordingWeights(weights, device)
    if built is not None:
        weights.offer(built.forms)
    start = build_clock(device)
    try:
        state = algorithm.prepare(watched, problem, variant, device)
    finally:
        if built is not None:
            weights.withdraw(built.forms)
    state.packed = tuple(packed.buffer for packed in watched.forms.values())
    seconds = build_clock(device) - start - watched.waited
    if built is not None:
        seconds += built.seconds
    seconds += sum(packed.seconds for packed in watched.forms.values())
    kernels = {id(launch.kernel): launch.kernel for launch in state.launches}.values()
    seconds += max((kernel.subprocess_seconds for kernel in kernels), default=0.0)
    return state, BuildCost(seconds, any(kernel.from_cache for kernel in kernels),
                        _device_bytes(state, watched) if device.compiles else None,
                        {key: packed.buffer.nbytes for key, packed in watched.forms.items()})


Prepared = tuple[State, BuildCost]
"""The state of a variant, and the cost of preparing it."""

_Made = TypeVar("_Made")


def side_by_side(device: Device,
                 makers: Sequence[Callable[[], _Made]]) -> Sequence[Callable[[], _Made]]:
    """Returns for each maker a function that returns the maker's result or raises its error.

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


def _device_bytes(state: State, watched: _RecordingWeights) -> int:
    """Returns the bytes of packed weights, other buffers and code that a state uses."""
    buffers = [packed.buffer for packed in watched.forms.values()]
    buffers += [argument for launch in state.launches for argument in launch.arguments
                if isinstance(argument, Buffer)]
    code = {id(launch.kernel): launch.kernel.code_bytes or 0 for launch in state.launches}
    return sum({id(buffer): buffer.nbytes for buffer in buffers}.values()) + sum(code.values())


class _RecordingWeights(Weights):
    """Weights that record which packed forms are asked for, and the time spent waiting for them."""

    def __init__(self, weights: Weights, device: Device) -> None:
        self.arrays = weights.arrays
        self.layer = weights.layer
        self.forms: dict[str, Packed] = {}
        self.waited = 0.0
        self._weights = weights
        self._device = device

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Hash of the constants, which is computed once for all candidates."""
        return self._weights.digest

    def form(self, key: str, pack: Pack) -> Packed:
        start = build_clock(self._device)
        self.forms[key] = self._weights.form(key, pack)
        self.waited += build_clock(self._device) - start
        return self.forms[key]
