"""The devices of a group, each with its own process, as the parent process sees them.

One Python interpreter cannot feed several fast GPUs. Therefore each device has a process, which
computes batches in shared memory (`group_worker.py`). As in groups without processes, each stream
or batcher has a thread for each device (`device_workers.py`); in place of lanes, the thread has a
channel to the device's process, over which short messages are sent. Calls use channels that are
kept for them.
"""

from __future__ import annotations

import itertools
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import send_handle
from queue import SimpleQueue
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
from gossamer.io.python_process import FORK_LOCK, PythonProcess
from gossamer.io.shared_memory import SharedMemory
from gossamer.io.shared_object import SharedObject
from gossamer.plan.choose.saved_options import stored
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.device_workers import (
    CLOSED_AT_EXIT,
    Begin,
    Member,
    Members,
    ReplacedError,
    seconds_of,
)
from gossamer.tensor import TensorSpec

WORKER = "gossamer.plan.group_worker"
"""The module whose function `work` each of the processes runs."""
_COPIERS = 8
"""Maximum number of threads that copy callers' arrays to shared memory."""
_PART_BYTES = 2**20
"""Minimum number of bytes that each thread copies."""
_MOST_AT_ONCE = 32
"""Maximum number of batches in flight on a channel. A socket holds more messages than these batches
need, so that neither end waits while it sends."""
_CALLS_AT_ONCE = 3
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


class GroupArrays:
    """Arrays in memory that the processes of a group share.

    plans: one plan for each kind of device.
    plan: the first plan, whose programs have the specs of inputs and outputs.
    networks: the graph of each plan as a shared object, which the plan's processes load.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.memory = SharedMemory()
        self.networks = {plan: SharedObject(plan.graph) for plan in plans}
        self.plan = plans[0]
        self._threads = max(1, min(_COPIERS, processors()))
        self._copiers = ThreadPoolExecutor(self._threads, "gossamer-copies")

    def empty(self, shape: Sequence[int], dtype: np.typing.DTypeLike) -> np.ndarray:
        """Return an uninitialised array in shared memory."""
        try:
            return self.memory.empty(shape, dtype)
        except OSError as error:
            raise OutOfMemoryError(
                f"{self.plan.graph.name}: there is too little memory to share with the "
                f"processes of the devices: {error.strerror}") from None

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return arrays of zeros for the inputs of a batch."""
        arrays = _Lane(self, batch).pinned
        for array in arrays:
            array[...] = 0
        return arrays

    def placed(self, array: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """Return an input in shared memory, with the dtype and shape of the spec.

        An input that is elsewhere, or has another dtype or shape, is copied.
        """
        is_there = (isinstance(array, np.ndarray) and array.dtype == spec.stored_dtype
                    and array.shape == spec.stored_shape and self.memory.place(array) is not None)
        return array if is_there else self._copied(array, spec)

    def _copied(self, source: np.ndarray, spec: TensorSpec) -> np.ndarray:
        """Return a copy in shared memory. Several threads copy a large array."""
        target = self.empty(spec.stored_shape, spec.stored_dtype)
        parts = min(target.nbytes // _PART_BYTES, self._threads, len(target) if target.ndim else 1)
        if parts < 2:
            np.copyto(target, source)
            return target
        try:
            list(self._copiers.map(np.copyto, np.array_split(target, parts),
                                   np.array_split(source, parts)))
        except RuntimeError:
            # the threads were ended meanwhile
            np.copyto(target, source)
        return target

    def close(self) -> None:
        """End the threads that copy, and free files and memory; arrays in use stay valid."""
        self._copiers.shutdown(wait=False)
        for network in self.networks.values():
            network.close()
        self.memory.release()


class ProcessMember(Member):
    """A device of a group, and the process of the device.

    The process is started when it is first needed. A process that was ready and has ended is
    replaced, but only once.

    plan: the plan that has chosen the algorithms.
    arrays: the arrays that the processes of the group share.
    process: the process; None if there is none. It may have ended.
    error: why no more processes are started; None while they may be started.
    is_ready: whether the process has opened the device.
    deaths: number of processes that have ended unexpectedly.
    """

    def __init__(self, plan: Plan, arrays: GroupArrays, variables: Mapping[str, str]) -> None:
        super().__init__(plan.calls("be shared by several devices"))
        self.plan = plan.choosing
        self.arrays = arrays
        self.error: Exception | None = None
        self.is_ready = False
        self.deaths = 0
        self.process: PythonProcess | None = None
        self._variables = variables
        self._last = Exception()
        # reentrant, because the garbage collector may end a group at any time
        self._lock = threading.RLock()
        self._for_calls: SimpleQueue[_Channel] = SimpleQueue()
        for _ in range(_CALLS_AT_ONCE):
            self._for_calls.put(_Channel(self))

    @property
    def pid(self) -> int | None:
        """Process ID of `process`."""
        return None if self.process is None else self.process.pid

    def at_once(self, depth: int) -> int:
        return min(depth, _MOST_AT_ONCE)

    def lanes(self, most_idle: int) -> Any:
        return _Channel(self)

    def compute(self, begin: Begin) -> Any:
        channel: Any = self._for_calls.get()
        try:
            return begin(channel)()
        finally:
            self._for_calls.put(channel)

    def seconds(self, size: int) -> float:
        inputs = self.arrays.pinned(size)
        return seconds_of(lambda: self.compute(
            lambda channel: channel.begun(channel.take(size), inputs)))

    def start(self) -> None:
        """Start the process if there is none; set `error` if that fails."""
        with self._lock:
            if self.process is None and self.error is None:
                try:
                    self.process = self._started()
                except (OSError, GossamerError) as error:
                    self.error = DeviceError(
                        f"no process can be started for {self.calls.device.name}: {error}")
            if self.error is not None:
                # end() may have been called meanwhile
                self.end(self.error)

    def connected(self) -> tuple[PythonProcess, Connection]:
        """Return the process, which is started if necessary, and a new channel to it.

        Raises `error` if there is no process.
        """
        with self._lock:
            self.start()
            if self.error is not None:
                raise _anew(self.error)
            assert self.process is not None
            with FORK_LOCK:
                channel, other = Pipe()
                # if the process has ended, the channel is closed with `other`
                with other, suppress(OSError):
                    send_handle(self.process.channel, other.fileno(), self.process.pid)
            return self.process, channel

    def _started(self) -> PythonProcess:
        memory, network = self.arrays.memory, self.arrays.networks[self.plan]
        policy = self.plan.policy
        process = PythonProcess(
            WORKER, [str(memory.descriptor)], variables=self._variables,
            descriptors=[memory.descriptor],
            # with GOSSAMER_DEBUG, the process writes to the stderr of this process
            is_quiet=not debug.level())
        with suppress(OSError):
            process.channel.send((
                self.calls.device.name, network.path,
                Policy(threads=policy.threads, boundary=policy.boundary)))
        return process

    def lost(self, process: PythonProcess) -> Exception:
        """Return the error of batches that a process has not answered before its end."""
        with self._lock:
            if process is self.process:
                # this thread is the first one that sees the end
                self._last = DeviceLostError(
                    f"the process of {self.calls.device.name} {process.ending()}")
                if self.error is None:
                    debug.logger.warning("%s", self._last)
                    self.deaths += 1
                    if self.is_ready and self.deaths == 1:
                        self._last = ReplacedError(str(self._last))
                    else:
                        self.error = self._last
                self._forget()
            return _anew(self.error or self._last)

    def end(self, error: Exception) -> None:
        """Kill the process, and start no other one.

        error: the error of all further batches.
        """
        self.error = error
        process = self.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """Wait for the end of the process after end()."""
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        self.is_ready = False
        if self.process is not None:
            self.process.close()
            self.process = None


class _Channel:
    """A channel to the process of a device, over which one thread computes batches.

    Used in place of `Lanes`.
    """

    def __init__(self, member: ProcessMember) -> None:
        self.calls: Calls = member.calls
        self._member = member
        self._numbers = itertools.count(1)
        self._process: PythonProcess
        self._connection: Connection | None = None
        self._is_ready = False
        # the batch sizes whose choices the process has received from this channel
        self._known: set[int] = set()
        # the arrays of batches that the process has not answered: even if nobody waits for an
        # answer any more, the process writes to the arrays
        self._sent: dict[int, list[np.ndarray]] = {}
        self._answers: dict[int, Exception | None] = {}

    def ready(self, seconds: float | None) -> bool:
        """Return whether the process accepts batches, after waiting for at most so many seconds.

        Raises an error if no process can be started. With None, there is no limit.
        """
        while self._connection is not None and self._process is not self._member.process:
            # another process has replaced the one of this channel: receive its end
            self._receive()
        if not self._is_ready:
            if self._connection is None:
                self._process, self._connection = self._member.connected()
            if self._connection.poll(seconds):
                self._receive()
        return self._is_ready

    def take(self, batch: int) -> _Lane:
        """Return the lane for a batch."""
        return _Lane(self._member.arrays, batch)

    def begun(self, lane: _Lane, arrays: Sequence[np.ndarray]) -> Callable[[], list[np.ndarray]]:
        """Send a batch, and return the function that waits for its outputs and returns copies."""
        shared, plan, batch = self._member.arrays, self._member.plan, lane.batch
        inputs = list(map(shared.placed, arrays, lane.inputs))
        outputs = [shared.empty(spec.shape, spec.stored_dtype) for spec in lane.outputs]
        self.calls.last_batch = batch
        while not self.ready(None):
            pass
        assert self._connection is not None
        choices = None if batch in self._known else stored({batch: plan.program(batch)},
                                                           plan.device)
        number = next(self._numbers)
        self._sent[number] = [*inputs, *outputs]
        # sending fails if the process has ended; then there is no answer
        with suppress(OSError):
            # faster than send(), which prepares for objects of multiprocessing
            self._connection.send_bytes(pickle.dumps((
                number, batch, choices, list(map(shared.memory.place, self._sent[number])))))
            self._known.add(batch)

        def collect() -> list[np.ndarray]:
            while number not in self._answers:
                self._receive()
            error = self._answers.pop(number)
            if error is not None:
                raise error
            return [array.copy() for array in outputs]

        return collect

    def _receive(self) -> None:
        """Wait for the next answer, or for the end of the process."""
        assert self._connection is not None
        try:
            number, error, problem = self._connection.recv()
        except (EOFError, OSError):
            lost = self._member.lost(self._process)
            self._answers.update({number: _anew(lost) for number in self._sent})
            self._sent.clear()
            self._known.clear()
            self._is_ready, self._connection = False, None
            return
        if problem:
            with suppress(GossamerWarning):
                warnings.warn(problem, GossamerWarning, stacklevel=2)
        if number:
            self._sent.pop(number)
            self._answers[number] = error
        elif error is None:
            self._member.is_ready = self._is_ready = True
        else:
            kind = "" if isinstance(error, GossamerError) else f"{type(error).__name__}: "
            self._member.end(error if isinstance(error, DeviceError) else DeviceError(
                f"{self.calls.device.name}: {kind}{error}"))


class _Lane:
    """The arrays of a batch, whose size is planned first; used in place of a Context.

    inputs, outputs: specs of the network's inputs and outputs, in order.
    """

    def __init__(self, arrays: GroupArrays, batch: int) -> None:
        program, graph = arrays.plan.program(batch), arrays.plan.graph
        self.batch = batch
        self.inputs = [program.specs[program.inputs[info.name]] for info in graph.inputs]
        self.outputs = [program.specs[program.outputs[info.name]] for info in graph.outputs]
        self._arrays = arrays

    @cached_property
    def pinned(self) -> tuple[np.ndarray, ...]:
        """Uninitialised arrays for the inputs."""
        return tuple(self._arrays.empty(spec.stored_shape, spec.stored_dtype)
                     for spec in self.inputs)


class DeviceProcesses(Members):
    """The devices of a group, each with a process that starts when the group is first used.

    If a process ends, its batches are computed again.

    plans: for each device, a plan of the same network.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.arrays = GroupArrays(list({plan.choosing: None for plan in plans}))
        # all processes may use the same number of threads on the host
        share = str(max(1, processors() // len(plans)))
        variables = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", share)}
        self.processes = [ProcessMember(plan, self.arrays, variables) for plan in plans]
        super().__init__(self.processes)
        self._name = plans[0].graph.name
        self._pid = os.getpid()
        self._is_closed = False
        CLOSED_AT_EXIT.add(self)

    def checked(self, item: Any) -> Begin:
        self._check_usable()
        for member in self.processes:
            member.start()
        return super().checked(item)

    def call(self, inputs: tuple[Any, ...], named: Mapping[str, Any]) -> Any:
        begin = self.checked(self.all[0].calls.in_order(inputs, named))
        return self.computed(lambda member: member.compute(begin))

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        self._check_usable()
        return self.arrays.pinned(batch)

    def free_contexts(self, calls: Calls) -> None:
        calls.device.synchronize()
        calls.contexts.clear()

    def _check_usable(self) -> None:
        """Raise an error if the group is closed, or was made before a fork of this process."""
        if self._is_closed:
            raise self._closed()
        if os.getpid() != self._pid:
            raise DeviceError(
                f"{self._name}: the processes of its devices belong to the process from which this "
                "one was forked; start processes with multiprocessing.get_context('spawn') or "
                "joblib")

    def _closed(self) -> InputError:
        return InputError(
            f"{self._name}: the group is closed; make another group, or move this call before "
            "group.close() and inside the group's with block")

    def end(self) -> None:
        self._is_closed = True
        for member in self.processes:
            member.end(self._closed())

    def close(self) -> None:
        self.end()
        # in a forked child, the memory belongs to the parent
        if os.getpid() == self._pid:
            for member in self.processes:
                member.close()
            self.arrays.close()
