"""Prefetching of pictures from files, in batches of one shape.

If there are many files and processors, other processes read the pictures; otherwise threads do. The
processes write pictures to shared memory, in the shape and dtype that the network expects, and
respond once per group of files. The process that runs the network therefore rarely waits for the
GIL.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

import numpy as np

from gossamer.io.process_pool import NoProcessError, ProcessPool
from gossamer.io.shared_memory import SharedMemory

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
_Group = tuple[Callable[[], Answer], Future[Any]]
"""The function that reads a group of files, and the future of its answer from a process."""


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
    shared = None
    if form is not None and SharedMemory.is_supported():
        with suppress(OSError):
            shared = SharedMemory()
    with ProcessPool(count, "process that reads images") as pool:

        def submit(start: int) -> tuple[np.ndarray | None, list[_Group]]:
            part = files[start:start + size]
            memory = None
            if shared is not None and form is not None:
                with suppress(OSError):  # there may be too little memory
                    memory = shared.empty((len(part), *form[0]), form[1])
            groups: list[_Group] = []
            for first in range(0, len(part), _GROUP):
                group = part[first:first + _GROUP]
                task = partial(_read, reader, group) if shared is None or memory is None else (
                    partial(_read_into, *shared.file_place(memory[first:]), reader, group))
                groups.append((task, pool.submit(task, what="read pictures")))
            return memory, groups

        for block in _ahead(map(submit, range(0, len(files), size)), 1 + -(-ahead // size)):
            yield _answer_of(*block)
            # drop the reference, so that the block's memory can be reused
            del block


def _answer_of(memory: np.ndarray | None, groups: Sequence[_Group]) -> Answer:
    """Wait for the groups of a block, and merge their answers."""
    errors: list[str] = []
    pictures: list[np.ndarray] = []
    for task, future in groups:
        try:
            group_errors, found = future.result()
        except NoProcessError:
            group_errors, found = task()
        if memory is not None:
            found = memory[len(errors):][:group_errors.count("")]
        errors += group_errors
        pictures += list(found)
    return errors, pictures if memory is None or any(errors) else memory


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
               files: Sequence[str]) -> tuple[list[str], list[np.ndarray]]:
    """Read a group of files, and write the pictures to shared memory.

    Returns an Answer without the pictures.
    """
    errors, pictures = _read(reader, files)
    with open(path, "r+b") as file:
        file.seek(offset)
        for picture in pictures:
            file.write(np.ascontiguousarray(picture).data)
    return errors, []
