"""Reads pictures from files ahead of their use, and gives them in batches of one size.

Threads read the pictures. Where there are many files and processors, other processes read the
pictures instead. They write the pictures to shared memory, in the shape and dtype that a network
takes, and answer once for several files. Reading then hardly holds Python's lock (the GIL) in the
process that computes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from gossamer.io import shared_blocks
from gossamer.io.process_pool import NoProcessError, ProcessPool
from gossamer.io.shared_blocks import SharedBlocks

_PROCESSORS, _FILES = 8, 2000
"""From these numbers of processors and of files on, other processes read the pictures instead of
threads. On the host of an H200 one thread reads 212 pictures a second, but 16 threads read only
1,200 a second, because they wait for Python's lock. Processes take a second to start."""
_GROUP = 16
"""The most files of a group. A process sends one answer for all files of a group. Sending a group
and taking its answer takes this process about as long as reading a small picture."""

_MOST_PROCESSES = 64
"""The most processes that read. Each process takes three file descriptors of this process, and each
block of shared memory takes one more."""
_AHEAD_BYTES = 2**29
"""The most bytes of pictures that are read ahead. One picture for each process is read ahead even
if these pictures take more bytes."""

Form = tuple[tuple[int, ...], np.dtype]
"""Shape and dtype of a picture."""
Answer = dict[int, np.ndarray | str]
"""The results of a group of files, by the index of a file in the group: its picture, or the reason
why it cannot be read. Pictures that were written to shared memory are left out."""


class PictureReader(Protocol):
    """Reads a picture as an array that a network takes. A reader can be pickled, so that other
    processes can read with it."""

    def form(self) -> Form | None:
        """Returns the shape and dtype that all pictures have; None where their sizes differ."""

    def __call__(self, file: str) -> np.ndarray | str:
        """Returns the picture, or the reason why the file cannot be read."""


@dataclass(frozen=True)
class PictureBatch:
    """Files in their order, and the pictures of the files that can be read.

    errors: for each file the reason why it cannot be read; "" where it can.
    pictures: the pictures in one array, in order; None where no file can be read.
    """

    errors: list[str]
    pictures: np.ndarray | None


@dataclass
class _Block:
    """Files that are read into one block of memory.

    files: the files in their order.
    memory: room for a picture of each file; None where the sizes of pictures differ.
    place: the byte of shared memory at which `memory` begins; None where `memory` is not shared.
    answers: the groups of files that are read together, each with the future of its answer.
    """

    files: Sequence[str]
    memory: np.ndarray | None
    place: int | None
    answers: list[tuple[Sequence[str], Future[Answer]]] = field(default_factory=list)


@dataclass(frozen=True)
class _Pool:
    """The threads or processes that read groups of files.

    submit: function that gives a group of files to a thread or process, and returns the future of
    the answer. Its second argument is the byte of shared memory at which the pictures of the group
    begin; None where the answer contains the pictures.
    group: the most files of a group.
    ahead: this process waits for the pictures of a block only when it has submitted at least this
    number of files that come after the block.
    """

    submit: Callable[[Sequence[str], int | None], Future[Answer]]
    group: int
    ahead: int


def picture_batches(reader: PictureReader, files: Sequence[str], processors: int,
                    batch: int) -> Iterator[PictureBatch]:
    """Yields the pictures of files, in their order, in batches of one shape.

    processors: number of processors that read ahead.
    batch: number of pictures of a batch; files that cannot be read do not count.
    """
    form = reader.form()
    # small batches share a block, so that the block has enough files for a group
    size = max(1, min(batch * max(1, _GROUP // batch), len(files)))
    by_processes = processors >= _PROCESSORS and len(files) >= _FILES
    parts = (_by_processes if by_processes else _by_threads)(reader, files, processors, form, size)
    with closing(parts):
        yield from _in_batches(parts, batch)


def _by_threads(reader: PictureReader, files: Sequence[str], threads: int, form: Form | None,
                size: int) -> Generator[PictureBatch, None, None]:
    executor = ThreadPoolExecutor(threads, "gossamer-pictures")

    def submit(group: Sequence[str], _: int | None) -> Future[Answer]:
        return executor.submit(read_group, reader, group)

    try:
        yield from _read(reader, _blocks(files, form, size, None), _Pool(submit, 1, 2 * threads))
    finally:
        executor.shutdown(cancel_futures=True)


def _by_processes(reader: PictureReader, files: Sequence[str], count: int, form: Form | None,
                  size: int) -> Generator[PictureBatch, None, None]:
    # more processes than processors, since a process that has answered waits for this process
    count = min(count + count // 2, _MOST_PROCESSES)
    ahead = max(count, min(2 * count * _GROUP, _AHEAD_BYTES // max(1, _nbytes(form))))
    with (closing(SharedBlocks(size * _nbytes(form))) as shared,
          ProcessPool(count, "process that reads pictures",
                      descriptors=shared.descriptors) as pool):

        def submit(group: Sequence[str], place: int | None) -> Future[Answer]:
            target = None if place is None else (*shared.descriptors, place)
            return pool.submit(read_group, reader, group, target, what="read pictures")

        yield from _read(reader, _blocks(files, form, size, shared),
                         _Pool(submit, _GROUP, ahead))


def _nbytes(form: Form | None) -> int:
    return 0 if form is None else math.prod(form[0]) * form[1].itemsize


def _blocks(files: Sequence[str], form: Form | None, size: int,
            shared: SharedBlocks | None) -> Iterator[_Block]:
    """Yields blocks of `size` files, with memory for their pictures."""
    for start in range(0, len(files), size):
        part = files[start:start + size]
        memory, place = None, None
        if form is not None:
            shape, dtype = form
            if shared is None:
                memory = np.empty((len(part), *shape), dtype)
            else:
                block, place = shared.take()
                memory = block[:len(part) * _nbytes(form)].view(dtype).reshape(len(part), *shape)
        yield _Block(part, memory, place)


def _read(reader: PictureReader, blocks: Iterable[_Block], pool: _Pool) -> Iterator[PictureBatch]:
    """Yields the pictures of blocks, which are read ahead."""
    waiting: deque[_Block] = deque()
    files = 0
    for block in blocks:
        count = len(block.files)
        each = -(-count // -(-count // pool.group))
        bytes_of_one = 0 if block.memory is None else block.memory[0].nbytes
        for start in range(0, count, each):
            group = block.files[start:start + each]
            place = None if block.place is None else block.place + start * bytes_of_one
            block.answers.append((group, pool.submit(group, place)))
        waiting.append(block)
        files += count
        while files - len(waiting[0].files) >= pool.ahead:
            oldest = waiting.popleft()
            files -= len(oldest.files)
            yield from _taken(reader, oldest)
            # the memory of a block must not be kept while this function waits for other blocks
            del oldest
        del block
    while waiting:
        yield from _taken(reader, waiting.popleft())


def _taken(reader: PictureReader, block: _Block) -> Iterator[PictureBatch]:
    """Waits for a block, and yields its pictures together, or each picture alone where the sizes of
    pictures may differ."""
    left: Answer = {}
    start = 0
    for group, future in block.answers:
        try:
            answer = future.result()
        except NoProcessError:
            answer = read_group(reader, group)
        left.update((start + number, value) for number, value in answer.items())
        start += len(group)
    if block.memory is None:
        for value in left.values():
            yield (PictureBatch([value], None) if isinstance(value, str)
                   else PictureBatch([""], value[None]))
        return
    memory = block.memory
    if block.place is not None and any(isinstance(value, np.ndarray) for value in left.values()):
        memory = _moved(memory, left)
    errors = [""] * len(block.files)
    for number, value in left.items():
        if isinstance(value, str):
            errors[number] = value
        else:
            memory[number] = value
    can_be_read = [not error for error in errors]
    yield PictureBatch(errors, memory if all(can_be_read) else
                       memory[can_be_read] if any(can_be_read) else None)


def _moved(memory: np.ndarray, left: Answer) -> np.ndarray:
    """Returns memory of this process, with a copy of the pictures that are in shared memory. The
    copy is needed where the system could not provide all of the shared memory: a process that
    touches a missing page of memory is killed."""
    moved = np.empty_like(memory)
    for number in range(len(memory)):
        if number not in left:
            moved[number] = memory[number]
    return moved


def read_group(reader: PictureReader, files: Sequence[str],
               target: tuple[int, int] | None = None) -> Answer:
    """Reads a group of files and returns the answer. target: the descriptor of shared memory, and
    the byte of this memory from which on the pictures are written; None where all pictures are
    returned."""
    left: Answer = {}
    for number, file in enumerate(files):
        picture = reader(file)
        if isinstance(picture, str) or target is None or not shared_blocks.write(
                target[0], target[1] + number * picture.nbytes, picture):
            left[number] = picture
    return left


def _in_batches(parts: Iterable[PictureBatch], batch: int) -> Iterator[PictureBatch]:
    """Yields files in batches of one shape. A part that is a whole batch is not copied."""
    errors: list[str] = []
    arrays: list[np.ndarray] = []
    count = 0
    for part in parts:
        start = row = 0
        for error in part.errors:
            if not error:
                assert part.pictures is not None
                if count == batch or (count and not row and _differ(arrays, part.pictures)):
                    yield _joined(errors, [*arrays, part.pictures[start:row]])
                    errors, arrays, count, start = [], [], 0, row
                row += 1
                count += 1
            errors.append(error)
        if part.pictures is not None:
            arrays.append(part.pictures[start:row])
        # the memory of a part must not be kept while this function waits for other parts
        del part
    if errors:
        yield _joined(errors, arrays)


def _differ(arrays: Sequence[np.ndarray], pictures: np.ndarray) -> bool:
    return arrays[0].shape[1:] != pictures.shape[1:]


def _joined(errors: list[str], arrays: Sequence[np.ndarray]) -> PictureBatch:
    arrays = [array for array in arrays if len(array)]
    if len(arrays) > 1:
        return PictureBatch(errors, np.concatenate(arrays))
    return PictureBatch(errors, arrays[0] if arrays else None)
