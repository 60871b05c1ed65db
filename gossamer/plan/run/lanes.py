"""The lanes of a device, on which batches are computed side by side, and the functions that begin a
batch on a lane."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import OutOfMemoryError
from gossamer.model.graph import Graph, as_called
from gossamer.plan.run.binding import as_called_for, batch_of, by_name, in_order, single
from gossamer.plan.run.context import Context
from gossamer.plan.run.foreign import as_taken, is_foreign, like_on_host, on_host

WARM_CALLS = 3
"""Number of executions of a new context that may take longer than later executions: the first loads
kernels, and the second captures a graph."""

Finish = Callable[[], Any]
"""Function that returns the result of a batch, in the thread of the caller."""
Collect = Callable[[], Finish]
"""Function that waits until the device has computed a batch, and returns its Finish."""
Begin = Callable[["Lanes"], Collect]
"""Function that queues the work on a batch that was checked before, and returns its Collect."""


@dataclass(frozen=True, eq=False)
class PlanParts:
    """The parts of a plan that streams and batchers use.

    network: the plan's graph.
    context_of: makes a context of a batch size on a stream of the device.
    call: computes the outputs where an input is empty.
    page_locked: makes page-locked arrays for the inputs of a batch size. The device copies these
    arrays at the full rate of its bus.
    """

    network: Graph
    device: Device
    context_of: Callable[[int, Any], Context]
    call: Callable[..., Any]
    page_locked: Callable[[int], tuple[np.ndarray, ...]]

    @cached_property
    def graph(self) -> Graph:
        """The plan's graph with inputs and outputs in the formats of callers' arrays."""
        return as_called(self.network)


class Lane:
    """A context with a stream of its own."""

    def __init__(self, plan: PlanParts, batch: int) -> None:
        self.batch = batch
        self.stream = plan.device.create_stream()
        self.context = plan.context_of(batch, self.stream)
        self._plan = plan

    @cached_property
    def arrays(self) -> tuple[np.ndarray, ...]:
        """Page-locked arrays for the lane's inputs, filled with zeros at first."""
        arrays = self._plan.page_locked(self.batch)
        for array in arrays:
            array[...] = 0
        return arrays


class Lanes:
    """The lanes of one device; each lane computes one batch at a time.

    plan: the plan of the device.
    most_idle: how many idle lanes are kept.
    computing: the stream on which lanes compute large batches one after another; None where the
    device does not copy while it computes.
    """

    def __init__(self, plan: PlanParts, most_idle: int) -> None:
        self.plan = plan
        self.computing = plan.device.create_stream() if plan.device.locks_pages else None
        self._most_idle = most_idle
        self._idle: OrderedDict[Lane, None] = OrderedDict()

    def take(self, batch: int) -> Lane:
        """Returns a lane for a batch size. The caller gives the lane back unless the lane's batch
        failed."""
        lane = next((lane for lane in reversed(self._idle) if lane.batch == batch), None)
        if lane is None:
            return self._new(batch)
        del self._idle[lane]
        return lane

    def prepare(self, batch: int, count: int) -> None:
        """Makes `count` lanes for a batch size, and computes on each lane until nothing more has to
        be allocated or captured, so that later batches do not wait for such work."""
        lanes = [self.take(batch) for _ in range(count)]
        for lane in lanes:
            named = by_name(self.plan.graph, lane.arrays)
            for _ in range(WARM_CALLS):
                lane.context.begin(named, self.computing)()
        for lane in lanes:
            self.give_back(lane)

    def give_back(self, lane: Lane) -> None:
        """Keeps a lane for another batch."""
        self._idle[lane] = None
        while len(self._idle) > self._most_idle:
            self._idle.popitem(last=False)

    def begun(self, lane: Lane, arrays: Sequence[np.ndarray]) -> Callable[[], list[np.ndarray]]:
        """Queues a batch of arrays in host memory on a lane, and returns the function that waits
        for the batch's outputs."""
        collect = lane.context.begin(by_name(self.plan.graph, arrays), self.computing)

        def outputs() -> list[np.ndarray]:
            named = collect()
            self.give_back(lane)
            return [named[info.name] for info in self.plan.graph.outputs]

        return outputs

    def _new(self, batch: int) -> Lane:
        try:
            return Lane(self.plan, batch)
        except OutOfMemoryError:
            if not self._idle:
                raise
        self._idle.clear()
        return Lane(self.plan, batch)

    def clear(self) -> None:
        """Frees the lanes that are not in use."""
        self._idle.clear()


def checked(plans: Sequence[PlanParts], item: Any, stream: Any) -> Begin:
    """Returns the function that begins a batch on any of the plans, which are plans of one network.

    stream: for a single plan, a stream of its device. Arrays on the device are ready when the work
    that is queued on the stream now has ended. With several plans, arrays have to be in host
    memory. Raises InputError where the batch does not fit the network.
    """
    plan = plans[0]
    inputs = as_called_for(plan.network, in_order(
        plan.graph, tuple(item) if isinstance(item, (tuple, list)) else (item,), {}))
    if len(plans) == 1 and inputs and is_foreign(inputs[0]) and plan.device.holds(inputs[0]):
        return _on_device(plan, inputs, stream)
    return _on_host(plan.graph, inputs)


def host_arrays(graph: Graph, inputs: Sequence[Any]) -> tuple[list[Any], int]:
    """Returns the inputs as arrays in host memory, and their batch size. Raises InputError for
    arrays that do not fit the graph or are not in host memory."""
    arrays = [on_host(array) if is_foreign(array) else array for array in inputs]
    return arrays, batch_of(graph, arrays)


def _on_host(graph: Graph, inputs: Sequence[Any]) -> Begin:
    arrays, batch = host_arrays(graph, inputs)

    def begin(lanes: Lanes) -> Collect:
        if any(array.size == 0 for array in arrays):
            return partial(_returning, lanes.plan.call(*inputs))
        collect = lanes.begun(lanes.take(batch), arrays)

        def collected() -> Finish:
            results = collect()
            if inputs and is_foreign(inputs[0]):
                results = [like_on_host(inputs[0], array) for array in results]
            return partial(single, results)

        return collected

    return begin


def _on_device(plan: PlanParts, inputs: Sequence[Any], stream: Any) -> Begin:
    device, graph = plan.device, plan.graph
    arrays = [device.incoming(as_taken(array, info.dtype), stream, name=f"input {info.name!r}",
                              dtype=info.dtype)
              for info, array in zip(graph.inputs, inputs, strict=True)]
    batch = batch_of(graph, arrays)

    def begin(lanes: Lanes) -> Collect:
        if not batch:
            return partial(_returning, plan.call(*inputs))
        lane = lanes.take(batch)
        program = lane.context.program
        results = [device.empty_array(program.specs[program.outputs[info.name]],
                                      f"output {info.name!r}", lane.stream)
                   for info in graph.outputs]
        device.wait(lane.stream, stream)
        lane.context.run_on_device(
            {info.name: array.buffer for info, array in zip(graph.inputs, arrays, strict=True)},
            {info.name: array.buffer for info, array
             in zip(graph.outputs, results, strict=True)}, lane.stream)

        def collected() -> Finish:
            # the caller's streams do not wait for the lane's stream
            device.synchronize(lane.stream)
            lanes.give_back(lane)
            # a library's current stream is known in the caller's thread only
            return lambda: single([device.like(inputs[0], array) for array in results])

        return collected

    return begin


def _returning(outputs: Any) -> Finish:
    return lambda: outputs
