"""The steps of a program, prepared to run on one set of buffers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gossamer import debug
from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.io.text import duration_text
from gossamer.measure import Task, Timing, Work, interleave
from gossamer.ops.algorithm import State
from gossamer.ops.part.host import Ready, problem_times
from gossamer.ops.part.problem import PartProblem
from gossamer.plan.fusion import source_of
from gossamer.plan.prepare import BuildCost, Prepared, build, side_by_side
from gossamer.plan.program import Program, Step
from gossamer.plan.run.buffers import ProgramBuffers


class PreparedSteps:
    """The steps of a program, each with its prepared state; they read and write one set of buffers.

    weights: the weights of each step.
    builds: the cost of preparing each step, which is zero for steps in place; None for other steps
    that compute nothing.
    states: the prepared state of each step.
    """

    def __init__(self, program: Program, device: Device, buffers: ProgramBuffers) -> None:
        self._program = program
        self._device = device
        self._buffers = buffers
        self.weights = [step.layer.weights_on(step.device) for step in program.steps]
        self.builds: list[BuildCost | None] = []
        self.states: list[State] = []
        self._makers = [partial(build, step.algorithm, weights, step.problem,
                                step.placed_variant or step.variant, step.device)
                        for step, weights in zip(program.steps, self.weights, strict=True)]
        self._works = [self._work(step, built) for step, built in zip(
            program.steps, self._built(), strict=True)]
        program.prepared = weakref.ref(self)

    def queue(self, stream: Any) -> None:
        """Queue all steps on a stream."""
        for work in self._works:
            work(stream)

    def show(self, stream: Any) -> None:
        """Execute the steps one by one, and print a line for each."""
        for step, state, work in zip(self._program.steps, self.states, self._works, strict=True):
            elapsed = 0.0 if step.in_place else self._device.time(work, stream)
            debug.show(step_line(step, elapsed, state, debug.level()))

    def profile(self, repeats: int) -> list[Timing]:
        """Return the times that a report shows, one for each step. Each step runs on the data that
        the steps before it computed. A part has one time for each of its layers except reshapes:
        the time of the part is divided among these layers in proportion to their times in the
        library's own profile."""
        timings: list[Timing] = []
        for step, state, work in zip(self._program.steps, self.states, self._works, strict=True):
            if step.in_place:
                timings.append(Timing(0.0, 0.0, 0.0, repeats))
                continue
            task = Task(self._device, work, captured=step.device is self._device)
            (timing,) = interleave([task], repeats=repeats, budget_us=2e5)
            timings += self._divided(step, state, timing) if step.layer.members else [timing]
        return timings

    def _divided(self, step: Step, state: State, timing: Timing) -> list[Timing]:
        """Return the time of a part, divided among its layers."""
        problem = step.problem
        assert isinstance(problem, PartProblem)
        times = problem_times(problem, state.data.weights, step.variant, [
            host_array(self._buffers.of(value), spec)
            for value, spec in zip(step.inputs, step.variant.inputs, strict=True)])
        shown = [time for time, layer in zip(times, step.layer.members, strict=True)
                 if not layer.is_reshape]
        total = sum(shown) or 1.0
        return [replace(timing, median_us=timing.median_us * time / total,
                        p25_us=timing.p25_us * time / total, p75_us=timing.p75_us * time / total)
                for time in shown]

    def _built(self) -> Sequence[Callable[[], Prepared]]:
        """Return for each step a function that returns the step's prepared state and the cost of
        preparing it, or raises the error with which preparing the step failed."""
        ready = self._built_before()
        on_device = [index for index, step in enumerate(self._program.steps)
                     if step.device is self._device and not _is_idle(step) and index not in ready]
        built = side_by_side(self._device, [self._makers[index] for index in on_device])
        ready |= dict(zip(on_device, built, strict=True))
        return [ready.get(index, make) for index, make in enumerate(self._makers)]

    def _built_before(self) -> dict[int, Callable[[], Prepared]]:
        """Return, by the indices of steps, functions that return prepared states. Another instance
        of this class has prepared these states for the same program, and this instance may use them
        too. When a program is prepared for a further thread or stream, most of the time would go
        into preparing these states again."""
        earlier = self._program.prepared and self._program.prepared()
        if earlier is None:
            return {}
        found = zip(self._makers, earlier._makers, earlier.states, earlier.builds, strict=True)
        return {index: _returning((state, cost))
                for index, (maker, other, state, cost) in enumerate(found)
                if cost is not None and maker.args == other.args and _is_read_only(state)}

    def _work(self, step: Step, built: Callable[[], Prepared]) -> Work:
        """Return the function that queues a step on a stream, and appends the step's state and
        cost to `states` and `builds`."""
        if _is_idle(step):
            self.builds.append(BuildCost(0.0, False, 0) if step.in_place else None)
            self.states.append(State(step.problem, step.variant, step.device))
            return lambda stream: None
        state, cost = built()
        self.builds.append(cost)
        self.states.append(state)
        # work() does not refer to self: a reference cycle would keep the memory until Python's
        # garbage collector finds it
        buffers = self._buffers
        if step.device is not self._device:
            return _host_work(step, state, self._device, list(map(buffers.of, step.inputs)),
                              list(map(buffers.of, step.outputs)))

        def work(stream: Any) -> None:
            try:
                step.algorithm.launch(state, [buffers.of(value) for value in step.inputs],
                                      [buffers.of(value) for value in step.outputs],
                                      buffers.workspace, stream)
            except InputError as error:
                raise _of_layer(step, error) from None

        return work


def _is_idle(step: Step) -> bool:
    """Whether the step has nothing to compute."""
    return step.in_place or all(spec.size == 0 for spec in step.variant.outputs)


def _is_read_only(state: State) -> bool:
    """Whether a state consists only of launches, and owns no buffers but packed weights. Its
    launches then write to run-time buffers alone, so that several executions may use the state at
    once."""
    return state.data is None and bool(state.launches) and all(
        argument in state.packed for launch in state.launches for argument in launch.arguments
        if isinstance(argument, Buffer))


def _returning(prepared: Prepared) -> Callable[[], Prepared]:
    return lambda: prepared


def _of_layer(step: Step, error: InputError) -> InputError:
    """Return an error of a layer about its input values, with the layer's name added."""
    return InputError(f"{source_of(step.layer, error)}: {error}")


def _host_work(step: Step, state: State, device: Device, inputs: Sequence[Buffer],
               outputs: Sequence[Buffer]) -> Work:
    """Return the work of a step that runs on the host for another device: it copies the inputs to
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


def step_line(step: Step, elapsed_us: float, state: State, level: int) -> str:
    """Return the line about a step that just ran, for the debug levels from 2 on."""
    problem = step.problem
    # a layer that launched nothing took no time
    per_ns = 1e-3 / elapsed_us if elapsed_us else 0.0
    text = (f"{step.layer.name}: {problem.describe()}, {step.algorithm.name} on "
            f"{step.device.name}: {duration_text(elapsed_us)}, "
            f"{problem.flops * per_ns:.1f} GFLOP/s, {problem.least_bytes * per_ns:.1f} GB/s")
    if level >= 3:
        text += f" [{step.config_text}]"
        text += "".join(f"; not {name}: {reason}" for name, reason in step.rejected.items())
    if level >= 4:
        text += "".join(f"; {launch.kernel.name}: {launch.kernel.registers} registers, "
                        f"{launch.kernel.spill_bytes} bytes spilled" for launch in state.launches)
    return text


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
