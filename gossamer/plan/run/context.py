"""Execution contexts: the buffers, workspace and captured graph of a plan at one batch size.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.errors import InputError
from gossamer.io.text import shape_text
from gossamer.measure import Task, Timing, interleave
from gossamer.model.graph import Graph
from gossamer.ops.part.host import Ready
from gossamer.plan.program import Program
from gossamer.plan.run.binding import in_order
from gossamer.plan.run.host_transfers import (
    MOST_STAGED_BYTES,
    Finish,
    HostTransfers,
    Transfer,
    filled,
    page_locked_array,
)
from gossamer.plan.run.prepared_steps import PreparedSteps, ProgramBuffers, of_layer
from gossamer.tensor import pack

_MOST_DRAWN = 2**20
"""Maximum number of random values drawn for an input; in a larger input the values repeat."""

_REPEATS = 10
"""Number of timing samples for each step; a whole execution has twice as many."""

NewOutputs = tuple[tuple[Any, ...], tuple[int, ...]]
"""Arrays of a caller's library, and their addresses in the device's memory."""
Replay = Callable[[Sequence[Any]], tuple[Any, ...]]
"""Function that takes the arrays of a call and returns its outputs."""


def single(outputs: Sequence[Any]) -> Any:
    """Return the only output, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Context:
    """The memory of one execution: all buffers that the execution writes, and its captured graph.

    A context serves one execution at a time. Executions that overlap, or that have other batch
    sizes, need contexts of their own.

    graph: the network, which defines the order of inputs and outputs; an output may occur twice.
    stream: the stream on which run() works.
    inputs, outputs: the values of the network's inputs and outputs, in order.
    input_specs, output_specs: shape, dtype and layout of these values.
    buffers: the memory.
    steps: the prepared steps, with their weights.
    last_stream: the stream of the last execution.
    """

    def __init__(self, graph: Graph, program: Program, device: Device, stream: Any = None) -> None:
        self.graph = graph
        self.program = program
        self.device = device
        self.stream = stream
        self._lock = threading.Lock()
        self.buffers = ProgramBuffers(graph.name, program, device)
        self.inputs = [program.inputs[info.name] for info in graph.inputs]
        self.outputs = [program.outputs[info.name] for info in graph.outputs]
        self.input_specs = [program.specs[value] for value in self.inputs]
        self.output_specs = [program.specs[value] for value in self.outputs]
        self._inputs = list(map(self.buffers.of, self.inputs))
        self._outputs = list(map(self.buffers.of, self.outputs))
        self._transfers = HostTransfers(device, self._inputs, self._outputs, stream)
        self.steps = PreparedSteps(program, device, self.buffers)
        self._whole = whole_part(self)
        self._graph: Callable[..., None] | None = None
        self._transfer_graph: Transfer | None = None
        self._executions = 0
        self.last_stream = stream

    @cached_property
    def _views(self) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """The host memory of the inputs and outputs as arrays."""
        return ([*map(host_array, self._inputs, self.input_specs)],
                [host_array(buffer, spec.shape, spec.stored_dtype)
                 for buffer, spec in zip(self._outputs, self.output_specs, strict=True)])

    @cached_property
    def pinned(self) -> tuple[np.ndarray, ...]:
        """Arrays for the inputs in page-locked memory, initially zeros."""
        return self.page_locked()

    def page_locked(self) -> tuple[np.ndarray, ...]:
        """Return new page-locked arrays of zeros for the inputs."""
        return tuple(page_locked_array(self.device, spec.stored_shape, spec.stored_dtype)
                     for spec in self.input_specs)

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name for NumPy inputs by name.

        The arrays are copied to the device and back. Raises InputError if an input is missing, or
        if its shape or dtype is not that of this context's program.
        """
        self.device.check_usable()
        arrays = in_order(self.graph, (), inputs)
        for info, array, spec in zip(self.graph.inputs, arrays, self.input_specs, strict=True):
            if tuple(array.shape) != spec.stored_shape or array.dtype != spec.stored_dtype:
                raise InputError(f"input {info.name!r} is {shape_text(array.shape)} {array.dtype}, "
                                 f"a context of batch {self.program.batch} takes "
                                 f"{shape_text(spec.stored_shape)} {spec.stored_dtype}")
        outputs = self.compute(arrays)
        return {info.name: output for info, output in zip(self.graph.outputs, outputs, strict=True)}

    def compute(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray] | None = None,
                graph: Transfer | None = None) -> Sequence[np.ndarray]:
        """Return the outputs, in order, for NumPy arrays.

        arrays: the inputs in order, already checked: they have the inputs' shapes, and dtypes that
        convert to the inputs' dtypes.
        results: contiguous arrays that receive the outputs; by default new arrays.
        graph: function that enqueues a graph captured for these arrays and results.
        """
        if self._whole is not None:
            outputs = self._whole(arrays)
            return outputs if results is None else filled(results, outputs)
        with self._lock:
            return self._begun(arrays, results, graph)()

    def begin(self, arrays: Sequence[np.ndarray], computing: Any = None,
              results: Sequence[np.ndarray] | None = None) -> Finish:
        """Enqueue an execution, and return a function for its outputs.

        The function waits for the outputs and returns them as compute() does. The function has to
        be called before the next execution begins.

        computing: a stream that several contexts share for computing, so that one context computes
        while another copies large inputs and outputs. If the contexts computed at the same time on
        their own streams, their computations would also end at the same time, and the device would
        be idle during the copies. None means this context's own stream.
        results: as for compute().
        """
        self.device.check_usable()
        if self._whole is not None:
            computed = self.compute(arrays, results)
            return lambda: computed
        if all(array.nbytes <= MOST_STAGED_BYTES for array in arrays):
            computing = None
        with self._lock:
            return self._begun(arrays, results, computing=computing)

    def _begun(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray] | None = None,
               graph: Transfer | None = None, computing: Any = None) -> Finish:
        """Enqueue an execution; the caller holds the lock.

        Without `results`, a graph of the copies and steps is captured once the kernels are loaded,
        and later calls replay it.
        """
        self._follow(self.stream)
        if results is None:
            graph = self._transfer_graph
        if graph is None:
            given, targets = self._contiguous(arrays), results or [
                np.empty(spec.shape, spec.stored_dtype) for spec in self.output_specs]
            if results is None and self._executions > 1 and self.steps.can_be_captured:
                graph = self._transfer_graph = self._transfers.captured(
                    given, targets, self.steps.queue, in_place=False)
            if graph is None:
                return self._transfers.begin(given, targets, partial(
                    self._run, computing=computing))
        return graph(arrays, results)

    def bound_on_host(self, arrays: Sequence[np.ndarray],
                      results: Sequence[np.ndarray]) -> Callable[[], Any]:
        """Return a function that computes with fixed host arrays.

        The function reads the current contents of the arrays.

        arrays, results: as for compute().
        """
        graph = None
        if not self.device.compiles and self._whole is None:
            return partial(self._in_memory, arrays, results)
        if self.device.locks_pages and self.steps.can_be_captured:
            if not self._executions:
                # no graph can be captured before all kernels are loaded
                self.compute(arrays)
            with self._lock:
                graph = self._transfers.captured(self._contiguous(arrays), results,
                                                 self.steps.queue, in_place=True)
        return partial(self.compute, arrays, results, graph)

    def _in_memory(self, arrays: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        """Compute results on the host without any checks."""
        given, made = self._views
        with self._lock:
            for own, array in zip(given, arrays, strict=True):
                own[...] = array
            self.steps.queue(None)
            for own, array in zip(made, results, strict=True):
                array[...] = own

    def run_on_device(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
                      stream: Any) -> None:
        """Execute the program on device arrays, in stream order.

        Each input and each output is copied once within the device's memory.
        """
        self.device.check_usable()
        with self._lock:
            self._follow(stream)
            for own, buffer, spec in zip(self._inputs, inputs, self.input_specs, strict=True):
                self.device.copy(own, buffer, spec.nbytes, stream)
            self._run(stream)
            for own, buffer, spec in zip(self._outputs, outputs, self.output_specs, strict=True):
                self.device.copy(buffer, own, spec.nbytes, stream)

    def bound(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
              stream: Any) -> Callable[[], Any]:
        """Return a function that executes the program on the stream.

        If a graph can be captured, the function reads inputs and writes outputs in place where
        PreparedSteps.in_place() allows it; other inputs and outputs are copied.
        """
        if not self.steps.can_be_captured:
            return partial(self.run_on_device, inputs, outputs, stream)
        with self._lock:
            self._follow(stream)
            self._load(stream)
            launch = self.device.replayed(self.steps.in_place(
                list(zip(self.inputs, inputs, strict=True)),
                list(zip(self.outputs, outputs, strict=True))), stream)

        def replay() -> None:
            with self._lock:
                self._follow(stream)
                launch()

        return replay

    def replayed(self, inputs: Sequence[Buffer], stream: Any,
                 new_outputs: Callable[[], NewOutputs]) -> Replay | None:
        """Return a function that replays a graph on these inputs.

        The graph reads the inputs in place. The function returns new arrays, into which the graph
        copies the outputs within the device's memory. None if no such graph can be captured, for
        example because the kernels are not loaded yet.

        new_outputs: allocates arrays for the outputs, and returns them with their addresses. The
        arrays of the next call are allocated while the device computes.
        """
        with self._lock:
            graph = self.steps.copying(dict(zip(self.inputs, inputs, strict=True)),
                                       self.outputs) if self._executions else None
        if graph is None:
            return None
        launch = graph.on(stream)
        next_outputs: NewOutputs | None = None

        def replay(_: Sequence[Any]) -> tuple[Any, ...]:
            nonlocal next_outputs
            with self._lock:
                self._follow(stream)
                outputs, addresses = next_outputs or new_outputs()
                if graph.addresses is not addresses:
                    graph.copy_to(addresses)
                launch()
                next_outputs = None
                try:
                    next_outputs = new_outputs()
                except RuntimeError:
                    # too little memory is free now; the next call tries to allocate again
                    return outputs
                graph.copy_to(next_outputs[1])
            return outputs

        return replay

    def _contiguous(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the inputs as contiguous arrays of the program's dtypes."""
        return [np.asarray(array, spec.stored_dtype, order="C")
                for array, spec in zip(arrays, self.input_specs, strict=True)]

    def _follow(self, stream: Any) -> None:
        """Make the stream wait for the stream that used the buffers last."""
        if self.last_stream is not stream and self.last_stream != stream:
            self.device.wait(stream, self.last_stream)
        self.last_stream = stream

    def execute(self, stream: Any = None) -> None:
        """Enqueue all steps on the current contents of the buffers.

        The first execution loads kernels. If the device has graphs and no step runs on the host,
        the second execution is captured as a graph, which is replayed from then on.
        """
        if self._graph is not None:
            self._graph(stream)
            return
        if self._executions == 1 and self.steps.can_be_captured:
            self._graph = self.device.capture(self.steps.queue)
            self._graph(stream)
        else:
            self.steps.queue(stream)
        self._executions += 1

    def profile(self) -> list[Timing]:
        """Return the time of every step in reports; see PreparedSteps.profile."""
        with self._lock:
            self._follow(None)
            self._load(None)
            return self.steps.profile(_REPEATS)

    def end_to_end(self) -> Timing:
        """Return the time of one execution between device buffers."""
        with self._lock:
            return interleave([self.ready()], repeats=2 * _REPEATS, sample_us=2e4)[0]

    def ready(self) -> Task:
        """Return one execution as a task to be timed.

        This method executes the program twice, to load the kernels and to capture the graph. No
        other code may use the context while the task is timed.
        """
        self._follow(None)
        self._load(None)
        self.execute()
        # a graph cannot be captured within another graph
        return Task(self.device, self.execute, captured=False)

    def _load(self, stream: Any) -> None:
        """Load the kernels by an execution on random numbers.

        Nothing is done if an earlier execution has loaded the kernels.
        """
        if self._executions:
            return
        for buffer, spec in zip(self._inputs, self.input_specs, strict=True):
            # drawing all numbers of a large batch would take longer than timing
            random, count = np.random.default_rng(0), min(spec.size, _MOST_DRAWN)
            numbers = (random.integers(0, 256, count, np.uint8) if spec.dtype == "uint8"
                       else random.standard_normal(count, np.float32))
            self.device.write(buffer, pack(np.resize(numbers, spec.shape), spec))
        self.execute(stream)

    def _run(self, stream: Any, computing: Any = None) -> None:
        """Enqueue the steps on a stream.

        computing: the stream that executes the steps, if it is not `stream`. `stream` executes the
        copies before and after the steps, and waits for `computing` between them.
        """
        if computing is not None:
            self.device.wait(computing, stream)
            self._run(computing)
            self.device.wait(stream, computing)
        else:
            self.execute(stream)


def whole_part(context: Context) -> Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]] | None:
    """Return ONNX Runtime's function for a whole program, or None.

    The function takes the inputs in order and returns new outputs. It raises InputError if the
    outputs cannot be computed.

    None if the program is not a single part on the host, if the part reads values other than the
    program's inputs, or if it does not write all of the program's outputs.
    """
    program, states = context.program, context.steps.states
    if context.device.compiles or len(states) != 1 or not isinstance(states[0].data, Ready):
        return None
    (step,), run = program.steps, states[0].data.session.run
    given = context.inputs
    if not (set(step.inputs) <= set(given) and set(context.outputs) <= set(step.outputs)):
        return None
    read = [(given.index(value), program.specs[value].stored_dtype) for value in step.inputs]
    written = [step.outputs.index(value) for value in context.outputs]

    def compute(arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        try:
            results = run([np.asarray(arrays[index], dtype, order="C") for index, dtype in read])
        except InputError as error:
            raise of_layer(step, error) from None
        return [results[index] for index in written]

    return compute
