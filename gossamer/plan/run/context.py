"""One running instance of a plan at one batch size: its buffers, workspace and captured graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.base import Buffer, Device
from gossamer.errors import InputError
from gossamer.io.text import shape_text
from gossamer.measure import Task, Timing, interleave
from gossamer.ops.part.host import Ready
from gossamer.ops.weights import Weights
from gossamer.plan.candidate import BuildCost
from gossamer.plan.fusion import source_of
from gossamer.plan.program import Program
from gossamer.plan.run.host_transfers import HostTransfers, TransferGraph, copies_in_chunks
from gossamer.plan.run.prepared_steps import DeviceGraphs, PreparedSteps, ProgramBuffers
from gossamer.tensor import pack

_MOST_DRAWN = 2**20
"""The most random numbers that are drawn for an input; a larger input repeats them."""

NewOutputs = tuple[tuple[Any, ...], tuple[int, ...]]
"""Arrays of a caller's library, and their addresses in the device's memory."""


def single(outputs: Sequence[Any]) -> Any:
    """Return the outputs as callers get them: the only output itself, or a tuple of several."""
    return outputs[0] if len(outputs) == 1 else tuple(outputs)


class Context:
    """The memory of one execution: everything that the execution writes, and its captured graph.

    A context serves one execution at a time, so that each thread, batch size and stream needs a
    context of its own.

    stream: the stream on which run() works.
    """

    def __init__(self, name: str, program: Program, device: Device, stream: Any = None) -> None:
        self.program = program
        self.device = device
        self.stream = stream
        self._lock = threading.Lock()
        self._buffers = ProgramBuffers(name, program, device)
        self._transfers = HostTransfers(
            device, {name: self.buffer(value) for name, value in program.inputs.items()},
            {name: self.buffer(value) for name, value in program.outputs.items()})
        self._steps = PreparedSteps(program, device, self._buffers)
        self._whole = WholePart.of(program, device, [state.data for state in self._steps.states])
        self._graph: Callable[..., None] | None = None
        self._executions = 0
        self._graphs = DeviceGraphs(program, device, self._buffers, self._steps.queue)
        self.last_stream = stream
        """The stream of the last execution."""
        self.foreign_copies = 0
        """Number of copies within the device that were made for arrays of other libraries."""

    @property
    def builds(self) -> list[BuildCost | None]:
        """The cost of preparing each step; None for steps that compute nothing."""
        return self._steps.builds

    @property
    def weights(self) -> list[Weights]:
        """The weights of each step."""
        return self._steps.weights

    @property
    def constant_bytes(self) -> int:
        """Bytes of the uploaded constants."""
        return self._buffers.constant_bytes

    @property
    def activation_bytes(self) -> int:
        """Bytes of the memory that the values share."""
        return self._buffers.activation_bytes

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the memory in which a step keeps the intermediate results of its kernels."""
        return self._buffers.workspace_bytes

    @property
    def batch(self) -> int:
        return self.program.batch

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name for NumPy inputs by name, with one copy to the device and one
        copy back.

        Raises InputError where an input is missing, or where its shape or dtype is not the shape or
        dtype that this context's program accepts.
        """
        self.device.check_usable()
        self._check(inputs)
        return self.run_checked(inputs)

    def begin(self, inputs: Mapping[str, np.ndarray],
              computing: Any = None) -> Callable[[], dict[str, np.ndarray]]:
        """Queue an execution, and return a function that waits for the execution and returns the
        outputs as run() does. The function has to be called before the next execution begins.

        computing: a stream on which several contexts compute one after another, for large inputs
        and outputs: one context then computes while another copies. Contexts that compute at the
        same time would also end at the same time, and the device would wait while all of them copy.
        None means this context's own stream.

        Raises InputError as run() does.
        """
        self.device.check_usable()
        self._check(inputs)
        if self._whole is not None:
            computed = self.run_checked(inputs)
            return lambda: computed
        results = self._new_results()
        execute, steps = self._execute_or_show, self._graph_steps()
        if computing is not None and copies_in_chunks(inputs.values()):
            execute, steps = partial(self._execute_in_turn, computing), None
        with self._lock:
            self._follow(self.stream)
            finish = self._transfers.begin(inputs, results, execute=execute, steps=steps,
                                           stream=self.stream)

        def collect() -> dict[str, np.ndarray]:
            with self._lock:
                finish()
            return results

        return collect

    def run_checked(self, inputs: Mapping[str, np.ndarray],
                    outputs: Mapping[str, np.ndarray] | None = None,
                    bound: TransferGraph | None = None) -> dict[str, np.ndarray]:
        """Return the outputs as run() does, for arrays that were checked before.

        outputs: contiguous arrays that receive the outputs, by name; by default new arrays.
        bound: the graph of a bound call, whose arrays are always the same; None for other calls.
        """
        if self._whole is not None and debug.level() < 2:
            computed = dict(zip(self.program.outputs, self._whole(
                [inputs[name] for name in self.program.inputs]), strict=True))
            for name, array in (outputs or {}).items():
                array[...] = computed[name]
            return dict(outputs or computed)
        results = self._new_results() if outputs is None else outputs
        with self._lock:
            self._follow(self.stream)
            self._transfers.begin(inputs, results, bound=bound, execute=self._execute_or_show,
                                  steps=self._graph_steps(), stream=self.stream)()
        return dict(results)

    def _new_results(self) -> dict[str, np.ndarray]:
        specs = self.program.specs
        return {name: np.empty(specs[value].shape, specs[value].stored_dtype)
                for name, value in self.program.outputs.items()}

    def _graph_steps(self) -> Callable[[Any], None] | None:
        """Return the function that queues all steps; None where no graph of the steps and of
        copies can be captured."""
        is_graph = self._graphs.are_possible and self._executions > 1 and debug.level() < 2
        return self._steps.queue if is_graph else None

    @property
    def is_whole(self) -> bool:
        """Whether run_whole() computes the program."""
        return self._whole is not None

    def run_whole(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return new outputs of a program that is one part, which the host computes, for inputs
        that were checked before."""
        assert self._whole is not None
        return self._whole(arrays)

    def run_staged(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
        """Return the outputs for arrays of shapes and dtypes that run_checked() has computed
        before. A program that is one part reads the arrays as they are; for other programs a
        captured graph copies the arrays through page-locked memory. Return None where no graph was
        captured."""
        if self._whole is not None:
            return self.run_whole(arrays)
        staged = self._transfers.staged
        if staged is None:
            return None
        with self._lock:
            if self.last_stream is not self.stream:
                self._follow(self.stream)
            for target, array in zip(staged.inputs, arrays, strict=True):
                target[...] = array
            staged.replay()
            self.device.synchronize(self.stream)
            return tuple([output.copy() for output in staged.outputs])

    def run_on_device(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer],
                      stream: Any) -> None:
        """Execute the program on arrays in the device's memory, in the stream's order. Inputs at
        the addresses of an earlier call are read in place by a graph that was captured for them;
        other inputs, and all outputs, cost one copy within the device."""
        self.device.check_usable()
        program = self.program
        with self._lock:
            self._follow(stream)
            self.foreign_copies += len(program.outputs)
            graph = self._graphs.of(inputs, is_loaded=self._executions > 0)
            if graph is not None:
                graph.copy_to(tuple(outputs[name].address for name in program.outputs))
                graph.on(stream)()
                return
            self.foreign_copies += len(program.inputs)
            for name, value in program.inputs.items():
                self.device.copy(self.buffer(value), inputs[name], program.specs[value].nbytes,
                                 stream)
            self._execute_or_show(stream)
            for name, value in program.outputs.items():
                self.device.copy(outputs[name], self.buffer(value), program.specs[value].nbytes,
                                 stream)

    def bound(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer],
              stream: Any) -> Callable[[], None]:
        """Return a function that executes the program on the stream. It reads the inputs and
        writes the outputs in place in the device's memory."""
        if not self._graphs.are_possible or debug.level() >= 2:
            return partial(self.run_on_device, inputs, outputs, stream)
        with self._lock:
            self._follow(stream)
            if not self._executions:
                self._fill_inputs()
                self._execute(stream)
            launch = self.device.replayed(self._graphs.in_place(inputs, outputs), stream)

        def replay() -> None:
            with self._lock:
                self._follow(stream)
                launch()

        return replay

    def replayed(self, addresses: tuple[int, ...], stream: Any,
                 new_outputs: Callable[[], NewOutputs]) -> Callable[[], tuple[Any, ...]] | None:
        """Return a function that executes the program on inputs at these addresses, by the graph
        that was captured for them, and returns new outputs; None where no graph was captured.

        new_outputs: returns arrays for the outputs, and their addresses. The arrays of the next
        call are made while the device computes.
        """
        with self._lock:
            graph = self._graphs.known(addresses)
        if graph is None:
            return None
        launch, count = graph.on(stream), len(self.program.outputs)
        next_outputs: NewOutputs | None = None

        def replay() -> tuple[Any, ...]:
            nonlocal next_outputs
            with self._lock:
                if self.last_stream != stream:
                    self._follow(stream)
                outputs, addresses = next_outputs or new_outputs()
                if graph.addresses is not addresses:
                    graph.copy_to(addresses)
                launch()
                self.foreign_copies += count
                next_outputs = None
                try:
                    next_outputs = new_outputs()
                except RuntimeError:
                    # too little memory is free now: the next call tries to allocate again
                    return outputs
                graph.copy_to(next_outputs[1])
            return outputs

        return replay

    def _check(self, inputs: Mapping[str, np.ndarray]) -> None:
        for name, value in self.program.inputs.items():
            spec = self.program.specs[value]
            if name not in inputs:
                raise InputError(f"input {name!r} is missing; this network takes "
                                 f"{', '.join(map(repr, self.program.inputs))}")
            array = inputs[name]
            if tuple(array.shape) != spec.stored_shape or array.dtype != spec.stored_dtype:
                raise InputError(f"input {name!r} is {shape_text(array.shape)} {array.dtype}, a "
                                 f"context of batch {self.batch} takes "
                                 f"{shape_text(spec.stored_shape)} {spec.stored_dtype}")

    def _follow(self, stream: Any) -> None:
        """Make the stream wait for the last stream that used these buffers."""
        if self.last_stream is not stream and self.last_stream != stream:
            self.device.wait(stream, self.last_stream)
        self.last_stream = stream

    def execute(self, stream: Any = None) -> None:
        """Queue all steps on the present contents of the buffers. The first execution loads
        kernels. If the device has graphs and no step runs on the host, the second execution is
        captured as a graph, and this graph is replayed from then on."""
        self._execute(self.stream if stream is None else stream)

    def _execute(self, stream: Any) -> None:
        if self._graph is not None:
            self._graph(stream)
            return
        if self._executions == 1 and self._graphs.are_possible:
            self._graph = self.device.capture(self._steps.queue)
            self._graph(stream)
        else:
            self._steps.queue(stream)
        self._executions += 1

    def buffer(self, value: str) -> Buffer:
        """Return the memory of a value."""
        return self._buffers.of(value)

    def profile(self, *, repeats: int = 10) -> list[Timing]:
        """Return the time of every step that reports show; see PreparedSteps.profile."""
        with self._lock:
            self._follow(None)
            self._fill_inputs()
            return self._steps.profile(repeats)

    def end_to_end(self, *, repeats: int = 20) -> Timing:
        """Return the time of one execution, with inputs and outputs on the device."""
        with self._lock:
            return interleave([self.ready()], repeats=repeats, sample_us=2e4)[0]

    def ready(self) -> Task:
        """Return one execution as a task to be timed, after two executions that load the kernels
        and capture the graph. No other code may use the context while the task is timed."""
        self._follow(None)
        self._fill_inputs()
        self._execute(None)
        self._execute(None)
        # a graph cannot be captured within another graph
        return Task(self.device, self._execute, captured=False)

    def _fill_inputs(self) -> None:
        """Write random numbers to the inputs where nothing has been executed yet."""
        if self._executions:
            return
        for value in self.program.inputs.values():
            spec = self.program.specs[value]
            # drawing all numbers of a large batch would take longer than timing
            random, count = np.random.default_rng(0), min(spec.size, _MOST_DRAWN)
            numbers = (random.integers(0, 256, count, np.uint8) if spec.dtype == "uint8"
                       else random.standard_normal(count, np.float32))
            self.device.write(self.buffer(value), pack(np.resize(numbers, spec.shape), spec))

    def _execute_or_show(self, stream: Any) -> None:
        """Execute the steps; from debug level 2 on they run one by one and each prints a line."""
        if debug.level() < 2:
            self.execute(stream)
            return
        self._steps.show(stream)
        self._executions += 1

    def _execute_in_turn(self, computing: Any, stream: Any) -> None:
        """Execute the steps on a stream that several contexts share, between this context's copies
        on its own stream."""
        self.device.wait(computing, stream)
        self._execute_or_show(computing)
        self.device.wait(stream, computing)


class WholePart:
    """ONNX Runtime's session for a program that is one part."""

    def __init__(self, program: Program, ready: Ready) -> None:
        (step,) = program.steps
        self._run = ready.session.run
        self._layer = step.layer
        given = list(program.inputs.values())
        self._order = [given.index(value) for value in step.inputs]
        self._dtypes = [program.specs[value].stored_dtype for value in step.inputs]
        self._outputs = [step.outputs.index(value) for value in program.outputs.values()]

    @staticmethod
    def of(program: Program, device: Device, data: Sequence[Any]) -> WholePart | None:
        """Return the session of a program that is one part on the host; None for another program,
        and where the part reads other values than the program's inputs or does not write all its
        outputs. data: the `data` of each step's state."""
        if device.compiles or len(data) != 1 or not isinstance(data[0], Ready):
            return None
        (step,) = program.steps
        fits = set(step.inputs) <= set(program.inputs.values()) and (
            set(program.outputs.values()) <= set(step.outputs))
        return WholePart(program, data[0]) if fits else None

    def __call__(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Return new outputs for the program's inputs, both in the program's order. Raises
        InputError where ONNX Runtime cannot compute them."""
        try:
            results = self._run([
                np.asarray(arrays[index], dtype, order="C")
                for index, dtype in zip(self._order, self._dtypes, strict=True)])
        except InputError as error:
            raise InputError(f"{source_of(self._layer, error)}: {error}") from None
        return tuple([results[index] for index in self._outputs])
