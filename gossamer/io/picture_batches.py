"""Prefetching of pictures from files, in batches of one shape.

If there are many files and processors, other processes read the pictures; otherwise threads do. The
processes write pictures to shared memory, in the shape and dtype that the network expects, and
respond once per group of files. The process that runs the network therefore rarely waits for the
GIL.
"""

from __future__ import annotations

import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

from gossamer.io.process_pool import NoProcessError, ProcessPool

_PROCESSORS, _FILES = 8, 2000
"""Minimum numbers of processors and files for reading pictures by processes instead of threads.

Processes need a second to start. On the host of an H200, one thread reads 212 pictures per second,
but 16 threads, limited by the GIL, read only 1,200.
"""
_GROUP = 16
"""Maximum number of files that are sent to a process at once.

Sending such a group and receiving the response takes about as long as reading a small picture.
"""
_MOST_PROCESSES = 64
"""Maximum number of reading processes; each needs a few file descriptors in this process."""
_AHEAD_BYTES = 2**29
"""Maximum bytes of prefetched pictures; each process may prefetch one picture beyond this limit."""

T = TypeVar("T")

Form = tuple[tuple[int, ...], np.dtype]
"""Shape and dtype of a picture."""
Answer = tuple[list[str], list[np.ndarray] | np.ndarray]
"""A list with the reason why each file cannot be read ("" if it can), and the pictures of the
readable files."""
_Block = tuple[np.ndarray | None, list[tuple[Sequence[str], Future[Any]]]]
"""Shared memory for pictures, and groups of files with the futures of their answers."""


class PictureReader(Protocol):
    """A picklable function that reads a picture as an input array."""

    def form(self) -> Form | None:
        """Return the shape and dtype of every picture; None if shapes may differ."""

    def __call__(self, file: str) -> np.ndarray | str:
        """Return the picture, or a reason why the file cannot be read."""


@dataclass(frozen=True)
class PictureBatch:
    """A batch of consecutive files, and the pictures of the readable ones.

    errors: for each file, the reason why it cannot be read; "" for a readable file.
    pictures: the pictures in one array, in order; None if no file can be read.
    """

    errors: list[str]
    pictures: np.ndarray | None


def picture_batches(reader: PictureReader, files: Sequence[str], processors: int,
                    batch: int) -> Iterator[PictureBatch]:
    """Yield the pictures of files in order, in batches of one shape.

    processors: number of processors that may prefetch pictures.
    batch: maximum number of pictures in a batch, not counting unreadable files.
    """
    by_processes = processors >= _PROCESSORS and len(files) >= _FILES
    most = min(batch, len(files))
    errors: list[str] = []
    pictures: np.ndarray | None = None
    whole: list[np.ndarray] | np.ndarray = []
    count = 0
    with closing(_by_processes(reader, files, processors, most) if by_processes else
                 _by_threads(reader, files, processors)) as answers:
        for answer_errors, found in answers:
            index = -1
            for error in answer_errors:
                if not error:
                    index += 1
                    if pictures is not None and (
                            count == most or found[index].shape != pictures.shape[1:]):
                        yield PictureBatch(errors, pictures[:count])
                        # drop the references, so that the batch's shared memory can be reused
                        errors, pictures, count = [], None, 0
                    if pictures is None:
                        whole = found[index:index + most]
                        is_copied = not isinstance(whole, np.ndarray) or len(whole) < most
                        pictures = (np.empty((most, *found[index].shape), found[index].dtype)
                                    if is_copied else np.asarray(whole))
                    if is_copied:
                        pictures[count] = found[index]
                    count += 1
                errors.append(error)
            found = whole = []
    if errors:
        yield PictureBatch(errors, None if pictures is None else pictures[:count])


def _by_threads(reader: PictureReader, files: Sequence[str],
                threads: int) -> Generator[Answer, None, None]:
    executor = ThreadPoolExecutor(threads, "gossamer-pictures")
    try:
        futures = (executor.submit(_read, reader, [file]) for file in files)
        for future in _ahead(futures, 2 * threads):
            yield future.result()
    finally:
        executor.shutdown(cancel_futures=True)


def _by_processes(reader: PictureReader, files: Sequence[str], processors: int,
                  batch: int) -> Generator[Answer, None, None]:
    # more processes than processors, because a process is idle between two groups
    count = min(processors + processors // 2, _MOST_PROCESSES)
    form = reader.form()
    nbytes = 0 if form is None else math.prod(form[0]) * form[1].itemsize
    # a block holds a whole number of batches, so that batches need no copy, and has about _GROUP
    # files or more
    size = min(batch * max(1, _GROUP // batch), len(files)) if batch else 1
    ahead = max(count, min(2 * count * _GROUP, _AHEAD_BYTES // max(1, nbytes)))
    with (closing(SharedBlocks(size * nbytes)) as shared,
          ProcessPool(count, "process that reads images") as pool):

        def submit(start: int) -> _Block:
            part = files[start:start + size]
            memory, offset = shared.take(len(part), form)
            groups = []
            for first in range(0, len(part), _GROUP):
                group = part[first:first + _GROUP]
                task = (_read,) if memory is None else (
                    _read_into, shared.path, offset + first * nbytes)
                groups.append((group, pool.submit(*task, reader, group, what="read pictures")))
            return memory, groups

        for block in _ahead(map(submit, range(0, len(files), size)), 1 + -(-ahead // size)):
            yield _answer_of(reader, *block)
            # drop the reference, so that the block's memory can be reused
            del block


def _answer_of(reader: PictureReader, memory: np.ndarray | None,
               groups: list[tuple[Sequence[str], Future[Any]]]) -> Answer:
    """Wait for the groups of a block, and merge their answers."""
    errors: list[str] = []
    pictures: list[np.ndarray] = []
    for group, future in groups:
        try:
            group_errors, found = future.result()
        except NoProcessError:
            group_errors, found = _read(reader, group)
        if found is None:
            assert memory is not None
            found = memory[len(errors):len(errors) + len(group) - sum(map(bool, group_errors))]
        errors += group_errors
        pictures += list(found)
    if (memory is not None and len(pictures) == len(memory)
            and all(picture.base is memory for picture in pictures)):
        return errors, memory
    return errors, pictures


class SharedBlocks:
    """Blocks of shared memory that other processes write through a path.

    A block is reused when no array refers to it any more. The memory is an unnamed file. The
    system frees the file when the last descriptor and the last mapping of it are closed, even if
    processes are killed. Processes write to the file instead of mapping it: if memory runs out, a
    write returns an error, whereas an access to a mapped page kills the process.

    nbytes: bytes of a block.
    """

    def __init__(self, nbytes: int) -> None:
        self._nbytes = -(-nbytes // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        self._count = 0
        self._free: list[tuple[mmap.mmap, int]] = []
        self._descriptor = os.memfd_create("gossamer") if hasattr(os, "memfd_create") else -1
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def take(self, count: int, form: Form | None) -> tuple[np.ndarray | None, int]:
        """Return an array for `count` pictures in a block, and the block's offset.

        The offset is the position of the block in the file at `path`. The array is None if the
        system does not support shared memory, or if the pictures differ in size.
        """
        if form is None or self._descriptor < 0:
            return None, 0
        try:
            block = self._free.pop() if self._free else self._new_block()
        except OSError:
            return None, 0
        array = np.ndarray((count, *form[0]), form[1], block[0])
        weakref.finalize(array, self._free.append, block)
        return array, block[1]

    def _new_block(self) -> tuple[mmap.mmap, int]:
        offset = self._count * self._nbytes
        os.ftruncate(self._descriptor, offset + self._nbytes)
        block = mmap.mmap(self._descriptor, self._nbytes, offset=offset)
        self._count += 1
        return block, offset

    def close(self) -> None:
        """Close the descriptor; a block lives as long as arrays refer to it."""
        self._free.clear()
        if self._descriptor >= 0:
            os.close(self._descriptor)


def _ahead(futures: Iterator[T], count: int) -> Iterator[T]:
    """Yield items in order, prefetching `count` of them from the iterator."""
    waiting = deque(islice(futures, count))
    while waiting:
        yield waiting.popleft()
        waiting.extend(islice(futures, 1))


def _read(reader: PictureReader, files: Sequence[str]) -> tuple[list[str], list[np.ndarray]]:
    results = [reader(file) for file in files]
    return ([result if isinstance(result, str) else "" for result in results],
            [result for result in results if not isinstance(result, str)])


def _read_into(path: str, offset: int, reader: PictureReader,
               files: Sequence[str]) -> tuple[list[str], list[np.ndarray] | None]:
    """Read a group of files, and write the pictures to shared memory.

    Returns an Answer, with None in place of the pictures. If the pictures cannot be written to the
    file at `path`, the pictures themselves are returned.
    """
    errors, pictures = _read(reader, files)
    arrays = [np.ascontiguousarray(picture) for picture in pictures]
    with suppress(OSError), open(path, "r+b", buffering=0) as file:  # the memory may be full
        written = os.pwritev(file.fileno(), [array.data for array in arrays], offset)
        if written == sum(array.nbytes for array in arrays):
            return errors, None
    return errors, pictures
