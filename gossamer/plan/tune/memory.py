"""Memory that all candidates on a device share during checks and timing.

Inputs are drawn and uploaded once for all layers that take the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import OutOfMemoryError
from gossamer.ops.algorithm import Problem, Variant
from gossamer.ops.lru_cache import LruCache
from gossamer.plan.tune.output_errors import GUARD
from gossamer.tensor import TensorSpec, pack

_SHARE, _MOST_BYTES = 8, 2**33
"""Limits on the size of the inputs that are kept for later layers: 1/_SHARE of the device's memory,
and _MOST_BYTES."""
_DRAWN_BYTES = 2**29
"""Largest size in bytes of the random numbers that are kept."""


class CandidateMemory:
    """Inputs, outputs and the workspace of candidates on one device.

    Candidates run one after another, so all candidates write to the same memory. Memory that is too
    small for a candidate is replaced by larger memory; candidates that were prepared before keep
    the old memory.

    examples: the inputs.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.examples = Examples(device)
        self._buffers: dict[tuple[str, int], Buffer] = {}

    def _buffer(self, purpose: str, nbytes: int, index: int = 0) -> Buffer:
        """Return shared memory of at least `nbytes` bytes.

        Memory that is too small is freed first, unless a candidate that was prepared before still
        needs it.
        """
        key = purpose, index
        if key not in self._buffers or self._buffers[key].nbytes < nbytes:
            self._buffers.pop(key, None)
            self._buffers[key] = self.examples.with_room(
                lambda: self.device.empty(nbytes, purpose))
        return self._buffers[key]

    def guarded(self, index: int, spec: TensorSpec) -> Buffer:
        """Return memory for output `index` between two guards.

        Each guard is at least as long as the device's alignment. All bytes have the value of the
        guard byte.
        """
        alignment = self.device.alignment
        nbytes = (-(-spec.nbytes // alignment) + 2) * alignment
        memory = self._buffer("a candidate's output", nbytes, index).view(0, nbytes)
        self.device.write(memory, np.full(nbytes, GUARD, np.uint8))
        return memory

    def workspace_of(self, variant: Variant) -> Buffer | None:
        """Return the workspace of a variant; None if it needs none."""
        return (self._buffer("a candidate's workspace", variant.workspace) if variant.workspace
                else None)

    def release(self) -> None:
        """Free the memory, so that whole programs can use it."""
        self.examples.forget()
        self._buffers.clear()


class Examples:
    """Example inputs of problems on one device.

    Problem.example_inputs draws them. Problems whose first inputs have the same specs and facts
    share these inputs.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._drawn: LruCache[list[np.ndarray]] = LruCache(
            _DRAWN_BYTES, lambda arrays: sum(array.nbytes for array in arrays))
        self._buffers: LruCache[Buffer] = LruCache(
            min(device.limits.memory_bytes // _SHARE, _MOST_BYTES), lambda buffer: buffer.nbytes)

    def of(self, problem: Problem, seed: int = 0) -> list[np.ndarray]:
        """Return the inputs of a problem; the arrays are read-only.

        seed: each seed gives different inputs.
        """
        def draw() -> list[np.ndarray]:
            arrays = problem.example_inputs(np.random.default_rng(seed))
            for array in arrays:
                array.setflags(write=False)
            return arrays

        return self._drawn.of(_key(problem, len(problem.inputs), seed), draw)

    def buffer(self, problem: Problem, index: int, spec: TensorSpec, seed: int = 0,
               images: Sequence[int] | None = None) -> Buffer:
        """Return the device buffer with an input that of() returns.

        The input has the layout of `spec`. If the spec has more images than the problem, the
        problem's images have the indices `images`, and all other images repeat them: drawing and
        packing all images would take too long.
        """
        def upload() -> Buffer:
            array = self.of(problem, seed)[index]
            if array.shape != spec.shape:
                numbers = np.arange(spec.shape[0]) % len(array)
                numbers[images] = np.arange(len(array))
                array = array[numbers]
            memory = pack(array, spec)
            return self.with_room(lambda: self._device.upload(memory, "a candidate's input"))

        return self._buffers.of((_key(problem, index + 1, seed), tuple(images or ()), spec), upload)

    def forget(self) -> None:
        """Free the inputs on the device, because a candidate may have overwritten them.
        """
        self._buffers.clear()

    def with_room(self, allocate: Callable[[], Buffer]) -> Buffer:
        """Allocate memory, freeing inputs if necessary."""
        try:
            return allocate()
        except OutOfMemoryError:
            self.forget()
            return allocate()


def _key(problem: Problem, count: int, seed: int) -> Hashable:
    """Return a key of a problem's first `count` inputs.

    The key is equal for problems with the same first inputs.
    """
    own = type(problem).example_inputs is not Problem.example_inputs
    return problem if own else problem.inputs[:count], count, problem.facts[:count], seed
