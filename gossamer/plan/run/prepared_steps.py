"""A program prepared to run on one device.

The prepared program consists of prepared steps, captured graphs of all steps, and the buffers of
values. Values with disjoint lifetimes share memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, CopyingGraph, Device
from gossamer.device.host import host_array, part_of
from gossamer.device.jobs import Job
from gossamer.device.native.threads import Jobs
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.measure import Task, Timing, Work, interleave
from gossamer.ops.algorithm import State
from gossamer.ops.fused.problem import PartProblem
from gossamer.ops.part.host import problem_times
from gossamer.plan.fusion import source_of
from gossamer.plan.program import Program, Step, build, concurrently

_VECTOR_BYTES = 16
"""Alignment in bytes that kernels require of their inputs, because they load four floats at once.
Arrays of other libraries may have a smaller alignment."""
_MOST_COPIED_BYTES = 2**31 - 1
"""Size in bytes of the largest output that one copy within a graph supports."""


@dataclass(frozen=True)
class Lifetime:
    """A value's size in bytes, and the indices of the first and last step of its lifetime."""

    nbytes: int
    first: int
    last: int


def allocate(values: Mapping[str, Lifetime], alignment: int) -> tuple[dict[str, int], int]:
    """Return every value's offset in a shared buffer, and the buffer's size, in bytes.

    Values are placed one by one: larger values before smaller ones, and values of equal size in the
    order in which their lifetimes begin. Each value is placed at the lowest offset at which it does
    not overlap a placed value whose lifetime overlaps its own.
    """
    order = sorted(values, key=lambda name: (-values[name].nbytes, values[name].first, name))
    # first step, last step, start and end of each allocated value, in the order of the starts;
    # float64 is exact up to 2**53 bytes, and no device has that much memory
    allocated = np.zeros((4, 0))
    offsets: dict[str, int] = {}
    total = 0
    for name in order:
        value = values[name]
        firsts, lasts, starts, ends = allocated
        alive = (firsts <= value.last) & (lasts >= value.first)
        gaps = np.append(0, np.maximum.accumulate(ends[alive]))
        fits = gaps[:-1] + value.nbytes <= starts[alive]
        offset = offsets[name] = int(gaps[np.argmax(fits) if fits.any() else -1])
        end = offset + value.nbytes
        total = max(total, end)
        allocated = np.insert(allocated, np.searchsorted(starts, offset), (
            value.first, value.last, offset, -(-end // alignment) * alignment), axis=1)
    return offsets, total


class ProgramBuffers:
    """Buffers of a program's values, constants and workspace.

    name: the network's name, for the error of a device with too little memory.
    """

    def __init__(self, name: str, program: Program, device: Device) -> None:
        self._program = program
        self.chains = _chains(program, device)
        """The ranges of steps that are computed image by image. A value that is read and written
        only within one such range has memory for one image."""
        lifetimes = _lifetimes(program, self.chains)
        offsets, total = allocate(lifetimes, device.alignment)
        arena = device.empty(max(total, device.alignment),
                             f"activations of {name} at batch {program.batch}")
        self.activation_bytes = total
        self.workspace_bytes = max((step.variant.workspace for step in program.steps
                                    if step.device is device), default=0)
        self.workspace: Buffer | None = None
        if self.workspace_bytes:
            self.workspace = device.empty(self.workspace_bytes,
                                          f"workspace of {name} at batch {program.batch}")
        self._activations = {value: arena.view(offset, lifetimes[value].nbytes)
                             for value, offset in offsets.items()}
        for value in program.locations:
            self._activations[value] = self._activations[program.owner(value)]
        self._constants = {value: device.upload(array, f"constant {value!r}")
                           for value, array in program.constants.items()}

    @property
    def constant_bytes(self) -> int:
        """Size of the uploaded constants in bytes."""
        return sum(buffer.nbytes for buffer in self._constants.values())

    def of(self, value: str, image: int | None = None) -> Buffer:
        """Return the memory of a value, or of one of its images.

        image: index of the image; None for the whole value.
        """
        root = self._program.root(value)
        buffer = self._constants[root] if root in self._constants else self._activations[root]
        if image is None:
            return buffer
        nbytes = _image_bytes(self._program, value)
        return buffer if buffer.nbytes == nbytes else part_of(buffer, image * nbytes, nbytes)

    @contextmanager
    def replaced(self, buffers: Mapping[str, Buffer]) -> Iterator[None]:
        """Give some values other buffers within a `with` block.

        buffers: the other buffers, by the names of the values.
        """
        own = self._activations
        self._activations = {**own, **{self._program.root(value): buffer
                                       for value, buffer in buffers.items()}}
        try:
            yield
        finally:
            self._activations = own


def _chains(program: Program, device: Device) -> list[range]:
    """Return ranges of steps that are computed image by image.

    Empty unless the device is the host and the batch size is 2 or more. A range has at least two
    consecutive steps.
    """
    parts = {*program.locations, *program.locations.values()}

    def is_by_image(index: int) -> bool:
        step = program.steps[index]
        return step.device is device and step.algorithm.by_image and all(
            program.root(value) == value and value not in program.constants
            and value not in parts and program.specs[value].shape[0] == program.batch
            for value in (*step.inputs, *step.outputs))

    if device.compiles or program.batch < 2:
        return []
    chains = [list(indices) for is_chain, indices in itertools.groupby(
        range(len(program.steps)), is_by_image) if is_chain]
    return [range(chain[0], chain[-1] + 1) for chain in chains if len(chain) > 1]


def _image_bytes(program: Program, value: str) -> int:
    return program.specs[value].nbytes // program.batch


def _lifetimes(program: Program, chains: Sequence[range]) -> dict[str, Lifetime]:
    """Return the lifetime of every value with its own memory.

    If a value's memory contains other values, its lifetime includes the uses of these other values.
    Inputs and outputs are alive until after the last step, so that an execution can be repeated.

    chains: steps that are computed image by image. A value whose lifetime is within a chain has
    memory for one image. Other values that the steps of a chain read or write are alive during the
    whole chain.
    """
    owners = {value: program.owner(value) for value in (
        *program.inputs.values(), *program.outputs.values(),
        *(value for step in program.steps for value in (*step.inputs, *step.outputs)))}
    first: dict[str, int] = {owners[value]: -1 for value in program.inputs.values()}
    last = dict(first)
    for index, step in enumerate(program.steps):
        for value in step.outputs:
            first.setdefault(owners[value], index)
        for value in (*step.inputs, *step.outputs):
            last[owners[value]] = index
    for value in (*program.inputs.values(), *program.outputs.values()):
        last[owners[value]] = len(program.steps)
    nbytes = {value: max(program.specs[value].nbytes, 1) for value in first}
    for chain in chains:
        for value in {value for step in program.steps[chain.start:chain.stop]
                      for value in (*step.inputs, *step.outputs)}:
            if first[value] in chain and last[value] in chain:
                nbytes[value] = _image_bytes(program, value)
            else:
                if first[value] in chain:
                    first[value] = chain.start
                last[value] = max(last[value], chain.stop - 1)
    return {value: Lifetime(nbytes[value], start, last[value]) for value, start in first.items()}


class PreparedSteps:
    """A program's steps, prepared for one set of buffers.

    weights: the weights of each step.
    states: the prepared state of each step.
    """

    def __init__(self, program: Program, device: Device, buffers: ProgramBuffers) -> None:
        self._program = program
        self._device = device
        self._buffers = buffers
        self.weights = [step.layer.weights_on(step.device) for step in program.steps]
        self.states: list[State] = []
        self._works = [self._work(step, built) for step, built in zip(
            program.steps, self._built(), strict=True)]
        calls = {} if device.compiles else _generated_calls(program, self.states, buffers)
        for index in itertools.chain(*buffers.chains):
            self._works[index] = partial(_run_images, calls[index], self.states[index])
        self._joined = _joined(self._works, calls, self.states, buffers.chains)

    def queue(self, stream: Any) -> None:
        """Enqueue all steps on a stream."""
        for work in self._joined:
            work(stream)

    def profile(self, repeats: int) -> list[Timing]:
        """Return the times of all steps in a report.

        Each step runs on the data that the steps before it computed. A part (several layers in one
        run of ONNX Runtime) has one time for each of its layers except reshapes: the time of the
        part is divided among these layers in proportion to their times in ONNX Runtime's profile.
        """
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

    @cached_property
    def can_be_captured(self) -> bool:
        """Whether all steps can be captured as a graph.

        This requires that the device supports graphs, and that no step runs on the host.
        """
        return self._device.limits.graph and not self._program.host_steps(self._device)

    def in_place(self, inputs: Sequence[tuple[str, Buffer]],
                 outputs: Sequence[tuple[str, Buffer]]) -> Callable[..., None]:
        """Return a graph of all steps that works on the caller's memory.

        inputs, outputs: pairs of a value's name and the caller's memory for the value.

        The graph reads an input in place if the caller's memory is aligned. It writes an output in
        place if the caller's memory is aligned and no other value of the program shares memory with
        the output. All other inputs and outputs are copied.
        """
        program, own = self._program, self._buffers
        callers: dict[str, Buffer] = {}
        read: list[tuple[Buffer, Buffer, int]] = []
        written: list[tuple[Buffer, Buffer, int]] = []
        for value, buffer in inputs:
            if buffer.address % _VECTOR_BYTES:
                read.append((own.of(value), buffer, program.specs[value].nbytes))
            else:
                callers[program.root(value)] = buffer
        # Outputs in this set are copied: inputs and constants, because no step writes them, and
        # slices of a larger value and values with slices, because they share memory.
        shared = {program.root(value) for value in (
            *program.inputs.values(), *program.constants, *program.locations,
            *program.locations.values())}
        for value, buffer in outputs:
            root = program.root(value)
            if root in shared or root in callers or buffer.address % _VECTOR_BYTES:
                written.append((buffer, callers.get(root) or own.of(value),
                                program.specs[value].nbytes))
            else:
                callers[root] = buffer

        def work(stream: Any) -> None:
            for target, source, nbytes in read:
                self._device.copy(target, source, nbytes, stream)
            self.queue(stream)
            for target, source, nbytes in written:
                self._device.copy(target, source, nbytes, stream)

        with own.replaced(callers):
            return self._device.capture(work)

    def copying(self, inputs: Mapping[str, Buffer], outputs: Sequence[str]) -> CopyingGraph | None:
        """Return a graph that reads inputs in place, and copies the outputs.

        None if the steps cannot be captured, if an input is not aligned, or if an output is empty
        or too large for one copy. None also if an output shares memory with an input, because the
        caller may free the input before the copy.

        inputs: the caller's memory, by the name of the value.
        outputs: names of the values.
        """
        program = self._program
        given = {program.root(value) for value in inputs}
        if not self.can_be_captured or any(
                buffer.address % _VECTOR_BYTES for buffer in inputs.values()) or not all(
                0 < program.specs[value].nbytes <= _MOST_COPIED_BYTES
                and program.owner(value) not in given for value in outputs):
            return None
        # the memory needs no owner here: the caller owns it, and passes it with every call
        with self._buffers.replaced({value: self._device.wrap(buffer.address, buffer.nbytes, None)
                                     for value, buffer in inputs.items()}):
            return self._device.capture_copying(self.queue, [
                (self._buffers.of(value), program.specs[value].nbytes) for value in outputs])

    def _built(self) -> Sequence[Callable[[], State]]:
        """Return for each step the function that prepares it.

        The function returns the step's prepared state, or raises the error of the preparation. On a
        device that builds several steps at once, all steps are prepared before this method
        returns.
        """
        steps = self._program.steps
        made: list[Callable[[], State]] = [
            partial(build, step.algorithm, weights, step.problem,
                    step.placed_variant or step.variant, step.device)
            for step, weights in zip(steps, self.weights, strict=True)]
        on_device = [index for index, step in enumerate(steps)
                     if step.device is self._device and not _is_idle(step)]
        built = concurrently(self._device, [made[index] for index in on_device])
        for index, ready in zip(on_device, built, strict=True):
            made[index] = ready
        return made

    def _work(self, step: Step, built: Callable[[], State]) -> Work:
        """Return the function that enqueues a step on a stream.

        The step's state is appended to `states`.
        """
        if _is_idle(step):
            self.states.append(State(step.problem, step.variant, step.device))
            return lambda stream: None
        state = built()
        self.states.append(state)
        # work() must not refer to self: that would be a reference cycle, and the memory would be
        # freed only by the garbage collector
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
                raise of_layer(step, error) from None

        return work


def _generated_calls(program: Program, states: Sequence[State], buffers: ProgramBuffers
                     ) -> dict[int, list[list[Job]]]:
    """Return the calls of generated code by step index.

    Only steps that consist of such calls are included. A step that is computed image by image has
    one list of calls for each image, and any other step has one list.
    """
    by_image = set(itertools.chain(*buffers.chains))
    calls: dict[int, list[list[Job]]] = {}
    for index, (step, state) in enumerate(zip(program.steps, states, strict=True)):
        for image in range(program.batch) if index in by_image else (None,):
            jobs = [] if _is_idle(step) else step.algorithm.jobs(
                state, [buffers.of(value, image) for value in step.inputs],
                [buffers.of(value, image) for value in step.outputs], buffers.workspace,
                None if image is None else 1)
            if jobs is not None:
                calls.setdefault(index, []).append(jobs)
    return calls


def _run_images(calls: Sequence[Sequence[Job]], state: State, stream: Any) -> None:
    """Compute one step for all images."""
    Jobs([job for jobs in calls for job in jobs], state.data.threads).run()


def _joined(works: Sequence[Work], calls: Mapping[int, list[list[Job]]], states: Sequence[State],
            chains: Sequence[range]) -> list[Work]:
    """Return the functions that run the steps, with calls of generated code joined.

    Calls of consecutive steps are joined into one function. The calls of a chain are ordered by
    image, and then by step.
    """
    joined: list[Work] = []
    chain_of = {index: chain for chain in chains for index in chain}
    for is_generated, indices in itertools.groupby(range(len(works)), calls.__contains__):
        if not is_generated:
            joined += [works[index] for index in indices]
            continue
        jobs: list[Job] = []
        threads = 1
        for index in indices:
            chain = chain_of.get(index, range(index, index + 1))
            if index == chain.start:
                jobs += itertools.chain(*itertools.chain(*zip(
                    *(calls[step] for step in chain), strict=True)))
            if states[index].data is not None:
                threads = max(threads, states[index].data.threads)
        if jobs:
            joined.append(Jobs(jobs, threads).run)
    return joined


def _is_idle(step: Step) -> bool:
    """Return whether the step has nothing to compute."""
    return step.in_place or all(spec.size == 0 for spec in step.variant.outputs)


def of_layer(step: Step, error: InputError) -> InputError:
    """Return an input error with the layer's name added."""
    return InputError(f"{source_of(step.layer, error)}: {error}")


def _host_work(step: Step, state: State, device: Device, inputs: Sequence[Buffer],
               outputs: Sequence[Buffer]) -> Work:
    """Return the function that runs a step of a device's plan on the host.

    The function copies the inputs from the device to the host, and the outputs back.

    device: the plan's device.
    inputs, outputs: buffers on the device.
    """
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
            raise of_layer(step, error) from None
        for copy, buffer in zip(host_outputs, outputs, strict=True):
            device.write(buffer, host_array(copy, (copy.nbytes,), np.uint8), stream)

    return work
