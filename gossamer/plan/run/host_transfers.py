"""Copies the NumPy arrays of calls to a device with memory of its own, and the outputs back.

A device copies page-locked memory at the rate of the bus, and the host goes on meanwhile; while a
device copies other memory, the host waits. Arrays that lie in page-locked memory are copied
directly. Other arrays go through page-locked memory that is kept from call to call. Large arrays go
in chunks: several threads copy chunks into this memory while the device copies earlier chunks from
it. Where all arrays lie in page-locked memory, the copies are part of one captured graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors

_CHUNK_BYTES = 2**20
"""The fewest bytes that one of several threads copies. On the host of an H200, copying this many
bytes takes twice as long as starting a thread. On other hosts the number affects only the speed of
large inputs."""
_MOST_CHUNKS = 4
"""The most chunks of an array, each copied by one thread. On the host of an H200, two or four
threads copy 10 MB in 0.57 ms, one thread takes 0.86 ms and eight threads take 0.74 ms; more and
smaller chunks take longer. On other hosts another number may be faster."""
_PAGE_BYTES = 4096
"""Bytes of a page of memory. Chunks begin at multiples of this number."""
_MOST_STAGED_BYTES = 2**28
"""Bytes of the largest array for which page-locked memory is allocated. There is a limit because a
machine has little page-locked memory; the driver alone copies larger arrays. The number is a rule
of thumb."""


Finish = Callable[[], Sequence[np.ndarray]]
"""Function that waits for a queued execution, and returns its outputs."""
Transfer = Callable[[Sequence[np.ndarray], Sequence[np.ndarray] | None], Finish]
"""Function that queues an execution by a captured graph. It takes inputs of the graph's shapes,
whose dtypes convert to the graph's dtypes, and the arrays that receive the outputs; None for new
arrays."""


class HostTransfers:
    """The copies of one context's calls with NumPy arrays, and the page-locked memory for them.

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
        """Page-locked memory that is kept from call to call, by the number of the input, or of the
        output after all inputs."""

    def begin(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray],
              execute: Callable[[Any], None]) -> Finish:
        """Queue the execution of a program on contiguous inputs, and return a function that waits
        for the execution, fills contiguous results and returns them. The function has to be called
        before the next execution is queued, and inputs in page-locked memory must not change until
        then.

        execute: executes the program on a stream.
        """
        device, stream = self._device, self._stream
        for number, array in enumerate(arrays):
            self._send(number, array)
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
            for target, result in zip(targets, results, strict=True):
                if target is not None and target is not result:
                    for _ in _copied(_bytes(result), _bytes(target)):
                        pass
            return results

        return finish

    def captured(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray],
                 steps: Callable[[Any], None], *, in_place: bool) -> Transfer | None:
        """Capture a graph of the copies and of the program's steps, and return the function that
        queues an execution by this graph; None where not all arrays are copied whole from and to
        page-locked memory.

        steps: queues the program's steps on a stream.
        in_place: whether page-locked arrays are read and written where they lie, as their caller
        keeps them. Otherwise they may be freed while the graph exists, and have no graph.
        """
        if any(_is_in_chunks(array) and not (in_place and self._device.is_page_locked(array))
               for array in arrays):
            return None
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
            for memory, array in zip(inputs, arrays, strict=True):
                if memory is not array:
                    memory[...] = array
            replay()
            return partial(finish, results)

        def finish(results: Sequence[np.ndarray] | None) -> Sequence[np.ndarray]:
            self._device.synchronize(self._stream)
            if results is None:
                return [output.copy() for output in outputs]
            for result, output in zip(results, outputs, strict=True):
                if result is not output:
                    result[...] = output
            return results

        return queue

    def _page_locked(self, number: int, array: np.ndarray) -> np.ndarray | None:
        """Return page-locked memory for an array of an input or output: the array itself,
        or memory that is kept; None for an array that the driver copies alone."""
        if not (self._device.locks_pages and 0 < array.nbytes <= _MOST_STAGED_BYTES):
            return None
        if self._device.is_page_locked(array):
            return array
        if number not in self._staging:
            self._staging[number] = page_locked_array(self._device, array.shape, array.dtype)
        return self._staging[number]

    def _send(self, number: int, array: np.ndarray) -> None:
        buffer, memory = self._inputs[number], self._page_locked(number, array)
        if memory is None:
            self._device.write(buffer, array, self._stream)
        elif memory is array:
            self._device.queue_write(buffer, array, self._stream)
        else:
            staging = _bytes(memory)
            for start, end in _copied(staging, _bytes(array)):
                self._device.queue_write(buffer.view(start, end - start), staging[start:end],
                                         self._stream)


def page_locked_array(device: Device, shape: Sequence[int],
                      dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return an array of zeros in memory that is page-locked where the device can lock it."""
    memory = device.page_locked(math.prod(shape) * np.dtype(dtype).itemsize)
    memory[...] = 0
    return memory.view(dtype).reshape(tuple(shape))


def copies_in_chunks(arrays: Iterable[np.ndarray]) -> bool:
    """Return whether an array is so large that it is copied in chunks, by several threads."""
    return any(map(_is_in_chunks, arrays))


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _is_in_chunks(array: np.ndarray) -> bool:
    return array.nbytes >= 2 * _CHUNK_BYTES


def _copied(target: np.ndarray, source: np.ndarray) -> Iterator[tuple[int, int]]:
    """Copy bytes in chunks, and yield the start and the end of each chunk, in order, when the
    chunk is complete."""
    if not _is_in_chunks(source):
        target[...] = source
        yield 0, source.nbytes
        return
    pages = -(-source.nbytes // (_MOST_CHUNKS * _PAGE_BYTES))
    chunk = max(_CHUNK_BYTES, pages * _PAGE_BYTES)

    def copy(start: int) -> tuple[int, int]:
        end = min(start + chunk, source.nbytes)
        target[start:end] = source[start:end]
        return start, end

    yield from _threads().map(copy, range(0, source.nbytes, chunk))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    # all devices share these threads, and may copy at the same time
    return ThreadPoolExecutor(processors(), "gossamer-copy")
