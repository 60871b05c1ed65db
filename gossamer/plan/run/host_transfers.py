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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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


@dataclass
class TransferGraph:
    """The graph of calls whose arrays lie at the same addresses in page-locked memory.

    calls: number of calls so far.
    arrays: the arrays that the graph reads and writes. The arrays are kept alive: other memory
    could take the addresses of freed arrays, and the driver would not treat it as page-locked
    memory of the graph.
    replay: the graph; None before it is captured.
    """

    calls: int = 0
    arrays: tuple[np.ndarray, ...] = ()
    replay: Callable[..., None] | None = None


@dataclass(frozen=True)
class StagedCall:
    """The graph of calls whose arrays are copied through a context's page-locked memory.

    inputs, outputs: the page-locked memory as arrays of the calls' shapes and dtypes, in order.
    replay: copies the inputs to the device, executes the program, and copies the outputs back.
    """

    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    replay: Callable[[], None]


class HostTransfers:
    """The page-locked memory of one context's calls with NumPy arrays, and the graph of calls whose
    arrays are copied through this memory.

    inputs, outputs: the context's memory of each input and output, by name.
    staged: the call through page-locked memory; None before its graph is captured.
    """

    def __init__(self, device: Device, inputs: Mapping[str, Buffer],
                 outputs: Mapping[str, Buffer]) -> None:
        self._device = device
        self._inputs = inputs
        self._outputs = outputs
        self._staging: dict[tuple[str, str], np.ndarray] = {}
        self._graph = TransferGraph()
        self.staged: StagedCall | None = None

    def begin(self, inputs: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray],
              *, bound: TransferGraph | None = None, execute: Callable[[Any], None],
              steps: Callable[[Any], None] | None, stream: Any) -> Callable[[], None]:
        """Queue the execution of a program on contiguous inputs, and return a function that waits
        for the execution and fills contiguous results. The function has to be called before the
        next execution is queued, and inputs in page-locked memory must not change until then.

        results: arrays for the outputs, by name.
        bound: the graph of a bound call, whose arrays are always the same; None for a call whose
        results are new arrays.
        execute: executes the program on a stream.
        steps: queues the program's steps for a graph; None where no graph can be captured.
        """
        sources = {name: self._source(name, array) for name, array in inputs.items()}
        targets = {name: self._target(name, array, bound is None)
                   for name, array in results.items()}
        replay = None if steps is None else self._replay(bound, inputs, sources, targets, steps)
        if replay is not None:
            replay(stream)
            if bound is None and self.staged is None:
                self.staged = StagedCall(_like(sources, inputs), _like(targets, results),
                                         self._device.replayed(replay, stream))
        else:
            for name, array in inputs.items():
                self._send(name, array, sources[name], stream)
            execute(stream)
            for name, target in targets.items():
                if target is not None:
                    self._device.queue_read(self._outputs[name], target, stream)

        def finish() -> None:
            for name, array in results.items():
                if targets[name] is None:
                    self._device.read(self._outputs[name], array, stream)
            self._device.synchronize(stream)
            for name, array in results.items():
                target = targets[name]
                if target is not None and target is not array:
                    for _ in _copied(_bytes(array), target):
                        pass

        return finish

    def _source(self, name: str, array: np.ndarray) -> np.ndarray | None:
        """Return page-locked memory with an input's bytes; None for an input that is copied in
        chunks or by the driver alone."""
        if not self._is_staged(array):
            return None
        if self._device.is_page_locked(array):
            return array
        if _is_in_chunks(array):
            return None
        staging = self._of("input", name, array.nbytes)
        staging[...] = _bytes(array)
        return staging

    def _target(self, name: str, array: np.ndarray, is_new: bool) -> np.ndarray | None:
        """Return page-locked memory for an output; None for an output that the driver copies
        alone."""
        if not self._is_staged(array):
            return None
        if not is_new and self._device.is_page_locked(array):
            return array
        return self._of("output", name, array.nbytes)

    def _send(self, name: str, array: np.ndarray, source: np.ndarray | None, stream: Any) -> None:
        buffer = self._inputs[name]
        if source is not None:
            self._device.queue_write(buffer, source, stream)
        elif not self._is_staged(array):
            self._device.write(buffer, array, stream)
        else:
            staging = self._of("input", name, array.nbytes)
            for start, end in _copied(staging, _bytes(array)):
                self._device.queue_write(buffer.view(start, end - start), staging[start:end],
                                         stream)

    def _replay(self, bound: TransferGraph | None, inputs: Mapping[str, np.ndarray],
                sources: Mapping[str, np.ndarray | None],
                targets: Mapping[str, np.ndarray | None],
                steps: Callable[[Any], None]) -> Callable[..., None] | None:
        """Return the graph of a call. The graph is captured at the second call of its kind; before
        that the result is None."""
        arrays = tuple(array for array in (*sources.values(), *targets.values())
                       if array is not None)
        if len(arrays) < len(sources) + len(targets):
            return None
        graph = bound
        if graph is None:
            if any(sources[name] is array for name, array in inputs.items()):
                # the graph would read page-locked memory that the caller may free
                return None
            graph = self._graph
        graph.calls += 1
        if graph.calls == 2:
            graph.arrays = arrays
            graph.replay = self._captured(sources, targets, steps)
        return graph.replay

    def _captured(self, sources: Mapping[str, np.ndarray | None],
                  targets: Mapping[str, np.ndarray | None],
                  steps: Callable[[Any], None]) -> Callable[..., None]:
        def work(stream: Any) -> None:
            for name, source in sources.items():
                if source is not None:
                    self._device.queue_write(self._inputs[name], source, stream)
            steps(stream)
            for name, target in targets.items():
                if target is not None:
                    self._device.queue_read(self._outputs[name], target, stream)

        return self._device.capture(work)

    def _is_staged(self, array: np.ndarray) -> bool:
        return self._device.locks_pages and 0 < array.nbytes <= _MOST_STAGED_BYTES

    def _of(self, kind: str, name: str, nbytes: int) -> np.ndarray:
        if (kind, name) not in self._staging:
            self._staging[kind, name] = self._device.page_locked(nbytes)
        return self._staging[kind, name]


def page_locked_array(device: Device, shape: Sequence[int],
                      dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return a new array in memory that is page-locked where the device can lock it."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    return device.page_locked(nbytes).view(dtype).reshape(tuple(shape))


def copies_in_chunks(arrays: Iterable[np.ndarray]) -> bool:
    """Return whether an array is so large that it is copied in chunks, by several threads."""
    return any(map(_is_in_chunks, arrays))


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1).view(np.uint8)


def _is_in_chunks(array: np.ndarray) -> bool:
    return array.nbytes >= 2 * _CHUNK_BYTES


def _like(memory: Mapping[str, np.ndarray | None],
          arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
    """Return memory as arrays with the dtypes and shapes of other arrays."""
    return tuple(_bytes(part).view(arrays[name].dtype).reshape(arrays[name].shape)
                 for name, part in memory.items() if part is not None)


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
