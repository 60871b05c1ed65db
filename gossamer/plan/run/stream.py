"""Streams of batches through a plan.

Reading, copying to the device, computing and copying back overlap.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from itertools import count
from queue import SimpleQueue
from typing import Any

from gossamer.errors import GossamerError, InputError, kind_of, one_of
from gossamer.plan.run.device_workers import (
    CLOSED_AT_EXIT,
    BatchTask,
    Closable,
    Members,
    SharedWork,
    failed,
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
        self._numbers = count()
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
            result = self._pipeline.next_result()
            error = result.exception()
        except CancelledError:
            raise StopIteration from None
        except BaseException:
            # the batches have ended, or the caller was interrupted
            self.close()
            raise
        self._pipeline.room.release()
        number = next(self._numbers)
        if error is None:
            return result.result()
        error = _of_batch(number, error)
        if self._returns_errors:
            return error
        raise error

    def close(self) -> None:
        """End the threads, and free the stream's device memory.

        Waits for batches that are being computed. If the iterator of the batches is being read, the
        read continues until it returns by itself.
        """
        self._is_over = True
        self._pipeline.close()


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
        self._results: SimpleQueue[Future[Any] | BaseException] = SimpleQueue()
        """The results of the batches in order, and the error that ends the stream."""
        self._is_ending = False
        CLOSED_AT_EXIT.add(self)
        self._reader = threading.Thread(target=self._read, name="gossamer reads", daemon=True)

    def next_result(self) -> Future[Any]:
        """Return the future of the next batch; raise the error that ends the stream."""
        if not self._reader.ident:
            self._reader.start()
            self._work.start()
        result = self._results.get()
        if isinstance(result, BaseException):
            raise result
        return result

    def end(self) -> None:
        """Make the threads end soon."""
        with self._work.changed:
            self._is_ending = True
            while self._tasks:
                self._tasks.popleft().result.cancel()
        self.room.release()
        self._work.end()
        self._results.put(StopIteration())

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
        last: BaseException = StopIteration()
        try:
            self.room.acquire()
            for item in self._iterator:
                self._add(item)
                del item
                self.room.acquire()
                if self._is_ending:
                    break
        except BaseException as error:
            last = error
        # drop the caller's iterator: a generator is thereby closed in the thread that ran it
        self._iterator = iter(())
        self._results.put(last)
        self._work.end()

    def _add(self, item: Any) -> None:
        """Check a batch, and add it to the tasks."""
        try:
            task = BatchTask(self._members.checked(item), Future())
        except Exception as error:
            self._results.put(failed(error))
            return
        with self._work.changed:
            if not self._is_ending:
                self._tasks.append(task)
                self._results.put(task.result)
                self._work.changed.notify()


def _of_batch(index: int, error: BaseException) -> BaseException:
    """Return the error of a batch with the batch's number."""
    if not isinstance(error, GossamerError):
        error.add_note(f"in batch {index} of the stream")
        return error
    named = type(error)(f"batch {index}: {error}")
    named.__cause__ = error
    return named
