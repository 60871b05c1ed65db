"""The tasks of a group whose devices have processes: where they come from, and their results."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from gossamer.errors import DeviceError
from gossamer.plan.group_process import Batch, ProcessMember
from gossamer.plan.run.device_workers import BatchTask, Collect, Member


class Changed:
    """A lock, and what wakes the thread of a group.

    takes_tasks: whether the thread sleeps although a device could take a task.
    """

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.event).atexit = False
        self.takes_tasks = False
        self.free()

    def free(self) -> None:
        """Make another lock; after a fork nobody may be left to release the old one."""
        # reentrant, because garbage that is collected meanwhile may end a stream or a group
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wake(self) -> None:
        """Wake the thread."""
        self.takes_tasks = False
        os.eventfd_write(self.event, 1)

    def clear(self) -> None:
        """Forget that the thread was woken."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)


class Task:
    """A task in progress.

    source: the work that it belongs to.
    failed, error: a device that has failed to compute it, and its error.
    deaths: number of processes that have ended while they computed it.
    batch: the batch that was sent to a process.
    collect: returns the result when the batch is computed.
    """

    def __init__(self, source: ProcessWork, task: BatchTask) -> None:
        self.source = source
        self.task = task
        self.failed: ProcessMember | None = None
        self.error: DeviceError | None = None
        self.deaths = 0
        self.batch: Batch | None = None
        self.collect: Collect = lambda: None
        source.in_progress += 1

    def finish(self) -> None:
        """Set the result, or the error of `collect`."""
        try:
            result = self.collect()
        except Exception as error:
            self.fail(error)
        else:
            self.source.in_progress -= 1
            self.task.result.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set an error, with the caller's name of the batch."""
        self.source.in_progress -= 1
        self.task.result.set_exception(self.task.name(error))


class Group(Protocol):
    """What computes works."""

    changed: Changed

    def add(self, source: ProcessWork) -> None:
        """Begin to compute the tasks of a work."""

    def notify(self, source: ProcessWork) -> None:
        """Take notice of further tasks of a work; the caller holds `changed`."""

    def wait_for(self, source: ProcessWork) -> None:
        """Wait until the tasks of a work that is over are done."""


class ProcessWork:
    """The tasks of a stream, of a batcher or of calls; takes the place of `SharedWork`.

    in_progress: number of tasks that were taken and are not done.
    is_over: whether there are no more tasks.
    is_done: set when all tasks of a work that is over are done.
    """

    def __init__(self, group: Group, next_task: Callable[[Member], BatchTask | None],
                 depth: int) -> None:
        self.changed = group.changed
        self.next_task = next_task
        self.depth = depth
        self.in_progress = 0
        self.is_over = False
        self.is_done = threading.Event()
        self._group = group

    def notify(self, tasks: int = 1) -> None:
        """Say that next_task may return more tasks; the caller holds `changed`."""
        self._group.notify(self)

    def start(self) -> None:
        """Begin to compute."""
        self._group.add(self)

    def end(self) -> None:
        """Say that there are no more tasks."""
        with self.changed:
            self.is_over = True
            self.changed.wake()

    def close(self) -> None:
        """End the work, and wait until all tasks are done."""
        self.end()
        self._group.wait_for(self)

    def fail_all(self, member: Member, error: Exception) -> None:
        """Fail the tasks that wait."""
        with self.changed:
            while (task := self.next_task(member)) is not None:
                task.result.set_exception(task.name(error))
