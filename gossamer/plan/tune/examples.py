"""Inputs of candidates, drawn and uploaded once for all layers that take the same."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.errors import OutOfMemoryError
from gossamer.ops.algorithm import Problem
from gossamer.plan.tune.device_check import DeviceCheck, handles
from gossamer.tensor import TensorSpec, held, pack

_SHARE, _MOST_BYTES = 16, 2**31
"""Inputs are stored for later layers in at most 1/_SHARE of the device's memory, and at most
_MOST_BYTES."""
_DRAWN = 4_194_301
"""Numbers that are drawn at most; longer sequences repeat them. It is a prime number, so that no
two images are equal."""
_LEAST_PERIOD = 3
"""Least number of images after which inputs repeat."""


class Examples:
    """Example inputs of problems on one device, as Problem.example_inputs draws them, but for large
    batches of other numbers than floats, of which images repeat.

    With seed 0 all that consist of floats are slices of one sequence of random numbers, which is
    drawn once.
    on_device: brings them into the formats of candidates in the device's memory; None where the
    host does.
    """

    def __init__(self, device: Device, on_device: DeviceCheck | None = None) -> None:
        self._device = device
        self._on_device = on_device
        self._random = np.random.default_rng(0)
        self._numbers = np.zeros(0, np.float32)
        self._sequence: Buffer | None = None
        self._buffers: OrderedDict[tuple[int, TensorSpec], Buffer] = OrderedDict()
        self._repeated: OrderedDict[Hashable, list[np.ndarray]] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, problem: Problem, seed: int = 0) -> list[np.ndarray]:
        """Returns the inputs of a problem, which must not be written to. seed: where it is not 0,
        the inputs are brought to the device by uploaded(), never by buffer()."""
        if seed or not _are_normal(problem):
            return self._drawn(problem, seed)
        sizes = [math.prod(spec.shape) for spec in problem.inputs]
        numbers = self._first(sum(sizes))
        ends = np.cumsum(sizes).tolist()
        return [held(numbers[end - size:end].reshape(spec.shape), spec)
                for end, size, spec in zip(ends, sizes, problem.inputs, strict=True)]

    def of_images(self, problem: Problem, few: Problem,
                  images: Sequence[int]) -> list[np.ndarray] | None:
        """Returns some images of the inputs that of() returns, and whole those that do not consist
        of images, without making the others; None where the inputs are no slices of the sequence of
        random numbers. few: the problem of as many images."""
        if not _are_normal(problem):
            return None
        arrays, first = [], 0
        for whole, part in zip(problem.inputs, few.inputs, strict=True):
            size = math.prod(whole.shape)
            if whole.shape == part.shape:
                arrays.append(held(self._slice(first, size).reshape(part.shape), part))
            else:
                one = size // whole.shape[0]
                arrays.append(held(np.concatenate([
                    self._slice(first + image * one, one)
                    for image in images]).reshape(part.shape), part))
            first += size
        return arrays

    def _slice(self, first: int, count: int) -> np.ndarray:
        """Returns a slice of the sequence of random numbers."""
        numbers = self._first(min(first + count, _DRAWN))[:_DRAWN]
        if first + count <= len(numbers):
            return numbers[first:first + count]
        parts, left = [], count
        while left > 0:
            start = (first + count - left) % len(numbers)
            parts.append(numbers[start:start + left])
            left -= len(parts[-1])
        return np.concatenate(parts)

    def _drawn(self, problem: Problem, seed: int) -> list[np.ndarray]:
        """Returns what a problem draws as its inputs, of which images repeat with its period. Those
        that repeat are kept for other layers with inputs of the same shapes and facts."""
        random, period = np.random.default_rng(seed), _period(problem)
        if period is None:
            return problem.example_inputs(random)
        if type(problem).example_inputs is not Problem.example_inputs:
            return _repeated(problem, period, random)
        key = (problem.inputs, problem.facts, period, seed)
        with self._lock:
            if key not in self._repeated:
                self._repeated[key] = _repeated(problem, period, random)
            self._repeated.move_to_end(key)
            sizes = [sum(array.nbytes for array in arrays) for arrays in self._repeated.values()]
            while len(sizes) > 1 and sum(sizes) > _MOST_BYTES:
                self._repeated.popitem(last=False)
                del sizes[0]
            return self._repeated[key]

    def _first(self, count: int) -> np.ndarray:
        """Returns the sequence of random numbers, at least so many of them."""
        with self._lock:
            missing = min(count, _DRAWN) - len(self._numbers)
            if missing > 0:
                self._numbers = np.concatenate([
                    self._numbers, self._random.standard_normal(missing, dtype=np.float32)])
            if count > len(self._numbers):
                # twice as many each time, so that a network's layers cause few copies
                copies = 2 ** math.ceil(math.log2(count / _DRAWN))
                self._numbers = np.tile(self._numbers[:_DRAWN], copies)
            self._numbers.setflags(write=False)
            return self._numbers

    def buffer(self, problem: Problem, index: int, array: np.ndarray | None,
               spec: TensorSpec) -> Buffer:
        """Returns an input that of() gave, on the device in the layout of a spec. array: the input;
        None where of() makes it if it is needed."""
        if not _are_normal(problem):
            return self.uploaded(
                problem, index, self.of(problem)[index] if array is None else array, spec)
        first = sum(math.prod(other.shape) for other in problem.inputs[:index])
        key = (first, spec)
        if key in self._buffers:
            self._buffers.move_to_end(key)
            return self._buffers[key]
        most = min(self._device.limits.memory_bytes // _SHARE, _MOST_BYTES)
        if spec.nbytes > most:
            return self._made(problem, index, first, spec)
        while spec.nbytes + sum(buffer.nbytes for buffer in self._buffers.values()) > most:
            self._buffers.popitem(last=False)
        self._buffers[key] = self._made(problem, index, first, spec)
        return self._buffers[key]

    def _made(self, problem: Problem, index: int, first: int, spec: TensorSpec) -> Buffer:
        """Returns an input, a slice of the sequence of random numbers, as a spec says."""
        if self._on_device is None or not handles(spec):
            return self._uploaded(pack(self.of(problem)[index], spec))
        drawn = self._first(min(first + spec.size, _DRAWN))[:_DRAWN]
        if self._sequence is None or self._sequence.nbytes < drawn.nbytes:
            self._sequence = None
            self._sequence = self._uploaded(drawn)
        target = self._with_room(lambda: self._device.empty(spec.nbytes, "a candidate's input"))
        self._on_device.arrange(self._sequence, first, target, spec)
        return target

    def forget(self) -> None:
        """Frees the inputs on the device, which may have been overwritten."""
        self._buffers.clear()
        self._sequence = None

    def uploaded(self, problem: Problem, index: int, array: np.ndarray,
                 spec: TensorSpec) -> Buffer:
        """Returns an input that of() gave, where it is no slice of the sequence of random numbers,
        on the device as a spec says, kept for nobody else."""
        period = _period(problem)
        if period is None or not spec.format.images_are_apart or (
                problem.first_images(period).inputs[index].shape != (period, *array.shape[1:])):
            return self._uploaded(pack(array, spec))
        few = pack(array[:period], spec.first(period))
        if few.nbytes % self._device.alignment:
            return self._uploaded(np.resize(few, (len(array), *few.shape[1:])))
        target = self._with_room(lambda: self._device.empty(spec.nbytes, "a candidate's input"))
        self._device.write(target.view(0, few.nbytes), few)
        written = few.nbytes
        while written < spec.nbytes:
            more = min(written, spec.nbytes - written)
            self._device.copy(target.view(written, more), target.view(0, more), more)
            written += more
        return target

    def _uploaded(self, memory: np.ndarray) -> Buffer:
        return self._with_room(lambda: self._device.upload(memory, "a candidate's input"))

    def _with_room(self, allocate: Callable[[], Buffer]) -> Buffer:
        try:
            return allocate()
        except OutOfMemoryError:
            if not self._buffers:
                raise
            self._buffers.clear()
            return allocate()


def _repeated(problem: Problem, period: int, random: np.random.Generator) -> list[np.ndarray]:
    """Returns inputs of a problem, whose images repeat with a period; they cannot be written to."""
    few = problem.first_images(period).example_inputs(random)
    arrays = [np.resize(array, spec.shape)
              for array, spec in zip(few, problem.inputs, strict=True)]
    for array in arrays:
        array.setflags(write=False)
    return arrays


def _are_normal(problem: Problem) -> bool:
    """Whether a problem's inputs are floats from the standard normal distribution."""
    return (type(problem).example_inputs is Problem.example_inputs and not problem.facts
            and all(spec.logical_dtype.kind == "f" for spec in problem.inputs))


def _period(problem: Problem) -> int | None:
    """Returns after how many images the inputs of a problem repeat, as drawing all would take too
    long; None where they do not. It divides none of the distances between the first, the middle and
    the last image, which are compared with the reference."""
    one = problem.first_images(1)
    if one == problem:
        return None
    numbers = max(math.prod(spec.shape) for spec in one.inputs)
    last = problem.outputs[0].shape[0] - 1
    distances = (last, round(last / 2), last - round(last / 2))
    period = max(_LEAST_PERIOD, _DRAWN // max(1, numbers))
    while period <= last and any(distance % period == 0 for distance in distances):
        period += 1
    return period if period <= last else None
