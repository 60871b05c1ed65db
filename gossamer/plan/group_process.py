"""The process of one device of a group, and the arrays that it shares with the parent process.

The parent process runs this module. The device's process runs group_worker.py.
"""

from __future__ import annotations

import itertools
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.host import processors
from gossamer.errors import DeviceError, OutOfMemoryError
from gossamer.io.shared_memory import Place, SharedMemory
from gossamer.io.shared_object import SharedObject
from gossamer.plan.choose.saved_options import stored
from gossamer.plan.group_worker import MESSAGE_BYTES
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.device_workers import Member
from gossamer.tensor import TensorSpec

WORKER = "gossamer.plan.group_worker"
"""The module whose function `work` each of the processes runs."""
_COPIERS = 8
"""Maximum number of threads that copy callers' arrays to shared memory."""
_PART_BYTES = 2**20
"""Minimum number of bytes that each thread copies."""
STARTING = threading.RLock()
"""Lock that is held while a process is started. A fork waits for this lock: the child would inherit
the files of the started process, whose end this process could then not see."""
_ENDS_SECONDS = 5.0
"""Maximum time in seconds to wait for the end of a process after its channel was closed."""

Placed = tuple[np.ndarray, Place]
"""An array in shared memory, and its place in this memory."""


class Form:
    """The choices, specs and reusable arrays of one batch size.

    batch: the batch size.
    inputs, outputs: specs of the network's inputs and outputs, in order.
    free: output arrays of earlier batches, which later batches can use.
    lanes: input arrays of earlier batches, which later batches can use.
    choices: the stored choices for the layers, by the plan that has made the choices.
    """

    def __init__(self, plans: Sequence[Plan], batch: int) -> None:
        self.batch = batch
        self.free: list[list[Placed]] = []
        self.lanes: list[tuple[np.ndarray, ...]] = []
        self.choices = {plan: SharedObject(stored({batch: plan.program(batch)}, plan.device))
                        for plan in plans}
        program, graph = plans[0].program(batch), plans[0].graph
        self.inputs = [program.specs[program.inputs[info.name]] for info in graph.inputs]
        self.outputs = [program.specs[program.outputs[info.name]] for info in graph.outputs]


class GroupArrays:
    """Arrays in memory that the processes of a group share.

    plans: one plan for each kind of device.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self.memory = SharedMemory()
        self._plans = plans
        self._networks: dict[Plan, SharedObject] = {}
        self._forms: dict[int, Form] = {}
        self._lock = threading.Lock()
        self._threads = max(1, min(_COPIERS, processors()))
        self._copiers = ThreadPoolExecutor(self._threads, "gossamer-copies")

    def network(self, plan: Plan) -> SharedObject:
        """Return the graph of a plan as a shared object, which the plan's processes load."""
        if plan not in self._networks:
            self._networks[plan] = SharedObject(plan.graph)
        return self._networks[plan]

    def form(self, batch: int) -> Form:
        """Return the Form of a batch size. A new batch size is planned first."""
        found = self._forms.get(batch)
        if found is None:
            with self._lock:
                if batch not in self._forms:
                    self._forms[batch] = Form(self._plans, batch)
                found = self._forms[batch]
        return found

    def empty(self, shape: Sequence[int], dtype: np.typing.DTypeLike) -> Placed:
        """Return an uninitialised array in shared memory."""
        try:
            return self.memory.empty(shape, dtype)
        except OSError as error:
            raise OutOfMemoryError(
                f"{self._plans[0].graph.name}: there is too little memory to share with the "
                f"processes of the devices: {error.strerror}") from None

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return arrays of zeros in shared memory for the inputs."""
        arrays = tuple(self.empty(spec.stored_shape, spec.stored_dtype)[0]
                       for spec in self.form(batch).inputs)
        for array in arrays:
            array[...] = 0
        return arrays

    def outputs(self, form: Form) -> list[Placed]:
        """Return uninitialised arrays for the outputs of a batch."""
        with suppress(IndexError):
            return form.free.pop()
        return [self.empty(spec.shape, spec.stored_dtype) for spec in form.outputs]

    def placed(self, form: Form, arrays: Sequence[np.ndarray]) -> list[Placed]:
        """Return the inputs in shared memory, with the dtypes and shapes of the form.

        Inputs that are elsewhere, or have another dtype or shape, are copied.
        """
        found = []
        for spec, array in zip(form.inputs, arrays, strict=True):
            place = None
            if (isinstance(array, np.ndarray) and array.dtype == spec.stored_dtype
                    and array.shape == spec.stored_shape):
                place = self.memory.place(array)
            found.append(self._copied(array, spec) if place is None else (array, place))
        return found

    def _copied(self, source: np.ndarray, spec: TensorSpec) -> Placed:
        """Return a copy in shared memory. Several threads copy a large array."""
        target, place = self.empty(spec.stored_shape, spec.stored_dtype)
        parts = min(target.nbytes // _PART_BYTES, self._threads, len(target) if target.ndim else 1)
        if parts < 2:
            np.copyto(target, source)
            return target, place
        try:
            list(self._copiers.map(np.copyto, np.array_split(target, parts),
                                   np.array_split(source, parts)))
        except RuntimeError:
            # the threads were ended meanwhile
            np.copyto(target, source)
        return target, place

    def close(self) -> None:
        """End the threads that copy, and free files and memory; arrays in use stay valid."""
        self._copiers.shutdown(wait=False)
        forms = tuple(self._forms.values())
        for shared in (*self._networks.values(),
                       *(each for form in forms for each in form.choices.values())):
            shared.close()
        for form in forms:
            form.free.clear()
            form.lanes.clear()
        self.memory.release()


class Batch:
    """A batch that a process computes.

    form: the Form of the batch size.
    inputs, outputs: arrays in shared memory.
    error: the error in the answer of the process; None if there is none.
    number: identifies the batch in messages.
    """

    _numbers = itertools.count(1)

    def __init__(self, form: Form, inputs: Sequence[Placed], outputs: list[Placed]) -> None:
        self.number = next(self._numbers)
        self.form = form
        self.inputs = inputs
        self.outputs = outputs
        self.error: Exception | None = None

    def collect(self) -> list[np.ndarray]:
        """Return copies of the outputs, or raise the error.

        Other batches can then use the arrays of the outputs.
        """
        if self.error is not None:
            raise self.error
        results = [array.copy() for array, _ in self.outputs]
        self.form.free.append(self.outputs)
        return results


class ProcessMember(Member):
    """A device of a group, and the process of the device.

    Only the thread of the group uses the process.

    plan: the plan that has chosen the algorithms.
    error: why no more processes are started for the device; None while they may be started.
    is_ready: whether the process has opened the device and accepts batches.
    deaths: number of the device's processes that have ended unexpectedly.
    """

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan.calls("be shared by several devices"))
        self.plan = plan.choosing
        self.error: DeviceError | None = None
        self.is_ready = False
        self.deaths = 0
        self._known: set[int] = set()
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process ID; None if there is no process. The process may have ended."""
        return None if self._popen is None else self._popen.pid

    def start(self, arrays: GroupArrays, variables: Mapping[str, str]) -> None:
        """Start the process. Raises OSError or GossamerError if it cannot be started.

        variables: environment variables of the process. If this process has a variable of the same
        name, its value is used instead.
        """
        network, memory = arrays.network(self.plan), arrays.memory
        folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        with STARTING, ExitStack() as stack:
            self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            stack.enter_context(self.channel)
            # the last line that a process writes to stderr becomes part of the error's message;
            # with GOSSAMER_DEBUG, the process writes to the stderr of this process instead
            self._said = None if debug.level() else stack.enter_context(tempfile.TemporaryFile())
            with other:
                # with -P, Python does not add the working directory to sys.path; in a separate
                # process group, the process receives no keyboard interrupts
                self._popen = subprocess.Popen(
                    [sys.executable, "-P", "-c", f"from {WORKER} import work; work()",
                     str(other.fileno()), str(memory.descriptor)],
                    env={**variables, **os.environ, "PYTHONPATH": folders}, process_group=0,
                    stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
                    pass_fds=(other.fileno(), memory.descriptor))
            stack.pop_all()
        self._known = set()
        policy = self.plan.policy
        self._send(("open", self.calls.device.name, network.path,
                    Policy(threads=policy.threads, boundary=policy.boundary)))

    def compute(self, batch: Batch) -> None:
        """Send a batch to the process, preceded by the choices of a new batch size."""
        form = batch.form
        if form.batch not in self._known:
            self._known.add(form.batch)
            self._send(("choices", form.choices[self.plan].path))
        self._send((batch.number, form.batch,
                    [tuple(place) for _, place in (*batch.inputs, *batch.outputs)]))

    def _send(self, message: tuple[Any, ...]) -> None:
        # sending fails if the process has ended; received() then returns None
        with suppress(OSError):
            self.channel.send(pickle.dumps(message))

    def received(self) -> Any:
        """Return the next answer, or None if the process has ended.

        Raises BlockingIOError if there is no answer yet.
        """
        try:
            data = self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            return None
        return pickle.loads(data) if data else None

    def ended(self) -> str:
        """Wait for the end of the process, and return text that says how the process ended.

        The other end of the channel must be closed. A process that has not ended after
        _ENDS_SECONDS is killed.
        """
        assert self._popen is not None
        with suppress(subprocess.TimeoutExpired):
            self._popen.wait(_ENDS_SECONDS)
        status, lines = self._popen.poll(), []
        if self._said is not None:
            self._said.seek(0)
            lines = self._said.read().decode(errors="replace").strip().splitlines()
        self.stop()
        how = ("does not answer" if status is None else f"was ended by signal {-status}"
               if status < 0 else f"ended with status {status}")
        said = f": {lines[-1]}" if lines else ""
        return f"the process of {self.calls.device.name} {how}{said}"

    def kill(self) -> None:
        """Kill the process."""
        self.is_ready = False
        if self._popen is not None and self._popen.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self._popen.pid, signal.SIGKILL)

    def stop(self) -> None:
        """Kill the process, wait for its end, and close its files."""
        self.kill()
        if self._popen is not None:
            self._popen.wait()
            self.forget()

    def forget(self) -> None:
        """Close the files of the process.

        The process must have ended, or this process must be a fork of the one that started it.
        """
        self.is_ready = False
        if self._popen is not None:
            for file in (self.channel, self._popen.stdin, self._said):
                if file is not None:
                    file.close()
            # without a return code, subprocess would warn that the process still runs
            self._popen.returncode = self._popen.returncode or 0
            self._popen = None


class _Lane:
    """Input arrays of a batch, which several requests fill; used in place of a Context."""

    def __init__(self, arrays: GroupArrays, batch: int) -> None:
        self._arrays = arrays
        self.form = arrays.form(batch)

    @cached_property
    def pinned(self) -> tuple[np.ndarray, ...]:
        """Arrays for the inputs. They contain zeros, or the inputs of an earlier batch."""
        with suppress(IndexError):
            return self.form.lanes.pop()
        return self._arrays.pinned(self.form.batch)

    def give_back(self) -> None:
        """Make the arrays available to other batches."""
        if "pinned" in self.__dict__:
            self.form.lanes.append(self.pinned)


class ProcessLanes:
    """Sends batches to a process; used in place of `Lanes`.

    begun_batch: the batch that was sent last; the group sets it to None before each task.
    """

    def __init__(self, arrays: GroupArrays, member: ProcessMember) -> None:
        self._arrays = arrays
        self._member = member
        self.calls: Calls = member.calls
        self.begun_batch: Batch | None = None

    def take(self, batch: int) -> _Lane:
        """Return a lane for a batch size."""
        return _Lane(self._arrays, batch)

    def begun(self, lane: _Lane, arrays: Sequence[np.ndarray]) -> Callable[[], list[np.ndarray]]:
        """Send a batch, and return a function that returns the outputs.

        The function may be called after the process has answered.
        """
        collect = self.sent(lane.form, self._arrays.placed(lane.form, arrays))

        def outputs() -> list[np.ndarray]:
            results = collect()
            lane.give_back()
            return results

        return outputs

    def sent(self, form: Form, inputs: Sequence[Placed]) -> Callable[[], list[np.ndarray]]:
        """Send a batch whose inputs are in shared memory.

        Returns a function as begun() does.
        """
        self.begun_batch = batch = Batch(form, inputs, self._arrays.outputs(form))
        self._member.compute(batch)
        return batch.collect
