"""The process of one device of a group, as the process that feeds it sees it, and their arrays."""

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
from contextlib import suppress
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
"""The module whose function `work` is the program of the processes."""
_COPIERS = 8
"""Maximum number of threads that copy callers' arrays to shared memory."""
_PART_BYTES = 2**20
"""Minimum bytes that a thread copies."""
_ENDS_SECONDS = 5.0
"""Maximum seconds between the end of a process's channel and its own end."""

Placed = tuple[np.ndarray, Place]
"""An array in shared memory, and its place there."""


class Form:
    """What is known of a batch size.

    batch: the size.
    inputs, outputs: shape and dtype of each, in order.
    free: arrays for the outputs that no batch uses.
    lanes: arrays for the inputs that no batch uses.
    choices: the algorithms of the layers, by the plan that has chosen them.
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
        """Return the graph of a plan, for its processes."""
        if plan not in self._networks:
            self._networks[plan] = SharedObject(plan.graph)
        return self._networks[plan]

    def form(self, batch: int) -> Form:
        """Return what is known of a batch size, which is planned if it is new."""
        found = self._forms.get(batch)
        if found is None:
            with self._lock:
                if batch not in self._forms:
                    self._forms[batch] = Form(self._plans, batch)
                found = self._forms[batch]
        return found

    def empty(self, shape: Sequence[int], dtype: np.typing.DTypeLike) -> Placed:
        """Return an uninitialised array."""
        try:
            return self.memory.empty(shape, dtype)
        except OSError as error:
            raise OutOfMemoryError(
                f"{self._plans[0].graph.name}: there is too little memory to share with the "
                f"processes of the devices: {error.strerror}") from None

    def pinned(self, batch: int) -> tuple[np.ndarray, ...]:
        """Return arrays of zeros for the inputs."""
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
        """Return inputs as the network takes them; those in other memory are copied."""
        found = []
        for spec, array in zip(form.inputs, arrays, strict=True):
            place = None
            if array.dtype == spec.stored_dtype and array.shape == spec.stored_shape:
                place = self.memory.place(array)
            found.append(self._copied(array, spec) if place is None else (array, place))
        return found

    def _copied(self, source: np.ndarray, spec: TensorSpec) -> Placed:
        """Return a copy, which several threads make if the array is large."""
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
        """End the threads that copy, and close the files for processes; arrays stay valid."""
        self._copiers.shutdown(wait=False)
        for shared in (*self._networks.values(),
                       *(each for form in tuple(self._forms.values())
                         for each in form.choices.values())):
            shared.close()


class Batch:
    """A batch that a process computes.

    form: what is known of its size.
    inputs, outputs: arrays in shared memory.
    error: the error of the process's answer.
    """

    _numbers = itertools.count(1)

    def __init__(self, form: Form, inputs: Sequence[Placed], outputs: list[Placed]) -> None:
        self.number = next(self._numbers)
        self.form = form
        self.inputs = inputs
        self.outputs = outputs
        self.error: Exception | None = None

    def collect(self) -> list[np.ndarray]:
        """Return copies of the outputs, or raise the error."""
        if self.error is not None:
            raise self.error
        results = [array.copy() for array, _ in self.outputs]
        self.form.free.append(self.outputs)
        return results


class ProcessMember(Member):
    """A device of a group with its process, which only the thread of the group uses.

    plan: the plan that has chosen the algorithms.
    error: why the device gets no process any more; None while it may have one.
    is_ready: whether the process has opened the device and takes batches.
    deaths: number of processes that have ended by themselves.
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
        """Start the process. Raises OSError or GossamerError if that is not possible."""
        network, memory = arrays.network(self.plan), arrays.memory
        folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        self.channel, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # the last words of a process are for its error; with GOSSAMER_DEBUG all are for the user
        self._said = None if debug.level() else tempfile.TemporaryFile()  # noqa: SIM115
        with other:
            # -P keeps Python from adding the working directory, and a separate process group keeps
            # keyboard interrupts away
            self._popen = subprocess.Popen(
                [sys.executable, "-P", "-c", f"from {WORKER} import work; work()",
                 str(other.fileno()), str(memory.descriptor)],
                env={**variables, **os.environ, "PYTHONPATH": folders}, process_group=0,
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
                pass_fds=(other.fileno(), memory.descriptor))
        self._known = set()
        policy = self.plan.policy
        self._send(("open", self.calls.device.name, network.path,
                    Policy(threads=policy.threads, boundary=policy.boundary)))

    def compute(self, batch: Batch) -> None:
        """Send a batch."""
        form = batch.form
        if form.batch not in self._known:
            self._known.add(form.batch)
            self._send(("choices", form.choices[self.plan].path))
        self._send((batch.number, form.batch,
                    [tuple(place) for _, place in (*batch.inputs, *batch.outputs)]))

    def _send(self, message: tuple[Any, ...]) -> None:
        # where the process has ended, its answers end too, and that is noticed
        with suppress(OSError):
            self.channel.send(pickle.dumps(message))

    def received(self) -> Any:
        """Return the next answer, or None if the process has ended.

        Raises BlockingIOError if there is no answer.
        """
        try:
            data = self.channel.recv(MESSAGE_BYTES, socket.MSG_DONTWAIT)
        except ConnectionError:
            return None
        return pickle.loads(data) if data else None

    def ended(self) -> str:
        """Wait for the end of a process whose channel is closed, and say how it ended."""
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

    def stop(self) -> None:
        """Kill the process, wait for its end, and close its files."""
        self.is_ready = False
        if self._popen is not None:
            if self._popen.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
            self.forget()

    def forget(self) -> None:
        """Close the files of a process that has ended, or that another process has started."""
        self.is_ready = False
        if self._popen is not None:
            for file in (self.channel, self._popen.stdin, self._said):
                if file is not None:
                    file.close()
            # subprocess would warn that the process still runs
            self._popen.returncode = self._popen.returncode or 0
            self._popen = None


class _Lane:
    """Memory for a batch that several requests fill; takes the place of a context."""

    def __init__(self, arrays: GroupArrays, batch: int) -> None:
        self._arrays = arrays
        self.form = arrays.form(batch)

    @cached_property
    def pinned(self) -> tuple[np.ndarray, ...]:
        """Arrays for the inputs, with zeros or what an earlier batch had."""
        with suppress(IndexError):
            return self.form.lanes.pop()
        return self._arrays.pinned(self.form.batch)

    def give_back(self) -> None:
        """Let another batch have the arrays."""
        if "pinned" in self.__dict__:
            self.form.lanes.append(self.pinned)


class ProcessLanes:
    """What begins batches in a process; takes the place of `Lanes`.

    begun_batch: the batch that was sent last.
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
        """Send a batch, and return the function for its outputs."""
        collect = self.sent(lane.form, self._arrays.placed(lane.form, arrays))

        def outputs() -> list[np.ndarray]:
            results = collect()
            lane.give_back()
            return results

        return outputs

    def sent(self, form: Form, inputs: Sequence[Placed]) -> Callable[[], list[np.ndarray]]:
        """Send a batch in shared memory; return the function for its outputs."""
        self.begun_batch = batch = Batch(form, inputs, self._arrays.outputs(form))
        self._member.compute(batch)
        return batch.collect
