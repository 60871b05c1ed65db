"""The process of one device of a group, which computes batches in shared memory.

`gossamer/plan/group_processes.py` starts the process. The standard input is a connection. Its
first message is a tuple: the device's name, the path of the network, and the policy. Each further
message carries the file descriptor of a channel, which has its own thread here. When the parent
process ends, the standard input is closed, and this process ends.

The messages of a channel are tuples:

- `(0, error, "")`: the first answer. The error is not None if the device or the network cannot be
  opened.
- `(number, batch, choices, places)`: a batch of the size `batch`. `choices` has the choices for
  this size; None if the channel has sent them before. `places` has the places of the inputs, then
  those of the outputs.
- `(number, error, problem)`: the answer. `error` is None if the outputs were written. `problem`
  says why batches are computed slower than possible; "" if they are not, or if it was said.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import DeviceLostError, OutOfMemoryError
from gossamer.io.process_pool import portable
from gossamer.io.shared_memory import Place, SharedMemory
from gossamer.io.shared_object import load
from gossamer.model.graph import Graph
from gossamer.plan.choose.saved_options import StoredChoices
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.run.device_workers import Lanes, begun

_AT_ONCE = 3
"""Number of batches of a channel in flight on a device, as in a stream of one plan."""
_KEPT_LANES = 4 * _AT_ONCE


class Worker:
    """A plan on a device that reads and writes arrays in shared memory.

    graph: the network, optimised for the device.
    policy: a policy with the number of threads on the host, and with the format of the network's
    inputs and outputs.
    at_once: maximum number of batches of a channel in flight.
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
        self._known: set[int] = set()
        self._locked: set[int] = set()
        self._lock = threading.Lock()

    def begin(self, batch: int, choices: Any, places: Sequence[Place]) -> Callable[[], object]:
        """Enqueue a batch, and return a function that waits until the outputs are written."""
        with self._lock:
            if batch not in self._known:
                self._add(batch, choices)
            lane = self._lanes.take(batch)
            inputs, outputs = len(lane.inputs), len(lane.outputs)
            if len(places) != inputs + outputs:
                raise ValueError(f"{len(places)} arrays for {inputs} inputs and {outputs} outputs")
            shapes = [*((spec.stored_shape, spec.stored_dtype) for spec in lane.input_specs),
                      *((spec.shape, spec.stored_dtype) for spec in lane.output_specs)]
            arrays = [self._array(place, *form)
                      for place, form in zip(places, shapes, strict=True)]
            return self._lanes.begun(lane, arrays[:inputs], arrays[inputs:])

    def _add(self, batch: int, plain: Any) -> None:
        """Add the choices for a new batch size."""
        if not self._known:
            self._choices = StoredChoices(None, plain)
            plan = Plan(self._graph, self._device, self._policy, choices=self._choices)
            self._lanes = Lanes(plan.calls("be shared by several devices"), _KEPT_LANES)
        else:
            self._choices.add(plain)
        self._known.add(batch)

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


def _serve(channel: Connection, opened: Future[Worker]) -> None:
    """Compute the batches that arrive on a channel, until its other end is closed."""
    with channel, suppress(ConnectionError, EOFError):
        try:
            worker = opened.result()
        except Exception as error:
            channel.send((0, portable(error), ""))
            return
        channel.send((0, None, ""))
        queued: deque[tuple[int, Callable[[], object]]] = deque()
        while True:
            if queued and (len(queued) == worker.at_once or not channel.poll()):
                _answer(channel, worker, *queued.popleft())
                continue
            number, *batch = channel.recv()
            queued.append((number, begun(worker.begin, *batch)))


def _answer(channel: Connection, worker: Worker, number: int,
            collect: Callable[[], object]) -> None:
    """Wait for a batch, and send the answer.

    After a loss of the device, only another process can use the device. This process then writes
    the error to stderr and ends.
    """
    problem: Exception | None = None
    try:
        collect()
    except DeviceLostError as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    except Exception as error:
        problem = portable(error)
    said, worker.problem = worker.problem, ""
    channel.send_bytes(pickle.dumps((number, problem, said)))


def _opened(memory: SharedMemory, device: str, network: Any, policy: Policy) -> Worker:
    return Worker(load(network), find(device), memory, policy)


def work() -> None:
    """Serve the parent process.

    The command-line argument is the file descriptor of the shared memory.
    """
    # only the parent ends this process, even if all processes of a group receive a signal
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    parent = Connection(0)
    with suppress(ConnectionError, EOFError):
        first = parent.recv()
        # this thread only receives, so that the process ends even while the device is busy
        opened = ThreadPoolExecutor(1).submit(_opened, SharedMemory(int(sys.argv[1])), *first)
        while True:
            channel = Connection(recv_handle(parent))
            threading.Thread(target=_serve, daemon=True, args=(channel, opened)).start()
    os._exit(0)
