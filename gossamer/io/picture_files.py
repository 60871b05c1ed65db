"""The pictures of a folder and of the folders in it, and how they are read ahead."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from gossamer.errors import InputError
from gossamer.io.process_pool import NoProcessError, ProcessPool

Read = TypeVar("Read")

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".webp")
"""Endings of the names of pictures in the formats that are read."""
_PROCESSORS, _FILES = 8, 2000
"""Numbers from which on processes read, not threads: on the host of an H200 one thread reads
212 pictures a second, 16 threads 1,200, as they wait for Python's lock. Processes take a second to
start."""
_GROUP = 8
"""Files that a process reads at a time: sending one takes as long as reading a small one."""


def pictures_in(folder: Path) -> tuple[list[Path], int]:
    """Returns the pictures below a folder, sorted by their paths, and the number of other files.

    Hidden files and folders (.name) are passed over, and links to folders are not followed. Raises
    InputError where there is no picture, and for a folder that cannot be read.
    """
    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None

    pictures, others = [], 0
    for path, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            if name.lower().endswith(SUFFIXES):
                pictures.append(Path(path, name))
            else:
                others += 1
    if not pictures:
        found = f"; it has {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{folder}: has no pictures ({', '.join(SUFFIXES)}){found}")
    return sorted(pictures), others


def read_in_order(read: Callable[[str], Read], files: Sequence[str], processors: int,
                  ahead: int) -> Iterator[Read]:
    """Yields what is read of files, in their order. So many processors read up to `ahead` files
    more than were taken, and a few more each.

    read: a function that other processes can import, with what they can be sent.
    """
    if processors < _PROCESSORS or len(files) < _FILES:
        return _by_threads(read, files, processors, ahead)
    return _by_processes(read, files, processors, ahead)


def _by_threads(read: Callable[[str], Read], files: Sequence[str], threads: int,
                ahead: int) -> Iterator[Read]:
    waiting: deque[Future[Read]] = deque()
    pool = ThreadPoolExecutor(threads, "gossamer-pictures")
    try:
        for file in files:
            waiting.append(pool.submit(read, file))
            if len(waiting) > ahead + 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _by_processes(read: Callable[[str], Read], files: Sequence[str], count: int,
                  ahead: int) -> Iterator[Read]:
    waiting: deque[tuple[Sequence[str], Future[list[Read]]]] = deque()
    # a process waits while this one takes what it has read; others use its processor meanwhile
    count += count // 2
    with ProcessPool(count, "process that reads pictures") as pool:

        def taken() -> list[Read]:
            group, future = waiting.popleft()
            try:
                return future.result()
            except NoProcessError:
                return _read_all(read, group)

        for start in range(0, len(files), _GROUP):
            group = files[start:start + _GROUP]
            waiting.append((group, pool.submit(_read_all, read, group, what="read pictures")))
            if len(waiting) > ahead // _GROUP + 2 * count:
                yield from taken()
        while waiting:
            yield from taken()


def _read_all(read: Callable[[str], Read], files: Sequence[str]) -> list[Read]:
    return list(map(read, files))
