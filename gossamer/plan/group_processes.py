"""The devices of a group, each with its own process.

One Python interpreter cannot feed several fast GPUs. Therefore each device has a process, which
computes batches in shared memory and exchanges short messages with the parent process. In the
parent process, a group has one thread. This thread distributes the batches of all streams, batchers
and calls of the group, and receives the answers. No other thread starts, replaces or ends
processes.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from operator import is_
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.base import Device
from gossamer.device.host import processors
from gossamer.errors import (
    DeviceError,
    DeviceLostError,
    GossamerError,
    GossamerWarning,
    InputError,
    OutOfMemoryError,
)
from gossamer.io.shared_memory import SharedMemory
from gossamer.plan.group_process import (
    STARTING,
    Form,
    GroupArrays,
    ProcessLanes,
    ProcessMember,
)
from gossamer.plan.group_tasks import Changed, ProcessWork, Task
from gossamer.plan.plan import Plan
from gossamer.plan.run.calls import Calls, form_of
from gossamer.plan.run.device_workers import (
    CLOSED_AT_EXIT,
    BatchTask,
    Begin,
    Collect,
    Member,
    Members,
    host_arrays,
    like_inputs,
    seconds_of,
)

_MOST_DEATHS = 2
"""Maximum number of times that a batch is computed again because a process has ended. There is a
maximum because the batch itself may be the reason."""
_MOST_KNOWN = 64
"""Maximum number of batch forms (see form_of()) that are remembered."""
_MOST_DEPTH = 32
"""Maximum number of batches in progress on each device. A socket holds more messages than these
batches need, so that neither end waits while it sends."""
_CALLS_DEPTH = 3
"""Maximum number of calls in progress on each device."""


def have_processes(devices: Sequence[Device]) -> bool:
    """Return whether each of several devices gets its own process."""
    return (len(set(map(id, devices))) == len(devices) > 1
            and all(device.needs_own_process for device in devices)
            and SharedMemory.is_supported() and bool(sys.executable))


def _anew(error: Exception) -> Exception:
    """Return a new error with the type and message of another.

    The other error may have been raised before, and then has a traceback.
    """
    return type(error)(str(error))


class DeviceProcesses(Members):
    """The devices of a group, each with a process that starts when the group is first used.

    If a process ends, its batches are computed again. A process that ends after it was ready is
    replaced, once for each device. In all other cases, the device is left out with a warning.

    plans: for each device, a plan of the same network.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        super().__init__(())
        self.arrays = GroupArrays(list({plan.choosing: None for plan in plans}))
        self.changed = Changed()
        self._processes = [ProcessMember(plan) for plan in plans]
        self.all = [*self._processes]
        self._lanes = {member: ProcessLanes(self.arrays, member) for member in self._processes}
        self._name = plans[0].graph.name
        self._sources: deque[ProcessWork] = deque()
        self._again: deque[Task] = deque()
        self._tasks: dict[ProcessMember, dict[int, Task]] = {
            member: {} for member in self._processes}
        self._known: dict[Hashable, Form] = {}
        self._calls: deque[BatchTask] = deque()
        self._calling: ProcessWork | None = None
        self._thread: threading.Thread | None = None
        self._problem: Exception | None = None
        self._warned: set[str] = set()
        CLOSED_AT_EXIT.add(self)
        _GROUPS.add(self)

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        self._check_usable()
        return self.arrays.pinned(batch)

    def checked(self, item: Any) -> Begin:
        inputs = tuple(item) if isinstance(item, (tuple, list)) else (item,)
        key = form_of(inputs)
        form = self._known.get(key)
        if form is not None:
            return self._begin_of(form, inputs, inputs)
        given = self.all[0].calls.in_order(inputs, {})
        return self._checked(given, key if all(map(is_, given, inputs)) else None)

    def _checked(self, inputs: tuple[Any, ...], key: Hashable) -> Begin:
        """Check a batch, and return the function that begins it.

        key: the batch's form, which is remembered; later batches of this form are not checked. With
        None, no form is remembered.
        """
        self._check_usable()
        calls = self.all[0].calls
        arrays, batch = host_arrays(calls.graph, inputs)
        if any(array.size == 0 for array in arrays) and (empty := calls.empty_outputs(batch)):
            return lambda lanes: partial(like_inputs, inputs, empty)
        form = self.arrays.form(batch)
        if key is not None and type(inputs[0]) is np.ndarray:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[key] = form
        return self._begin_of(form, inputs, arrays)

    def _begin_of(self, form: Form, inputs: Sequence[Any], arrays: Sequence[np.ndarray]) -> Begin:
        """Place a batch in shared memory, and return the function that begins the batch."""
        placed = self.arrays.placed(form, arrays)
        self.all[0].calls.last_batch = form.batch

        def begin(lanes: Any) -> Collect:
            collect = lanes.sent(form, placed)
            return lambda: like_inputs(inputs, collect())

        return begin

    def _check_usable(self) -> None:
        if self._problem is not None:
            raise _anew(self._problem)

    def work(self, next_task: Callable[[Member], BatchTask | None], depth: int,
             sizes: int = 2) -> ProcessWork:
        return ProcessWork(self, next_task, min(depth, _MOST_DEPTH))

    def call(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        if threading.current_thread() is self._thread:
            raise InputError(f"{self._name}: a callback of a result cannot call the group, whose "
                             "thread runs the callback; submit the call, or use another thread")
        result: Future[Any] = Future()
        task = BatchTask(self._checked(self.all[0].calls.in_order(inputs, named), None),
                         result)
        with self.changed.lock:
            if self._calling is None:
                self._calling = ProcessWork(
                    self, lambda _: self._calls.popleft() if self._calls else None, _CALLS_DEPTH)
                self._calling.start()
            self._calls.append(task)
            self._calling.notify()
        return result.result()

    def seconds(self, member: Member, size: int) -> float:
        inputs = self.pinned(size)
        return seconds_of(lambda: self.call(inputs, {}))

    def free_contexts(self, calls: Calls) -> None:
        calls.device.synchronize()
        calls.contexts.clear()

    def add(self, source: ProcessWork) -> None:
        """Begin to compute the tasks of a ProcessWork."""
        with self.changed.lock:
            if self._problem is not None:
                source.fail_all(self.usable[0], self._problem)
                return
            self._sources.append(source)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="gossamer-group", daemon=True)
                thread.start()
                self._thread = thread
            self.changed.wake()

    def notify(self, source: ProcessWork) -> None:
        """Wake the thread if it can begin further tasks of a ProcessWork.

        The tasks fail if the group is closed or has failed. The caller holds the lock `changed`.
        """
        if self._problem is not None:
            source.fail_all(self.usable[0], self._problem)
        elif self.changed.takes_tasks:
            self.changed.wake()

    def wait_for(self, source: ProcessWork) -> None:
        """Wait until all tasks of a ProcessWork are done, after its end() was called."""
        with self.changed.lock:
            is_added = source in self._sources
        if is_added and self._thread is not threading.current_thread():
            source.is_done.wait()

    def end(self) -> None:
        """Tell the thread to end all processes, and return at once."""
        with self.changed.lock:
            self._problem = self._problem or InputError(
                f"{self._name}: the group is closed; make another group, or move this call before "
                "group.close() and inside the group's with block")
            self._known.clear()
            self.changed.wake()

    def close(self) -> None:
        """End all processes, and wait for their ends. Tasks that are not done fail."""
        self.end()
        if self._thread is None:
            self.arrays.close()
        elif self._thread is not threading.current_thread():
            self._thread.join()

    def forgotten(self) -> None:
        """Make the group unusable in a forked child, because its processes belong to the parent."""
        CLOSED_AT_EXIT.discard(self)
        self.changed.free()
        self._thread = None
        self._sources.clear()
        self._known.clear()
        self._problem = DeviceError(
            f"{self._name}: the processes of its devices belong to the process from which this one "
            "was forked; start processes with multiprocessing.get_context('spawn') or joblib")
        for member in self._processes:
            member.forget()

    # only the thread of the group calls the methods below

    def _run(self) -> None:
        try:
            self._poll = select.poll()
            self._poll.register(self.changed.event, select.POLLIN)
            self._of_channel: dict[int, ProcessMember] = {}
            for member in self._processes:
                self._start(member)
            while self._problem is None:
                self._dispatch()
                for descriptor, _ in self._poll.poll():
                    if descriptor == self.changed.event:
                        self.changed.clear()
                    elif descriptor in self._of_channel:
                        # the descriptor may meanwhile belong to the channel of a new process,
                        # which has sent no answer yet
                        with suppress(BlockingIOError):
                            self._receive(self._of_channel[descriptor])
        except BaseException as error:
            debug.logger.exception("the processes of %s are given up", self._name)
            self._problem = DeviceError(f"{self._name}: the processes of its devices were given "
                                        f"up: {type(error).__name__}: {error}")
        finally:
            self._end_all()

    def _start(self, member: ProcessMember) -> None:
        # all processes may use the same number of threads on the host
        share = str(max(1, processors() // len(self._processes)))
        try:
            member.start(self.arrays, {"OMP_NUM_THREADS": share})
        except (OSError, GossamerError) as error:
            self._give_up(member, DeviceError(
                f"no process can be started for {member.calls.device.name}: {error}"))
        else:
            self._of_channel[member.channel.fileno()] = member
            self._poll.register(member.channel, select.POLLIN)

    def _drop(self, member: ProcessMember) -> None:
        """Receive no more answers of a process, and schedule its tasks to be computed again."""
        self._poll.unregister(member.channel)
        del self._of_channel[member.channel.fileno()]
        self._again.extendleft(reversed(self._tasks[member].values()))
        self._tasks[member] = {}

    def _give_up(self, member: ProcessMember, error: DeviceError) -> None:
        """End the process of a device for good, and leave the device out.

        The last device is not left out.
        """
        member.error = error
        if member.pid is not None:
            self._drop(member)
            member.stop()
        with suppress(GossamerWarning):
            self.leave_out(member, error)

    def _dispatch(self) -> None:
        """Begin as many tasks as the processes can take, and drop sources without tasks."""
        self.changed.takes_tasks = True
        while True:
            self._fail_hopeless()
            while (found := self._next()) is not None:
                self._begin(*found)
            if not self._drop_done():
                break
        depth = max((source.depth for source in tuple(self._sources)), default=0)
        # if every device is given up, new tasks must wake the thread, so that they fail at once
        self.changed.takes_tasks = all(member.error is not None for member in self._processes) or (
            any(member.is_ready and len(self._tasks[member]) < depth
                for member in self._processes))

    def _next(self) -> tuple[ProcessMember, Task] | None:
        """Return a device and the next task for it; None if no device can take a task.

        Tasks to compute again come first. Any other task goes to the device with the fewest tasks.
        """
        ready = [member for member in self._processes if member.is_ready]
        for task in self._again:
            for member in ready:
                if member is not task.failed and len(self._tasks[member]) < task.source.depth:
                    self._again.remove(task)
                    return member, task
        if not ready:
            return None
        member = min(ready, key=lambda member: len(self._tasks[member]))
        with self.changed.lock:
            for source in self._sources:
                if len(self._tasks[member]) < source.depth and (
                        taken := source.next_task(member)) is not None:
                    # the next task comes from another source
                    self._sources.rotate(-1 - self._sources.index(source))
                    return member, Task(source, taken)
        return None

    def _begin(self, member: ProcessMember, task: Task) -> None:
        lanes: Any = self._lanes[member]
        lanes.begun_batch = None
        try:
            task.collect = task.task.begin(lanes)
        except Exception as error:
            task.fail(error)
            return
        task.batch = lanes.begun_batch
        if task.batch is None:
            task.finish()
        else:
            self._tasks[member][task.batch.number] = task

    def _receive(self, member: ProcessMember) -> None:
        """Handle the next answer of a process, or the end of the process."""
        answer = member.received()
        if answer is None:
            self._replace(member)
            return
        number, error, problem = answer
        if problem and problem not in self._warned:
            self._warned.add(problem)
            with suppress(GossamerWarning):
                warnings.warn(problem, GossamerWarning, stacklevel=2)
        if number:
            self._answered(member, self._tasks[member].pop(number), error)
        elif error is None:
            member.is_ready = True
        else:
            self._give_up(member, error if isinstance(error, DeviceError) else
                          DeviceError(f"{member.calls.device.name}: {error}"))

    def _answered(self, member: ProcessMember, task: Task, error: Exception | None) -> None:
        """Set the result of a task.

        If the device has failed and there is another one, the task is first computed once more on
        another device. If that device succeeds, the failed one is given up, unless it had too
        little memory.
        """
        assert task.batch is not None
        if isinstance(error, DeviceError):
            if task.error is None and any(other is not member and other.error is None
                                          for other in self._processes):
                task.failed, task.error = member, error
                self._again.append(task)
                return
            error = task.error or error
        elif error is None and task.failed is not None and task.failed.error is None:
            assert task.error is not None
            if not isinstance(task.error, OutOfMemoryError):
                self._give_up(task.failed, task.error)
        task.batch.error = error
        task.finish()

    def _replace(self, member: ProcessMember) -> None:
        """Replace a process that has ended.

        The device is given up instead if the process was not ready, or if an earlier process of the
        device has ended.
        """
        tasks, was_ready = list(self._tasks[member].values()), member.is_ready
        self._drop(member)
        error = DeviceLostError(member.ended())
        debug.logger.warning("%s", error)
        member.deaths += 1
        for task in tasks:
            task.deaths += 1
            if task.deaths > _MOST_DEATHS:
                self._again.remove(task)
                task.fail(error)
        if was_ready and member.deaths == 1:
            self._start(member)
        else:
            self._give_up(member, error)

    def _drop_done(self) -> bool:
        """Drop the sources that are over and have no tasks.

        Returns whether a task was found that a process can begin.
        """
        with self.changed.lock:
            for source in tuple(self._sources):
                if not source.is_over or source.in_progress:
                    continue
                taken = source.next_task(self.usable[0])
                if taken is not None:
                    self._again.append(Task(source, taken))
                    return any(member.is_ready for member in self._processes)
                self._sources.remove(source)
                source.is_done.set()
        return False

    def _fail_hopeless(self) -> None:
        """Fail the tasks that no device can take."""
        left = [member for member in self._processes if member.error is None]
        for task in [task for task in self._again
                     if not any(member is not task.failed for member in left)]:
            self._again.remove(task)
            task.fail(_anew(task.error or self._last_error()))
        if not left:
            for source in tuple(self._sources):
                source.fail_all(self.usable[0], _anew(self._last_error()))

    def _last_error(self) -> DeviceError:
        """Return the error of the last device, which is not left out."""
        error = next(member.error for member in self._processes if not member.problem)
        assert error is not None
        return error

    def _end_all(self) -> None:
        """End the processes, and fail all tasks."""
        for member in self._processes:
            member.kill()
        for member in self._processes:
            self._again.extend(self._tasks[member].values())
            member.stop()
        assert self._problem is not None
        for task in self._again:
            task.fail(self._problem)
        with self.changed.lock:
            while self._sources:
                source = self._sources.popleft()
                source.fail_all(self.usable[0], self._problem)
                source.is_done.set()
        self.arrays.close()


_GROUPS: weakref.WeakSet[DeviceProcesses] = weakref.WeakSet()
"""All groups of this process. After a fork, they are unusable in the child."""


def _after_fork() -> None:
    STARTING.release()
    for group in list(_GROUPS):
        group.forgotten()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=STARTING.acquire, after_in_parent=STARTING.release,
                        after_in_child=_after_fork)
