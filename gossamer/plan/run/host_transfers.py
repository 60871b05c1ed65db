"""Copies of NumPy arrays to a device with its own memory, and back.

Copies from and to page-locked memory are asynchronous and run at the full rate of the bus; copies
from and to pageable memory block the host. Arrays in page-locked memory are copied directly. Small
pageable arrays are staged in page-locked memory that is kept from call to call. Large pageable
arrays are copied by the driver, which takes no longer than staging them. If all arrays are in
page-locked memory, the copies are part of one captured graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device

MOST_STAGED_BYTES = 2**21
"""Maximum size in bytes of an array that is staged in page-locked memory. On the host of an H200,
the driver copies larger pageable arrays in less time than staging takes."""

Finish = Callable[[], Sequence[np.ndarray]]
"""Function that waits for an enqueued execution, and returns its outputs."""
Transfer = Callable[[Sequence[np.ndarray], Sequence[np.ndarray] | None], Finish]
"""Function that enqueues an execution by a captured graph. Its first argument is the inputs, in the
graph's shapes and in dtypes that convert to the graph's dtypes. Its second argument is the arrays
that receive the outputs; None means new arrays."""


class HostTransfers:
    """The copies of one context's calls with NumPy arrays, and their staging memory.

    inputs, outputs: the context's memory of each input and output, in order.
    stream: the stream of all copies.
    """

    def __init__(self, device: Device, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                 stream: Any) -> None:
        self._device = device
        self._inputs = inputs
        self._outputs = outputs
        self._stream = stream
        self._staging: dict[int, np.ndarray] = {}
        """Page-locked memory that is kept from call to call, by the index of the array among the
        inputs followed by the outputs."""

    def begin(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray],
              execute: Callable[[Any], None]) -> Finish:
        """Enqueue an execution, and return a function for its results.

        The function waits for the execution, fills `results` and returns them. The function has to
        be called before the next execution is enqueued, and inputs in page-locked memory must not
        change until the function returns.

        results: contiguous arrays that receive the outputs.
        execute: executes the program on a stream.
        """
        device, stream = self._device, self._stream
        for number, (buffer, array) in enumerate(zip(self._inputs, arrays, strict=True)):
            memory = self._page_locked(number, array)
            if memory is None:
                device.write(buffer, array, stream)
            else:
                filled([memory], [array])
                device.queue_write(buffer, memory, stream)
        execute(stream)
        targets = list(map(self._page_locked, count(len(arrays)), results))
        for buffer, target in zip(self._outputs, targets, strict=True):
            if target is not None:
                device.queue_read(buffer, target, stream)

        def finish() -> Sequence[np.ndarray]:
            for buffer, target, result in zip(self._outputs, targets, results, strict=True):
                if target is None:
                    device.read(buffer, result, stream)
            device.synchronize(stream)
            return filled(results, targets)

        return finish

    def captured(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray],
                 steps: Callable[[Any], None], *, in_place: bool) -> Transfer | None:
        """Capture a graph of the copies and steps; return the function that enqueues it.

        Return None if an array would be copied from or to pageable memory.

        steps: enqueues the program's steps on a stream.
        in_place: whether the caller keeps its arrays as long as the graph exists, so that the graph
        can read and write page-locked arrays in place. If False, None is returned for page-locked
        arrays.
        """
        locked = []
        for number, array in enumerate((*arrays, *results)):
            memory = self._page_locked(number, array)
            if memory is None or (memory is array and not in_place):
                return None
            locked.append(memory)
        inputs, outputs = locked[:len(arrays)], locked[len(arrays):]

        def work(stream: Any) -> None:
            for buffer, memory in zip(self._inputs, inputs, strict=True):
                self._device.queue_write(buffer, memory, stream)
            steps(stream)
            for buffer, memory in zip(self._outputs, outputs, strict=True):
                self._device.queue_read(buffer, memory, stream)

        replay = self._device.replayed(self._device.capture(work), self._stream)

        def queue(arrays: Sequence[np.ndarray], results: Sequence[np.ndarray] | None) -> Finish:
            filled(inputs, arrays)
            replay()

            def finish() -> Sequence[np.ndarray]:
                self._device.synchronize(self._stream)
                if results is None:
                    return [output.copy() for output in outputs]
                return filled(results, outputs)

            return finish

        return queue

    def _page_locked(self, number: int, array: np.ndarray) -> np.ndarray | None:
        """Return page-locked memory for an input or output.

        For a page-locked array, this is the array itself; for other arrays, it is staging memory.
        None for an array that the driver copies from or to pageable memory, and for an empty array.
        """
        if not self._device.locks_pages or not array.nbytes:
            return None
        if self._device.is_page_locked(array):
            return array
        if array.nbytes > MOST_STAGED_BYTES:
            return None
        if number not in self._staging:
            self._staging[number] = page_locked_array(self._device, array.shape, array.dtype)
        return self._staging[number]


def filled(targets: Sequence[np.ndarray],
           sources: Sequence[np.ndarray | None]) -> Sequence[np.ndarray]:
    """Copy sources into targets, and return the targets.

    A source that is None or the target itself is skipped.
    """
    for target, source in zip(targets, sources, strict=True):
        if source is not None and source is not target:
            target[...] = source
    return targets


def page_locked_array(device: Device, shape: Sequence[int],
                      dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return zeros, in page-locked memory if the device supports it."""
    memory = device.page_locked(math.prod(shape) * np.dtype(dtype).itemsize)
    memory[...] = 0
    return memory.view(dtype).reshape(tuple(shape))
