"""One running instance of a plan at one batch size: its buffers, workspace and captured graph."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.base import Buffer, Device
from gossamer.device.copying_graph import CopyingGraph
from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io.text import shape_text
from gossamer.measure import Task, Timing, Work, interleave
from gossamer.ops.algorithm import State
from gossamer.ops.part.problem import PartProblem
from gossamer.ops.part.profile import problem_times
from gossamer.plan.part import source_of
from gossamer.plan.prepare import BuildCost, Prepared, build, side_by_side
from gossamer.plan.program import Program, Step
from gossamer.plan.run.buffers import ProgramBuffers
from gossamer.plan.run.host_transfers import HostTransfers, TransferGraph, copies_in_pieces
from gossamer.plan.run.step_line import step_line
from gossamer.plan.run.whole_part import WholePart
from gossamer.tensor import pack

_MOST_FOREIGN = 8
"""Number of captured graphs that are stored for inputs at addresses of other libraries."""
_VECTOR_BYTES = 16
"""Alignment of the inputs of kernels, which load four floats at once; arrays of other libraries may
have less."""
_MOST_COPIED_BYTES = 2**31 - 1
"""Largest output that a copy within a graph takes."""
_MOST_DRAWN = 2**20
"""Random numbers that are drawn for an input; a larger one repeats them."""

NewOutputs = tuple[tuple[Any, ...], tuple[int, ...]]
"""Arrays of a caller's library, and their addresses in the device's memory."""


class Context:
    """The memory of one execution: everything that it writes, and its captured graph.

    A context serves one execution at a time, so that each thread, batch size and stream needs one.

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
        self.builds: list[BuildCost | None] = []
        """The cost of preparing each step; None where there is nothing to compute."""
        self.weights = [step.layer.weights_on(step.device) for step in program.steps]
        self._works = [self._work(step, built) for step, built in zip(
            program.steps, self._built(), strict=True)]
        self._whole = WholePart.of(program, device, [state.data for _, state, _ in self._works])
        self._graph: Callable[..., None] | None = None
        self._executions = 0
        self._foreign: OrderedDict[tuple[int, ...], CopyingGraph | None] = OrderedDict()
        self.last_stream = stream
        """The stream of the last execution."""
        self.foreign_copies = 0
        """Number of copies within the device that were made for arrays of other libraries."""

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
        """Bytes of the memory in which steps keep what lies between their kernels."""
        return self._buffers.workspace_bytes

    @property
    def batch(self) -> int:
        return self.program.batch

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Returns the outputs by name for NumPy inputs by name, with one copy each way.

        Raises InputError for a missing input, or one of another shape or dtype than this
        context's batch size takes.
        """
        self.device.check_usable()
        self._check(inputs)
        return self.run_checked(inputs)

    def begin(self, inputs: Mapping[str, np.ndarray],
              computing: Any = None) -> Callable[[], dict[str, np.ndarray]]:
        """Queues an execution, and returns a function that waits for it and returns what run()
        does. It is called before the next execution begins.

        computing: a stream on which several contexts compute one after another, where what they
        copy is large. Were they to compute at once, all would be done at the same time, and the
        device would wait while all copy. None for this context's own stream.

        Raises InputError as run() does.
        """
        self.device.check_usable()
        self._check(inputs)
        if self._whole is not None:
            computed = self.run_checked(inputs)
            return lambda: computed
        results = self._new_results()
        execute, steps = self._execute_or_show, self._graph_steps()
        if computing is not None and copies_in_pieces(inputs.values()):
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
        """Returns what run() does, for arrays that were checked before.

        outputs: contiguous arrays that receive the outputs, by name; by default new ones.
        bound: the graph of a bound call, which gives the same arrays each time.
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
            self._transfers.run(inputs, results, bound=bound, execute=self._execute_or_show,
                                steps=self._graph_steps(), stream=self.stream)
        return dict(results)

    def _new_results(self) -> dict[str, np.ndarray]:
        specs = self.program.specs
        return {name: np.empty(specs[value].shape, specs[value].stored_dtype)
                for name, value in self.program.outputs.items()}

    def _graph_steps(self) -> Callable[[Any], None] | None:
        """Returns what queues all steps, where a graph of them and of copies can be captured."""
        is_graph = self._is_capturable and self._executions > 1 and debug.level() < 2
        return self._run_steps if is_graph else None

    @property
    def is_whole(self) -> bool:
        """Whether run_whole() computes the program."""
        return self._whole is not None

    def run_whole(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Returns new outputs of a program that is one part of the host, for inputs that were
        checked before."""
        assert self._whole is not None
        return self._whole(arrays)

    def run_staged(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...] | None:
        """Returns the outputs for arrays of shapes and dtypes that run_checked() has computed, by a
        graph that copies them through page-locked memory, or as they are where the program is one
        part; None where there is no such way."""
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
        """Executes the program on arrays in the device's memory, in the stream's order. Inputs at
        the addresses of an earlier call are read in place by a graph that was captured for them;
        other inputs, and all outputs, cost one copy within the device."""
        self.device.check_usable()
        program = self.program
        with self._lock:
            self._follow(stream)
            self.foreign_copies += len(program.outputs)
            graph = self._graph_for(inputs)
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

    def _graph_for(self, inputs: Mapping[str, Buffer]) -> CopyingGraph | None:
        """Returns a graph that reads these inputs in place and copies the outputs, or None. It is
        captured when inputs at the same addresses come a second time."""
        if not self._copies_outputs or debug.level() >= 2:
            return None
        key = tuple(buffer.address for buffer in inputs.values())
        if any(address % _VECTOR_BYTES for address in key):
            return None
        if key in self._foreign:
            self._foreign.move_to_end(key)
            if self._foreign[key] is None and self._executions:
                self._foreign[key] = self._copying(inputs)
        else:
            self._foreign[key] = None
            while len(self._foreign) > _MOST_FOREIGN:
                self._foreign.popitem(last=False)
        return self._foreign[key]

    def _copying(self, inputs: Mapping[str, Buffer]) -> CopyingGraph:
        """Returns a graph of all steps that reads these inputs in place, and copies the outputs."""
        program = self.program
        # the memory stays the caller's, who passes it again with every call
        callers = {program.root(value): self.device.wrap(inputs[name].address,
                                                         inputs[name].nbytes, None)
                   for name, value in program.inputs.items()}
        with self._buffers.replaced(callers):
            return self.device.capture_copying(self._run_steps, [
                (self.buffer(value), program.specs[value].nbytes)
                for value in program.outputs.values()])

    def _captured(self, inputs: Mapping[str, Buffer],
                  outputs: Mapping[str, Buffer]) -> Callable[..., None]:
        """Returns a graph of all steps that reads these inputs and writes these outputs in place,
        where memory allows that, and copies the others."""
        program, own = self.program, self._buffers
        callers: dict[str, Buffer] = {}
        read: list[tuple[Buffer, Buffer, int]] = []
        written: list[tuple[Buffer, Buffer, int]] = []
        for name, value in program.inputs.items():
            if inputs[name].address % _VECTOR_BYTES:
                read.append((own.of(value), inputs[name], program.specs[value].nbytes))
            else:
                callers[program.root(value)] = inputs[name]
        # an input or a constant is not written, and parts of a value lie where the value does
        shared = {program.root(value) for value in (
            *program.inputs.values(), *program.constants, *program.places,
            *(place.whole for place in program.places.values()))}
        for name in outputs:
            value = program.outputs[name]
            root = program.root(value)
            if root in shared or root in callers or outputs[name].address % _VECTOR_BYTES:
                written.append((outputs[name], callers.get(root) or own.of(value),
                                program.specs[value].nbytes))
            else:
                callers[root] = outputs[name]

        def work(stream: Any) -> None:
            for target, source, nbytes in read:
                self.device.copy(target, source, nbytes, stream)
            self._run_steps(stream)
            for target, source, nbytes in written:
                self.device.copy(target, source, nbytes, stream)

        with own.replaced(callers):
            return self.device.capture(work)

    def bound(self, inputs: Mapping[str, Buffer], outputs: Mapping[str, Buffer],
              stream: Any) -> Callable[[], None]:
        """Returns a function that executes the program on the stream, with inputs that are read and
        outputs that are written where they lie in the device's memory."""
        if not self._is_capturable or debug.level() >= 2:
            return partial(self.run_on_device, inputs, outputs, stream)
        with self._lock:
            self._follow(stream)
            if not self._executions:
                self._fill_inputs()
                self._execute(stream)
            launch = self.device.replayed(self._captured(inputs, outputs), stream)

        def replay() -> None:
            with self._lock:
                self._follow(stream)
                launch()

        return replay

    def replayed(self, addresses: tuple[int, ...], stream: Any,
                 new_outputs: Callable[[], NewOutputs]) -> Callable[[], tuple[Any, ...]] | None:
        """Returns a function that executes the program on inputs at these addresses, by the graph
        that was captured for them, and returns new outputs; None where there is no such graph.

        new_outputs: returns arrays for the outputs, and their addresses. Those of the next call
        are made while the device computes.
        """
        with self._lock:
            graph = self._foreign.get(addresses)
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
                    # memory that is lacking now is asked for again by the next call
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
        """Makes the stream wait for the last one that used these buffers."""
        if self.last_stream is not stream and self.last_stream != stream:
            self.device.wait(stream, self.last_stream)
        self.last_stream = stream

    def execute(self, stream: Any = None) -> None:
        """Queues all steps on the present contents of the buffers. The first execution loads
        kernels. The second one is captured as a graph, where the device has graphs and no step
        runs on the host, and from then on the graph is replayed."""
        self._execute(self.stream if stream is None else stream)

    def _execute(self, stream: Any) -> None:
        if self._graph is not None:
            self._graph(stream)
            return
        if self._executions == 1 and self._is_capturable:
            self._graph = self.device.capture(self._run_steps)
            self._graph(stream)
        else:
            self._run_steps(stream)
        self._executions += 1

    def buffer(self, value: str) -> Buffer:
        """Returns the memory of a value."""
        return self._buffers.of(value)

    def profile(self, *, repeats: int = 10) -> list[Timing]:
        """Returns the time of every step as reports show them, each on the data that the steps
        before it computed. The time of a part is divided among its layers by the library's own
        profile."""
        with self._lock:
            self._follow(None)
            self._fill_inputs()
            timings = []
            for step, state, work in self._works:
                if step.in_place:
                    timings.append(Timing(0.0, 0.0, 0.0, repeats))
                    continue
                task = Task(self.device, work, captured=step.device is self.device)
                (timing,) = interleave([task], repeats=repeats, budget_us=2e5)
                timings += self._divided(step, state, timing) if step.layer.members else [timing]
            return timings

    def _divided(self, step: Step, state: State, timing: Timing) -> list[Timing]:
        """Returns the time of a part, divided among its layers."""
        problem = step.problem
        assert isinstance(problem, PartProblem)
        times = problem_times(problem, state.data.weights, step.variant, [
            host_array(self.buffer(value), spec)
            for value, spec in zip(step.inputs, step.variant.inputs, strict=True)])
        shown = [time for time, layer in zip(times, step.layer.members, strict=True)
                 if layer.problem is not None]
        total = sum(shown) or 1.0
        return [replace(timing, median_us=timing.median_us * time / total,
                        p25_us=timing.p25_us * time / total, p75_us=timing.p75_us * time / total)
                for time in shown]

    def end_to_end(self, *, repeats: int = 20) -> Timing:
        """Returns the time of one execution, with inputs and outputs on the device."""
        with self._lock:
            return interleave([self.ready()], repeats=repeats, sample_us=2e4)[0]

    def ready(self) -> Task:
        """Returns one execution as a task to be timed, after two executions that load the kernels
        and capture the graph. Nobody else may use the context meanwhile."""
        self._follow(None)
        self._fill_inputs()
        self._execute(None)
        self._execute(None)
        # a graph cannot be captured within another graph
        return Task(self.device, self._execute, captured=False)

    def _fill_inputs(self) -> None:
        """Writes random numbers to the inputs where nothing has been executed yet."""
        if self._executions:
            return
        for value in self.program.inputs.values():
            spec = self.program.specs[value]
            # drawing all numbers of a large batch would take longer than timing
            random, count = np.random.default_rng(0), min(spec.size, _MOST_DRAWN)
            numbers = (random.integers(0, 256, count, np.uint8) if spec.dtype == "uint8"
                       else random.standard_normal(count, np.float32))
            self.device.write(self.buffer(value), pack(np.resize(numbers, spec.shape), spec))

    @cached_property
    def _copies_outputs(self) -> bool:
        """Whether graphs can be captured that read inputs in place and copy all outputs. An output
        that is an input would be copied from memory that the caller may have freed meanwhile."""
        program = self.program
        inputs = {program.root(value) for value in program.inputs.values()}
        return self._is_capturable and all(
            0 < program.specs[value].nbytes <= _MOST_COPIED_BYTES
            and program.place(value).whole not in inputs
            for value in program.outputs.values())

    @cached_property
    def _is_capturable(self) -> bool:
        return self.device.limits.graph and not self.program.host_steps(self.device)

    def _run_steps(self, stream: Any) -> None:
        for _, _, work in self._works:
            work(stream)

    def _execute_or_show(self, stream: Any) -> None:
        """Executes the steps; from debug level 2 on they run one by one and each prints a line."""
        if debug.level() < 2:
            self.execute(stream)
            return
        for step, state, work in self._works:
            elapsed = 0.0 if step.in_place else self.device.time(work, stream)
            debug.show(step_line(step, elapsed, state, debug.level()))
        self._executions += 1

    def _execute_in_turn(self, computing: Any, stream: Any) -> None:
        """Executes the steps on a stream of several contexts, between other work of its own."""
        self.device.wait(computing, stream)
        self._execute_or_show(computing)
        self.device.wait(stream, computing)

    def _built(self) -> Sequence[Callable[[], Prepared]]:
        """Returns for each step a function that returns its prepared state and the cost of that,
        or raises the error."""
        steps = self.program.steps
        makers = [partial(build, step.algorithm, weights, step.problem,
                          step.placed_variant or step.variant, step.device)
                  for step, weights in zip(steps, self.weights, strict=True)]
        on_device = [index for index, step in enumerate(steps)
                     if step.device is self.device and not _is_idle(step)]
        built = side_by_side(self.device, [makers[index] for index in on_device])
        ready = dict(zip(on_device, built, strict=True))
        return [ready.get(index, make) for index, make in enumerate(makers)]

    def _work(self, step: Step, built: Callable[[], Prepared]) -> tuple[Step, State, Work]:
        """Returns a step with its prepared state and the function that queues it on a stream."""
        if _is_idle(step):
            self.builds.append(BuildCost(0.0, False, 0) if step.in_place else None)
            return step, State(step.problem, step.variant, step.device), lambda stream: None
        state, build_record = built()
        self.builds.append(build_record)
        if step.device is not self.device:
            return step, state, _host_work(step, state, self.device,
                                           [self.buffer(value) for value in step.inputs],
                                           [self.buffer(value) for value in step.outputs])

        # a function that refers to this context would keep its memory until Python's garbage
        # collector finds the cycle
        buffers = self._buffers

        def work(stream: Any) -> None:
            try:
                step.algorithm.launch(state, [buffers.of(value) for value in step.inputs],
                                      [buffers.of(value) for value in step.outputs],
                                      buffers.workspace, stream)
            except InputError as error:
                raise _of_layer(step, error) from None

        return step, state, work


def _is_idle(step: Step) -> bool:
    """Whether there is nothing to compute."""
    return step.in_place or all(spec.size == 0 for spec in step.variant.outputs)


def _of_layer(step: Step, error: InputError) -> InputError:
    """Returns the error that a layer has with the values that it gets, with the layer's name."""
    return InputError(f"{source_of(step.layer, error)}: {error}")


def _host_work(step: Step, state: State, device: Device, inputs: Sequence[Buffer],
               outputs: Sequence[Buffer]) -> Work:
    """Returns the work of a step that runs on the host for another device: it copies the inputs to
    the host and the outputs back."""
    host = find("host")
    host_inputs = [host.empty(spec.nbytes, step.layer.name) for spec in step.variant.inputs]
    host_outputs = [host.empty(spec.nbytes, step.layer.name) for spec in step.variant.outputs]
    workspace = host.empty(step.variant.workspace, step.layer.name)

    def work(stream: Any) -> None:
        for copy, buffer in zip(host_inputs, inputs, strict=True):
            device.read(buffer, host_array(copy, (copy.nbytes,), np.uint8), stream)
        try:
            step.algorithm.launch(state, host_inputs, host_outputs, workspace)
        except InputError as error:
            raise _of_layer(step, error) from None
        for copy, buffer in zip(host_outputs, outputs, strict=True):
            device.write(buffer, host_array(copy, (copy.nbytes,), np.uint8), stream)

    return work
