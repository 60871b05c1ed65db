"""The tasks of a group whose devices have processes: their sources and their results."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from gossamer.errors import DeviceError
from gossamer.plan.group_process import Batch, ProcessMember
from gossamer.plan.run.device_workers import BatchTask, Collect, Member


class Changed:
    """A lock, and an event that wakes the thread of a group.

    lock: the lock, which is used directly: in methods of a class in Python, Ctrl-C could leave it
    locked.
    takes_tasks: whether a new task must wake the thread. False if no device can take another task,
    or if the thread was already woken.
    """

    def __init__(self) -> None:
        self.event = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        weakref.finalize(self, os.close, self.event).atexit = False
        self.takes_tasks = False
        self.free()

    def free(self) -> None:
        """Replace the lock.

        After a fork, the old lock may be held by a thread that does not exist in the child.
        """
        # reentrant, because the garbage collector may end a stream or a group at any time
        self.lock = threading.RLock()

    def wake(self) -> None:
        """Wake the thread."""
        self.takes_tasks = False
        os.eventfd_write(self.event, 1)

    def clear(self) -> None:
        """Reset the event after the thread was woken."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.event)


class Task:
    """A task in progress.

    source: the ProcessWork from which the task comes.
    failed, error: a device that has failed to compute the task, and the device's error.
    deaths: number of processes that have ended before they answered the task.
    batch: the batch that was sent to a process.
    collect: function that returns the result after the batch was computed.
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
        """Set the result that `collect` returns, or the error that it raises."""
        try:
            result = self.collect()
        except Exception as error:
            self.fail(error)
        else:
            self.source.in_progress -= 1
            self.task.result.set_result(result)

    def fail(self, error: Exception) -> None:
        """Set an error, to which the caller's name of the batch is added."""
        self.source.in_progress -= 1
        self.task.result.set_exception(self.task.name(error))


class Group(Protocol):
    """A group of devices that computes the tasks of several ProcessWork objects."""

    changed: Changed

    def add(self, source: ProcessWork) -> None:
        """Begin to compute the tasks of a ProcessWork."""

    def notify(self, source: ProcessWork) -> None:
        """Begin to compute further tasks of a ProcessWork; the caller holds `changed`."""

    def wait_for(self, source: ProcessWork) -> None:
        """Wait until all tasks of a ProcessWork are done, after its end() was called."""


class ProcessWork:
    """The tasks of a stream, of a batcher or of calls; used in place of `SharedWork`.

    next_task, depth: as in SharedWork.
    in_progress: number of tasks that were taken from next_task and are not done.
    is_over: whether end() was called, after which there are no more tasks.
    is_done: event that is set when all tasks are done after end().
    """

    def __init__(self, group: Group, next_task: Callable[[Member], BatchTask | None],
                 depth: int) -> None:
        self.next_task = next_task
        self.depth = depth
        self.in_progress = 0
        self.is_over = False
        self.is_done = threading.Event()
        self._group = group

    @property
    def changed(self) -> Any:
        """The lock of the group."""
        return self._group.changed.lock

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
            self._group.changed.wake()

    def close(self) -> None:
        """End the work, and wait until all tasks are done."""
        self.end()
        self._group.wait_for(self)

    def fail_all(self, member: Member, error: Exception) -> None:
        """Set an error for each task that waits."""
        with self.changed:
            while (task := self.next_task(member)) is not None:
                task.result.set_exception(task.name(error))
