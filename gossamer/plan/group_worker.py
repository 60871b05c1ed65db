"""The process of one device of a group: computes batches that lie in shared memory.

`gossamer/plan/group_processes.py` starts it. Messages are pickled tuples, one in each packet of a
socket:

- `("open", device, network, policy)`: the first one. It is answered with `(0, None, "")`, or with
  an error.
- `("choices", path)`: the algorithms of the layers for further batch sizes.
- `(number, batch, places)`: a batch, with the places of its inputs and then of its outputs. It is
  answered with `(number, error, problem)`. The error is None if the outputs were written; a problem
  is what makes the work slower than it could be.
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
from gossamer.errors import DeviceLostError, GossamerError, OutOfMemoryError, cut
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
    """A plan on a device, which computes arrays in shared memory.

    graph: the network, optimised for the device.
    policy: what the network's inputs, outputs and layers on the host depend on.
    problem: what makes the work slower than it could be, or "".
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
        """Add the choices of a batch size that the plan has not computed yet."""
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
        """Return an array of the shared memory, whose pages are locked where the device can."""
        if place.block not in self._locked and self._device.locks_pages:
            self._locked.add(place.block)
            try:
                self._device.lock_pages(self._memory.view(place.block, (place.nbytes,), np.uint8))
            except OutOfMemoryError as error:
                # copies from other memory are slower, and right
                self.problem = str(error)
        return self._memory.view(place.start, shape, dtype)


def _serve(channel: socket.socket, worker: Worker) -> None:
    """Compute the batches of a channel until its other end is closed."""
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

    After the loss of the device only another process can use it: this one ends, and its last words
    are the error.
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
    """Return an error that can be sent."""
    text = cut(str(error), _MOST_ERROR)
    if isinstance(error, GossamerError):
        with suppress(Exception):
            return pickle.loads(pickle.dumps(type(error)(text)))
    return GossamerError(f"{type(error).__name__}: {text}")


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

    A thread of its own waits for this, so that the process ends even while the device is busy.
    """
    os.read(0, 1)
    os._exit(0)


def work() -> None:
    """Serve the parent process; the arguments are the descriptors of the channel and the memory."""
    # the parent decides when this process ends, also if all processes of a group get a signal
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
