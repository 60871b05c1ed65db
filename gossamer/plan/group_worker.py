"""The process of one device of a group, which computes batches in shared memory.

`gossamer/plan/group_process.py` starts the process. Messages are pickled tuples, one in each packet
of a socket:

- `("open", device, network, policy)`: the first message. The answer is `(0, None, "")`, or
  `(0, error, "")` if the device or the network cannot be opened.
- `("choices", path)`: the choices for further batch sizes. There is no answer.
- `(number, batch, places)`: a batch of the size `batch`. `places` has the places of the inputs,
  then those of the outputs. The answer is `(number, error, problem)`. `error` is None if the
  outputs were written. `problem` says why batches are computed slower than possible; "" if they are
  not.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import DeviceError, DeviceLostError, GossamerError, OutOfMemoryError, cut
from gossamer.io.shared_memory import Place, SharedMemory
from gossamer.io.shared_object import load
from gossamer.model.graph import Graph
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.run.device_workers import Lanes

MESSAGE_BYTES = 2**16
"""Maximum size of a message."""
_AT_ONCE = 3
"""Number of batches in flight on a device, as in a stream of one plan."""
_KEPT_LANES = 4 * _AT_ONCE
_MOST_ERROR = 2**12
"""Maximum length of the text of an error in an answer."""


class Worker:
    """A plan on a device that reads and writes arrays in shared memory.

    graph: the network, optimised for the device.
    policy: a policy with the number of threads on the host, and with the format of the network's
    inputs and outputs.
    at_once: maximum number of batches in flight.
    problem: why batches are computed slower than possible; "" if they are not.
    """

    def __init__(self, graph: Graph, device: Device, memory: SharedMemory,
                 policy: Policy) -> None:
        self.at_once = 1 if device.on_processors else _AT_ONCE
        self.problem = ""
        self._graph = graph
        self._device = device
        self._memory = memory
        self._policy = policy
        self._choices: StoredChoices | None = None
        self._locked: set[int] = set()

    def add_choices(self, plain: Any) -> None:
        """Add the choices for a new batch size."""
        if self._choices is None:
            self._choices = StoredChoices(None, plain)
            self._plan = Plan(self._graph, self._device, self._policy, choices=self._choices)
            self._lanes = Lanes(self._plan.calls("be shared by several devices"), _KEPT_LANES)
        else:
            self._choices.add(plain)

    def begin(self, batch: int, places: Sequence[Place]) -> Callable[[], object]:
        """Enqueue a batch, and return a function that waits until the outputs are written."""
        lane = self._lanes.take(batch)
        inputs, outputs = len(lane.inputs), len(lane.outputs)
        if len(places) != inputs + outputs:
            raise ValueError(f"{len(places)} arrays for {inputs} inputs and {outputs} outputs")
        shapes = [*((spec.stored_shape, spec.stored_dtype) for spec in lane.input_specs),
                  *((spec.shape, spec.stored_dtype) for spec in lane.output_specs)]
        arrays = [self._array(Place(*place), *form)
                  for place, form in zip(places, shapes, strict=True)]
        return self._lanes.begun(lane, arrays[:inputs], arrays[inputs:])

    def _array(self, place: Place, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return an array in shared memory. Its pages are locked if the device supports this."""
        if place.block not in self._locked and self._device.locks_pages:
            self._locked.add(place.block)
            try:
                self._device.lock_pages(self._memory.view(place.block, (place.nbytes,), np.uint8))
            except OutOfMemoryError as error:
                # copies from memory that is not page-locked are slower, but correct
                self.problem = str(error)
        return self._memory.view(place.start, shape, dtype)


def _serve(channel: socket.socket, worker: Worker) -> None:
    """Compute the batches that arrive on a channel, until its other end is closed."""
    queued: deque[tuple[int, Callable[[], object]]] = deque()
    while True:
        if len(queued) == worker.at_once:
            _answer(channel, worker, *queued.popleft())
        message = _received(channel, wait=not queued)
        if message is None:
            _answer(channel, worker, *queued.popleft())
        elif message[0] == "choices":
            worker.add_choices(load(message[1]))
        else:
            queued.append((message[0], _begun(worker, *message[1:])))


def _begun(worker: Worker, batch: int, places: Sequence[Place]) -> Callable[[], object]:
    try:
        return worker.begin(batch, places)
    except Exception as error:
        problem = error

        def fail() -> None:
            raise problem

        return fail


def _answer(channel: socket.socket, worker: Worker, number: int,
            collect: Callable[[], object]) -> None:
    """Wait for a batch, and send the answer.

    After a loss of the device, only another process can use the device. This process then writes
    the error to stderr and ends.
    """
    try:
        collect()
    except DeviceLostError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    except Exception as error:
        channel.send(pickle.dumps((number, _portable(error), worker.problem)))
    else:
        channel.send(pickle.dumps((number, None, worker.problem)))


def _portable(error: Exception) -> Exception:
    """Return a copy of an error that can be pickled, with a message of limited length."""
    text = cut(str(error), _MOST_ERROR)
    if isinstance(error, GossamerError):
        with suppress(Exception):
            return pickle.loads(pickle.dumps(type(error)(text)))
    kind = DeviceError if isinstance(error, DeviceError) else GossamerError
    return kind(f"{type(error).__name__}: {text}")


def _received(channel: socket.socket, *, wait: bool) -> Any:
    """Return the next message; None if there is none and `wait` is false.

    Ends the process if the other end is closed.
    """
    try:
        data = channel.recv(MESSAGE_BYTES, 0 if wait else socket.MSG_DONTWAIT)
    except BlockingIOError:
        return None
    if not data:
        os._exit(0)
    return pickle.loads(data)


def _end_with_parent() -> None:
    """End this process when the parent's end of the pipe on stdin is closed.

    A separate thread runs this function, so that the process ends even while the device is busy.
    """
    os.read(0, 1)
    os._exit(0)


def work() -> None:
    """Serve the parent process.

    The command-line arguments are the file descriptors of the channel and of the shared memory.
    """
    # only the parent ends this process, even if all processes of a group receive a signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    channel = socket.socket(fileno=int(sys.argv[1]))
    memory = SharedMemory(int(sys.argv[2]))
    try:
        _, name, network, policy = _received(channel, wait=True)
        worker = Worker(load(network), find(name), memory, policy)
    except Exception as error:
        channel.send(pickle.dumps((0, _portable(error), "")))
        return
    channel.send(pickle.dumps((0, None, "")))
    with suppress(ConnectionError):
        _serve(channel, worker)
