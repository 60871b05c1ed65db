"""Shares out work over several devices: each task goes to a device that is free, and a task that
fails on one device is done again on another device."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future

from gossamer.errors import DeviceError, DeviceLostError, GossamerWarning, OutOfMemoryError
from gossamer.plan.run.lanes import Begin, Collect, Finish, Lanes, PlanParts


class Member:
    """One of the devices of a plan or of a group of plans.

    Two members may have the same plan; each of them is a worker.

    problem: why the device is left out; empty while it takes part.
    """

    def __init__(self, plan: PlanParts) -> None:
        self.plan = plan
        self.problem = ""


class Members:
    """The devices that share work, and the devices that are left out because they failed."""

    def __init__(self, plans: Sequence[PlanParts]) -> None:
        self.all = [Member(plan) for plan in plans]
        self._lock = threading.Lock()

    @property
    def usable(self) -> list[Member]:
        """The devices that take part."""
        return [member for member in self.all if not member.problem]

    def leave_out(self, member: Member, error: Exception) -> None:
        """Gives a device no further work, and warns the user. The last device is kept, because its
        errors say what is wrong."""
        with self._lock:
            if member.problem or self.usable == [member]:
                return
            member.problem = str(error)
        warnings.warn(f"{member.plan.device.name} is left out, and its work is done on the other "
                      f"devices: {error}", GossamerWarning, stacklevel=2)


class BatchTask:
    """A batch that one of the devices computes.

    begin: queues the batch on a lane.
    result: receives the function that waits for the batch's outputs, or an error.
    name: adds the caller's name of the batch to an error.
    errors: the errors with which the batch failed, by device.
    """

    def __init__(self, begin: Begin, result: Future[Finish],
                 name: Callable[[Exception], Exception] = lambda error: error) -> None:
        self.begin = begin
        self.result = result
        self.name = name
        self.errors: dict[Member, Exception] = {}


class SharedWork:
    """The tasks of several devices.

    A task that fails with a DeviceError is tried on each of the other devices, until one succeeds.
    A device is left out in two cases: it is lost, or another device succeeded with a task at which
    the first device had failed. A device with too little memory for a task is not left out.

    members: the devices.
    next_task: returns the next task for a device, or None where no task waits. The lock `changed`
    is held during the call.
    changed: a condition, which is notified when next_task may return a task.
    is_over: whether no further task will come.
    """

    def __init__(self, members: Members, next_task: Callable[[Member], BatchTask | None]) -> None:
        self.members = members
        self.changed = threading.Condition()
        self.is_over = False
        self._next_task = next_task
        self._again: deque[BatchTask] = deque()
        self._in_work = 0
        self._is_ended = False

    def take(self, member: Member, *, wait: bool) -> BatchTask | None:
        """Returns the next task for a device; None if no task waits. With `wait` the call waits for
        a task, and returns None when no further task will come."""
        with self.changed:
            while not self._is_ended and not member.problem:
                task = next((task for task in self._again if member not in task.errors), None)
                if task is not None:
                    self._again.remove(task)
                else:
                    task = self._next_task(member)
                if task is not None:
                    self._in_work += 1
                    return task
                if not wait or (self.is_over and not self._in_work and not self._again):
                    break
                self.changed.wait()
        if member.problem:
            self._fail_hopeless()
        return None

    def done(self, task: BatchTask, finish: Finish) -> None:
        """Sets the result of a task, and leaves out the devices that failed at the task."""
        for member, error in task.errors.items():
            if not isinstance(error, OutOfMemoryError):
                self.members.leave_out(member, error)
        self._settle()
        task.result.set_result(finish)

    def failed(self, task: BatchTask, member: Member, error: Exception) -> None:
        """Gives the task to another device, or sets the task's error where no other device can do
        the task."""
        if isinstance(error, DeviceLostError):
            self.members.leave_out(member, error)
        if isinstance(error, DeviceError):
            task.errors[member] = error
            with self.changed:
                self._again.append(task)
        self._settle()
        if not isinstance(error, DeviceError):
            task.result.set_exception(task.name(error))

    def _settle(self) -> None:
        """Ends the work on a task."""
        with self.changed:
            self._in_work -= 1
            if not self._again and not self.is_over:
                # no thread waits for the end of this task
                return
        self._fail_hopeless()

    def _fail_hopeless(self) -> None:
        """Sets the error of each task that has failed on every device that still takes part."""
        with self.changed:
            usable = self.members.usable
            hopeless = [task for task in self._again if all(map(task.errors.__contains__, usable))]
            for task in hopeless:
                self._again.remove(task)
            self.changed.notify_all()
        for task in hopeless:
            task.result.set_exception(task.name(next(iter(task.errors.values()))))

    def end(self) -> None:
        """Makes take() return None from now on."""
        with self.changed:
            self._is_ended = True
            self.changed.notify_all()


class DeviceWorker(threading.Thread):
    """The thread of one device. The thread queues each batch on one of several lanes, so that one
    batch is copied while others are computed, and collects the results. A device has only one
    thread, since switching between threads would take longer than the calls of the driver.

    depth: how many batches the device has at once. A processor has one batch at once, because each
    batch takes longer where several are computed at once.
    sizes: the number of batch sizes for which the thread keeps lanes.
    """

    def __init__(self, work: SharedWork, member: Member, depth: int, sizes: int = 2) -> None:
        super().__init__(name="gossamer computes", daemon=True)
        self._work = work
        self._member = member
        self._at_once = 1 if member.plan.device.on_processors else depth
        self._lanes = Lanes(member.plan, sizes * self._at_once)

    def prepare(self, batches: Iterable[int]) -> None:
        """Makes the lanes for batch sizes before the thread starts, as many as memory holds;
        further lanes are made when they are needed."""
        with contextlib.suppress(OutOfMemoryError):
            for batch in batches:
                self._lanes.prepare(batch, self._at_once)

    def run(self) -> None:
        """Computes tasks until no further task will come."""
        queued: deque[tuple[BatchTask, Collect]] = deque()
        while True:
            if len(queued) == self._at_once:
                self._collect(*queued.popleft())
            task = self._work.take(self._member, wait=not queued)
            if task is not None:
                try:
                    queued.append((task, task.begin(self._lanes)))
                except Exception as error:
                    self._work.failed(task, self._member, error)
            elif queued:
                self._collect(*queued.popleft())
            else:
                break
            # the arrays of a batch are not kept alive while the thread waits for the next batch
            del task
        self._lanes.clear()

    def _collect(self, task: BatchTask, collect: Collect) -> None:
        """Waits for a batch, and sets its result or its error."""
        try:
            finish = collect()
        except Exception as error:
            self._work.failed(task, self._member, error)
        else:
            self._work.done(task, finish)
