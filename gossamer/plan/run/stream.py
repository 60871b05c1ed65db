"""Streams of batches through a plan.

Reading, copying to the device, computing and copying back overlap.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from queue import SimpleQueue
from typing import Any

from gossamer.errors import GossamerError, InputError, kind_of, one_of
from gossamer.plan.run.device_workers import (
    CLOSED_AT_EXIT,
    BatchTask,
    Closable,
    Members,
    SharedWork,
)

ERRORS = ("raise", "return")
"""The values of the argument `errors`: what a stream does with the error of a batch."""
_JOIN_S = 1.0
"""Seconds that close() waits for the thread that reads the caller's iterator."""


class ResultStream(Closable, Iterator[Any]):
    """The results of batches, in order, as returned by `Plan.stream`.

    Threads read and compute ahead of the caller, at most `2 * depth` batches for each device. The
    threads end when all results were taken, when the stream is closed, or when the stream is
    garbage collected. A stream may be used as a context manager, which closes it at the end.
    """

    def __init__(self, members: Members, batches: Iterable[Any], depth: int, errors: str,
                 owner: object = None) -> None:
        if isinstance(depth, bool) or not isinstance(depth, int) or depth < 1:
            raise InputError(f"depth {depth!r}: expected a whole number of 1 or more")
        if errors not in ERRORS:
            raise InputError(f"errors {errors!r}: {one_of(errors, ERRORS)}")
        if isinstance(batches, (Mapping, str)) or hasattr(batches, "shape"):
            raise InputError(f"batches is {kind_of(batches)}, which is one batch; give an "
                             "iterable of batches, such as a list")
        try:
            iterator = iter(batches)
        except TypeError:
            raise InputError(f"batches is {kind_of(batches)}, expected an iterable of "
                             "batches") from None
        self._owner = owner
        self._returns_errors = errors == "return"
        self._pipeline = _Pipeline(members, iterator, depth)
        self._is_over = False
        weakref.finalize(self, self._pipeline.end).atexit = False

    def __next__(self) -> Any:
        """Return the result of the next batch.

        Raises
        ------
        GossamerError
            If this batch failed; the message begins with the batch's number, counted from 0. The
            stream continues with the next batch.
        Exception
            The error of the batches' iterator, after the results of all earlier batches.
        """
        if self._is_over:
            raise StopIteration
        try:
            entry = self._pipeline.next_entry()
        except (KeyboardInterrupt, SystemExit):
            self.close()
            raise
        if entry.is_end:
            self.close()
            raise StopIteration if entry.error is None else entry.error
        self._pipeline.room.release()
        if entry.error is None or self._returns_errors:
            return entry.error or entry.result
        raise entry.error

    def close(self) -> None:
        """End the threads, and free the stream's device memory.

        Waits for batches that are being computed. If the iterator of the batches is being read, the
        read continues until it returns by itself.
        """
        self._is_over = True
        self._pipeline.close()


class _Entry:
    """A batch of a stream with its result or error, or the end of the stream.

    index: number of the batch.
    is_end: whether there are no more batches.
    """

    __slots__ = ("done", "error", "index", "is_end", "result")

    def __init__(self, index: int, done: SimpleQueue[_Entry], *, is_end: bool = False) -> None:
        self.index = index
        self.done = done
        self.is_end = is_end
        self.result: Any = None
        self.error: BaseException | None = None

    def set_result(self, result: Any) -> None:
        """Set the result, and hand out the entry."""
        self.result = result
        self.done.put(self)

    def set_exception(self, error: BaseException | None) -> None:
        """Set an error, and hand out the entry."""
        self.error = error
        self.done.put(self)


class _Pipeline:
    """The threads of a stream.

    The threads hold no reference to the stream. Therefore the stream is deleted when the caller
    drops it, and its deletion ends the threads. A single thread reads batches, because few
    iterators support several threads. One thread for each device computes.

    room: semaphore that counts the batches that may still be read; it is released when a result was
    taken.
    """

    def __init__(self, members: Members, iterator: Iterator[Any], depth: int) -> None:
        self._members = members
        self._iterator = iterator
        self.room = threading.Semaphore(2 * depth * len(members.usable))
        self._tasks: deque[BatchTask] = deque()
        self._work = SharedWork(
            members, lambda _: self._tasks.popleft() if self._tasks else None, depth)
        self._done: SimpleQueue[_Entry] = SimpleQueue()
        self._early: dict[int, _Entry] = {}
        self._next = 0
        self._is_ending = False
        CLOSED_AT_EXIT.add(self)
        self._reader = threading.Thread(target=self._read, name="gossamer reads", daemon=True)

    def next_entry(self) -> _Entry:
        """Return the next batch when it is computed, or the end."""
        if not self._reader.ident:
            self._reader.start()
            self._work.start()
        while (entry := self._early.pop(self._next, None)) is None:
            entry = self._done.get()
            if entry.is_end and entry.index < 0:
                return entry
            self._early[entry.index] = entry
        self._next += 1
        return entry

    def end(self) -> None:
        """Make the threads end soon."""
        self._is_ending = True
        self.room.release()
        with self._work.changed:
            self._tasks.clear()
        self._work.end()
        # next_entry() returns this entry even if earlier batches are missing
        _Entry(-1, self._done, is_end=True).set_exception(None)

    def close(self) -> None:
        """End the threads, and wait for them.

        The wait for the thread that reads is limited to _JOIN_S.
        """
        self.end()
        self._work.close()
        if self._reader.ident and self._reader is not threading.current_thread():
            self._reader.join(_JOIN_S)

    def _read(self) -> None:
        """Read and check the batches, and distribute them."""
        last: BaseException | None = None
        index = -1
        try:
            self.room.acquire()
            for index, item in enumerate(self._iterator):
                entry = _Entry(index, self._done)
                try:
                    task = BatchTask(self._members.checked(item), entry,
                                     partial(_of_batch, index))
                except Exception as error:
                    entry.set_exception(_of_batch(index, error))
                else:
                    with self._work.changed:
                        self._tasks.append(task)
                        self._work.changed.notify()
                    del task
                del item, entry
                self.room.acquire()
                if self._is_ending:
                    break
        except BaseException as error:
            last = error
        # drop the caller's iterator: a generator is thereby closed in the thread that ran it
        self._iterator = iter(())
        _Entry(index + 1, self._done, is_end=True).set_exception(last)
        self._work.end()


def _of_batch(index: int, error: Exception) -> Exception:
    """Return the error of a batch with the batch's number."""
    if not isinstance(error, GossamerError):
        error.add_note(f"in batch {index} of the stream")
        return error
    named = type(error)(f"batch {index}: {error}")
    named.__cause__ = error
    return named
