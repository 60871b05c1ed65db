"""A variant made ready, with the time that takes and the memory it keeps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.weights import Pack, Packed, Weights, build_clock


@dataclass(frozen=True)
class Build:
    """What preparing a variant took: packing weights, generating and compiling kernels.

    seconds: a packed form that another variant had made counts as much as it took then; a kernel
    that this process had compiled already takes none. Waiting for others that are built at the
    same time is left out. from_cache: whether a kernel was read from
    the disk cache instead of compiled. nbytes: packed weights and, where it is known, the code of
    kernels; None on the host. What a vendor's library keeps for itself is not known.
    """

    seconds: float
    from_cache: bool
    nbytes: int | None


def build(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
          device: Device) -> tuple[State, Build]:
    """algorithm.prepare(...), and what that took."""
    watched = _Watched(weights, device)
    start = build_clock(device)
    state = algorithm.prepare(watched, problem, variant, device)
    seconds = build_clock(device) - start - watched.waited
    seconds += sum(packed.seconds for packed in watched.forms.values())
    kernels = {id(launch.kernel): launch.kernel for launch in state.launches}.values()
    seconds += max((kernel.apart_seconds for kernel in kernels), default=0.0)
    return state, Build(seconds, any(kernel.from_cache for kernel in kernels),
                        _kept(state, watched) if device.compiles else None)


Made = tuple[State, Build]


def side_by_side(device: Device, makers: Sequence[Callable[[], Made]],
                 vendors: Sequence[bool]) -> Sequence[Callable[[], Made]]:
    """For each maker what gives what it makes, or raises what came of that: the maker itself, but
    where the device builds side by side. There all have been called when this returns, our own on
    as many processors as the process may use, those of vendors' libraries one after another
    meanwhile."""
    if not device.builds_side_by_side:
        return makers
    pool = ThreadPoolExecutor(processors())
    try:
        ahead = {index: pool.submit(make) for index, make in enumerate(makers)
                 if not vendors[index]}
        for index, make in enumerate(makers):
            if vendors[index]:
                ahead[index] = _outcome(make)
        wait(ahead.values())
    finally:
        # not for builds that an interrupt made vain
        pool.shutdown(wait=False, cancel_futures=True)
    return [ahead[index].result for index in range(len(makers))]


def _outcome(make: Callable[[], Made]) -> Future[Made]:
    """What came of a call; what ends the program alone passes through."""
    outcome: Future[Made] = Future()
    try:
        outcome.set_result(make())
    except Exception as error:
        outcome.set_exception(error)
    return outcome


def _kept(state: State, watched: _Watched) -> int:
    buffers = [packed.buffer for packed in watched.forms.values()]
    buffers += [argument for launch in state.launches for argument in launch.arguments
                if isinstance(argument, Buffer)]
    code = {id(launch.kernel): launch.kernel.code_bytes or 0 for launch in state.launches}
    return sum({id(buffer): buffer.nbytes for buffer in buffers}.values()) + sum(code.values())


class _Watched(Weights):
    """Constants that note which of their packed forms are asked for, and how long that took."""

    def __init__(self, weights: Weights, device: Device) -> None:
        self.arrays = weights.arrays
        self.layer = weights.layer
        self.forms: dict[str, Packed] = {}
        self.waited = 0.0
        self._weights = weights
        self._device = device

    def form(self, key: str, pack: Pack) -> Packed:
        start = build_clock(self._device)
        self.forms[key] = self._weights.form(key, pack)
        self.waited += build_clock(self._device) - start
        return self.forms[key]

    @property
    def nbytes(self) -> int:
        return self._weights.nbytes
