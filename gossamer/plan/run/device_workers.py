"""Work that several devices share.

Each batch goes to an idle device. A device has several lanes, so that one batch is copied while
others are computed. A batch that fails on one device is computed once more on another.
"""

from __future__ import annotations

import abc
import atexit
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from gossamer.errors import DeviceError, DeviceLostError, GossamerWarning, OutOfMemoryError
from gossamer.measure import called
from gossamer.model.graph import Graph
from gossamer.plan.run import binding
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.context import Context, single

_WARM_CALLS = 3
"""Number of warm-up executions of a new context: the first loads kernels, the second captures a
graph of the steps, and the third captures a graph of the copies and steps."""

_READY_S = 0.05
"""Time in seconds after which a thread that waits for its device looks whether the work is over."""

Collect = Callable[[], Any]
"""Function that waits until the device has computed a batch, and returns the batch's result."""
Begin = Callable[["Lanes"], Collect]
"""Function that enqueues the work on a batch that is already checked, and returns the batch's
Collect."""


class Lanes:
    """The lanes of one device.

    A lane is a context with its own stream that computes one batch at a time. Several threads may
    take lanes.

    calls: the calls of the device's plan.
    most_idle: how many idle lanes are kept.
    computing: the stream on which lanes compute large batches one after another; None if the device
    does not copy while it computes.
    """

    def __init__(self, calls: Calls, most_idle: int) -> None:
        self.calls = calls
        self.computing = calls.device.create_stream() if calls.device.locks_pages else None
        self._most_idle = most_idle
        self._idle: list[Context] = []
        self._lock = threading.Lock()

    def ready(self, seconds: float) -> bool:
        """Return whether the device computes batches, after waiting for at most so many seconds."""
        return True

    def take(self, batch: int) -> Context:
        """Return a lane for a batch size.

        The caller has to call give_back() with the lane, unless the batch fails.
        """
        with self._lock:
            for index, lane in reversed(list(enumerate(self._idle))):
                if lane.program.batch == batch:
                    return self._idle.pop(index)
        stream = self.calls.device.create_stream()
        try:
            return self.calls.make_context(batch, stream)
        except OutOfMemoryError:
            if not self._idle:
                raise
        self._idle.clear()
        return self.calls.make_context(batch, stream)

    def give_back(self, lane: Context) -> None:
        """Keep a lane for another batch."""
        with self._lock:
            self._idle.append(lane)
            del self._idle[:-self._most_idle]

    def begun(self, lane: Context, arrays: Sequence[np.ndarray],
              results: Sequence[np.ndarray] | None = None) -> Callable[[], Sequence[np.ndarray]]:
        """Enqueue a batch of host arrays on a lane.

        Returns the function that waits for the batch's outputs.

        results: contiguous arrays that receive the outputs; by default new arrays.
        """
        collect = lane.begin(arrays, self.computing, results)

        def outputs() -> Sequence[np.ndarray]:
            results = collect()
            self.give_back(lane)
            return results

        return outputs


def host_arrays(graph: Graph, inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """Return the inputs as host arrays, and their batch size.

    Raises InputError for arrays that do not fit the graph or are not in host memory.
    """
    arrays = list(map(binding.on_host, inputs))
    return arrays, binding.batch_of(graph, arrays, inputs)


def _on_device(calls: Calls, inputs: tuple[Any, ...]) -> Begin:
    """Enqueue a batch of device arrays on the caller's stream.

    Arrays on the device need no copy, and therefore no lane.
    """
    stream = binding.callers_stream(inputs[0])
    outputs = calls(inputs)

    def collected() -> Any:
        # the caller may use the outputs on another stream, which does not wait for this one
        calls.device.synchronize(stream)
        return outputs

    return lambda lanes: collected


class ReplacedError(DeviceLostError):
    """The process of a device has ended, and another process will replace it."""


class Member:
    """A device of a plan or group of plans.

    Two members may have the same plan, and are separate workers.

    calls: the calls of the device's plan.
    problem: why the device is left out; empty while it is used.
    in_progress: number of Members.computed() computations in progress on the device.
    """

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.problem = ""
        self.in_progress = 0

    def at_once(self, depth: int) -> int:
        """Return the number of batches in flight of work that has this depth.

        On a CPU there is one, because computing several batches at the same time makes each of them
        slower.
        """
        return 1 if self.calls.device.on_processors else depth

    def lanes(self, most_idle: int) -> Any:
        """Return new Lanes, which only one thread uses."""
        return Lanes(self.calls, most_idle)

    def compute(self, begin: Begin) -> Any:
        """Return the result of a single batch."""
        return begin(self.lanes(1))()

    def seconds(self, size: int) -> float:
        """Return the seconds of a batch of zeros, including copies.

        This is the median of several samples.
        """
        context = self.calls.make_context(size, None)
        return seconds_of(lambda: context.begin(context.pinned)())


class Members:
    """The devices that share work.

    A device is left out if it is lost, or if it fails on a batch that another device then computes.
    A device that fails because of too little memory is not left out, nor one whose process is
    replaced.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.all = list(members)
        self._lock = threading.Lock()

    @property
    def usable(self) -> list[Member]:
        """The devices that are not left out."""
        return [member for member in self.all if not member.problem]

    def checked(self, item: Any) -> Begin:
        """Check a batch, and return the function that begins it.

        The function can begin the batch on any of the devices. With several devices, arrays have to
        be in host memory. Raises InputError if the batch does not fit the network.
        """
        calls = self.all[0].calls
        inputs = calls.in_order(tuple(item) if isinstance(item, (tuple, list)) else (item,), {})
        if len(self.all) == 1 and binding.are_on(calls.device, inputs):
            return _on_device(calls, inputs)
        arrays, batch = host_arrays(calls.graph, inputs)

        def begin(lanes: Lanes) -> Collect:
            if any(array.size == 0 for array in arrays):
                return partial(lanes.calls, inputs)
            collect = lanes.begun(lanes.take(batch), arrays)
            return lambda: single(binding.like_on_host(inputs, collect()))

        return begin

    def call(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        """Return the outputs of a call, computed on the least busy device."""
        return self.computed(lambda member: member.calls(inputs, named))

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return arrays for the inputs in memory that the devices read at their full rate."""
        return self.usable[0].calls.page_locked(batch)

    def free_contexts(self, calls: Calls) -> None:
        """Free the contexts of a plan's calls, unless the devices compute in them."""

    def end(self) -> None:
        """Make everything that runs for the devices end soon, but keep the plans' contexts."""

    def close(self) -> None:
        """End everything that runs for the devices, and wait until it has ended."""

    def computed(self, compute: Callable[[Member], Any], failed: Member | None = None,
                 error: DeviceError | None = None, ends: int = 0) -> Any:
        """Return the result of the least busy device.

        This is the device with the fewest computations in progress. If this device fails, another
        one computes the result. If that device fails too, the first error is raised, but two
        processes may end.

        compute: computes the result on a device.
        failed, error: a device that has failed before, and its error.
        ends: number of other processes that have ended during the computation.
        """
        is_replaced = isinstance(error, ReplacedError)
        if failed is not None and isinstance(error, DeviceLostError):
            self.leave_out(failed, error)
        with self._lock:
            others = [member for member in self.usable if member is not failed]
            if failed is not None and is_replaced:
                others = others or [failed]
            if error is not None and not others:
                raise error
            member = min(others, key=lambda member: member.in_progress)
            member.in_progress += 1
        try:
            result = compute(member)
        except DeviceError as new:
            if error is None or (isinstance(new, ReplacedError) and ends == 0):
                return self.computed(compute, member, new, ends + is_replaced)
            raise error from None
        finally:
            with self._lock:
                member.in_progress -= 1
        if failed is not None and error is not None:
            self.leave_out(failed, error)
        return result

    def leave_out(self, member: Member, error: Exception) -> None:
        """Give a device no more work, and warn the user.

        The last device is kept, because its errors say what is wrong. So is a device that the error
        does not make useless.
        """
        if isinstance(error, (OutOfMemoryError, ReplacedError)):
            return
        with self._lock:
            if member.problem or self.usable == [member]:
                return
            member.problem = str(error)
        warnings.warn(f"{member.calls.device.name} is left out, and its work is done on the other "
                      f"devices: {error}", GossamerWarning, stacklevel=2)


class BatchTask(NamedTuple):
    """A batch that one of the devices computes.

    begin: enqueues the batch on a lane.
    result: future of the batch's result.
    """

    begin: Begin
    result: Future[Any]


class SharedWork:
    """The tasks of several devices, with one thread for each device.

    The thread enqueues batches on several lanes, so that one batch is copied while others are
    computed. The thread also collects the results. A device has only one thread, because switching
    between threads would take longer than the calls of the driver.

    members: the devices.
    next_task: returns the next task for a device, or None if no task waits. The lock `changed` is
    held during the call.
    depth: maximum number of batches in flight on a device.
    sizes: number of batch sizes for which lanes are kept.
    changed: a condition that is notified when next_task may return a task.
    """

    def __init__(self, members: Members, next_task: Callable[[Member], BatchTask | None],
                 depth: int, sizes: int = 2) -> None:
        self.changed = threading.Condition()
        self._members = members
        self._next_task = next_task
        self._is_over = False
        self._threads = []
        for member in members.usable:
            at_once = member.at_once(depth)
            self._threads.append(threading.Thread(
                target=self._compute, args=(member, member.lanes(sizes * at_once), at_once),
                name="gossamer computes", daemon=True))

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Tell the threads that there are no more tasks."""
        with self.changed:
            self._is_over = True
            self.changed.notify_all()

    def close(self) -> None:
        """End the work, and wait for the threads."""
        self.end()
        for thread in self._threads:
            if thread.ident and thread is not threading.current_thread():
                thread.join()

    def _take(self, member: Member, *, wait: bool) -> BatchTask | None:
        """Return the next task for a device; None if no task waits.

        wait: whether to wait for a task; None is then returned when there are no more tasks.
        """
        with self.changed:
            while not member.problem:
                task = self._next_task(member)
                if task is not None or not wait or self._is_over:
                    return task
                self.changed.wait()
            # this device is left out, so another thread has to take the task that woke this one
            self.changed.notify_all()
            return None

    def _compute(self, member: Member, lanes: Any, at_once: int) -> None:
        """Compute tasks on a device until there are no more."""
        queued: deque[tuple[BatchTask, Collect]] = deque()
        while True:
            if queued and (len(queued) == at_once or not self._is_ready(member, lanes, 0)):
                self._collect(member, *queued.popleft())
                continue
            while not self._is_ready(member, lanes, _READY_S) and not self._is_over:
                pass
            task = self._take(member, wait=not queued)
            if task is not None:
                queued.append((task, begun(task.begin, lanes)))
            elif queued:
                self._collect(member, *queued.popleft())
            else:
                break
            # do not keep the batch's arrays alive while the thread waits for the next batch
            del task

    def _is_ready(self, member: Member, lanes: Any, seconds: float) -> bool:
        """Return whether a device can take tasks; one without tasks is not waited for at the end.

        A device that cannot be opened is left out. If it is the last one, its tasks fail.
        """
        try:
            return lanes.ready(seconds)
        except Exception as error:
            if isinstance(error, DeviceError):
                with suppress(GossamerWarning):
                    self._members.leave_out(member, error)
            return True

    def _collect(self, member: Member, task: BatchTask, collect: Collect) -> None:
        """Wait for a batch, and set its result.

        If the device fails, another one computes the batch once more. If that device fails too, or
        if the batch is invalid, the error is set.
        """
        try:
            try:
                result = collect()
            except DeviceError as error:
                result = self._members.computed(lambda other: other.compute(task.begin), member,
                                                error)
        except Exception as last:
            task.result.set_exception(last)
        else:
            task.result.set_result(result)


def begun(begin: Callable[..., Collect], *arguments: Any) -> Collect:
    """Return what `begin` returns, or a function that raises its error."""
    try:
        return begin(*arguments)
    except Exception as error:
        return failed(error).result


def seconds_of(call: Callable[[], object]) -> float:
    """Return the seconds of a call after its warm-up: the median of several samples."""
    for _ in range(_WARM_CALLS):
        call()
    return called(call).median_us / 1e6


def failed(error: Exception) -> Future[Any]:
    """Return a future that raises an error."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


class Closable(abc.ABC):
    """An object that a `with` block closes at its end."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free memory and end threads."""

    def __enter__(self) -> Self:
        """Return the object itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the object."""
        self.close()


CLOSED_AT_EXIT: weakref.WeakSet[Any] = weakref.WeakSet()
"""Objects to close at exit: if a device's library is unloaded while a thread still runs its code,
the process aborts. A forked child does not have the threads."""

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=CLOSED_AT_EXIT.clear)


@atexit.register
def _close_all() -> None:
    closing = list(CLOSED_AT_EXIT)
    for each in closing:
        each.end()  # an object may wait for tasks that only the end of another one fails
    for each in closing:
        each.close()
