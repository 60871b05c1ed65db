"""The program of one batch size: layers with the variants that compute them, changes of layout, and
how a variant is prepared to run: its weights packed and its kernels compiled, at what cost."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.facts import ValueFacts
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.fused.problem import ReshapeProblem
from gossamer.ops.lru_cache import digest
from gossamer.ops.weights import Pack, Weights, WeightsStore
from gossamer.plan.candidate import BuildCost, Candidate
from gossamer.tensor import Format, TensorSpec

Prepared = tuple[State, BuildCost]
"""The state of a variant, and the cost of preparing it."""
_DIGITS = 16
"""Number of hexadecimal digits of a digest of constants."""
_SWITCH_SECONDS = 2e-4
"""Seconds after which a thread that runs Python code hands the interpreter to a thread that waits
for it. Python's default is 5 ms; this value is a rule of thumb for any host."""
_Made = TypeVar("_Made")


@dataclass
class Layer:
    """One unit of lowered work: a problem of a node, a fusion of several layers, an inserted
    conversion, or a reshape.

    inputs, outputs: names of values.
    problem: the problem. The output of a reshape is the input's memory under another shape.
    weights: the problem's constants by name.
    density: the share of nonzero weights, None without weights.
    source: the name of the node in messages.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    problem: Problem
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    density: float | None = None
    source: str = ""
    inserted: bool = False
    """Whether the layer is a change of layout or precision that is no node of the network."""
    covers: tuple[str, ...] = ()
    """Names of the layers that a fusion consists of; empty for other layers."""
    members: tuple[Layer, ...] = field(default=(), repr=False)
    """The layers that a part consists of; empty for other layers."""
    facts: Mapping[str, ValueFacts] = field(default_factory=dict)
    """Facts about outputs that have few distinct values, by the output's name."""
    store: WeightsStore = field(default_factory=WeightsStore, compare=False, repr=False)
    """The packed weights of the network's layers."""

    @property
    def op(self) -> str:
        """The name of the op that computes the problem."""
        return self.problem.op

    @property
    def is_reshape(self) -> bool:
        """Whether the layer is a reshape, which nothing computes."""
        return isinstance(self.problem, ReshapeProblem)

    @property
    def computes(self) -> tuple[str, ...]:
        """For a fusion the names of the layers that it covers; for another layer its own name."""
        return self.covers or (self.name,)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that identify the values of the layer's constants."""
        return digest(self.weights)[:_DIGITS]

    def weights_on(self, device: Device) -> Weights:
        """Return the layer's weights, to be packed for a device."""
        return self.store.of(self.name, self.weights, device, self.covers)


@dataclass
class MeasuredLayer:
    """A layer or fusion, and the candidates that are measured for it.

    algorithms: the algorithms that may compute the layer.
    device: the device on which they may.
    candidates: all candidates that were measured.
    reasons: for each algorithm without a candidate, the reason why it has none.
    within: for a part, the microseconds that the library takes for each layer while it computes
    the whole part, by the layer's name, where they were measured.
    """

    layer: Layer
    algorithms: Sequence[Algorithm]
    device: Device
    candidates: list[Candidate] = field(default_factory=list)
    reasons: dict[str, str] = field(default_factory=dict)
    within: Mapping[str, float] = field(default_factory=dict)

    @property
    def least_cost(self) -> float:
        """The time of the fastest candidate; infinite where no candidate can be used."""
        return min((candidate.cost for candidate in self.candidates), default=math.inf)


@dataclass
class Step:
    """A layer with the variant that computes it.

    device: the plan's device, or the host where the layer fell back to it.
    inputs, outputs: names of values in the layouts of the variant.
    rejected: for each other algorithm why it was not taken.
    """

    layer: Layer
    algorithm: Algorithm
    variant: Variant
    device: Device
    inputs: list[str]
    outputs: list[str]
    rejected: dict[str, str] = field(default_factory=dict)
    candidates: Sequence[Candidate] = ()
    """Every candidate that was measured for the layer; empty where nothing was measured."""
    in_place: bool = False
    """Whether the step has nothing to do, because the value that the step would copy already lies
    where the copy would be."""
    placed_variant: Variant | None = None
    """The variant with changed formats: inputs and outputs that are parts of the channels of other
    tensors have the formats of these parts. None where no input or output is such a part."""
    part: str = ""
    """For a step that a report shows for one layer of a part, the name of the part; empty for the
    steps of a program."""

    @property
    def problem(self) -> Problem:
        return self.layer.problem

    @property
    def config_text(self) -> str:
        """The config as reports state it; "in place" where the step has nothing to do."""
        if self.part:
            return f"{self.part}, {self.variant.config_text}"
        return "in place" if self.in_place else self.variant.config_text

    @property
    def shown(self) -> list[Step]:
        """The steps that reports show for this step: for a part, one step for each of its layers
        except reshapes; else the step itself."""
        return [Step(layer, self.algorithm,
                     Variant(self.variant.config, layer.problem.inputs, layer.problem.outputs),
                     self.device, layer.inputs, layer.outputs, self.rejected,
                     part=self.layer.name)
                for layer in self.layer.members if not layer.is_reshape] or [self]

    def candidate_of(self, candidates: Iterable[Candidate]) -> Candidate:
        """Return the candidate that computes the step, out of the layer's candidates."""
        (taken,) = [candidate for candidate in candidates
                    if (candidate.algorithm, candidate.variant) == (self.algorithm, self.variant)]
        return taken


@dataclass(frozen=True)
class Place:
    """The place of a value within the memory of another value. A value that is a part of the
    channels of another value in NHWC has the whole buffer of the other value; the format of the
    part says which channels of each pixel belong to the part.

    whole: the name of the other value.
    offset: the byte of the other value's memory at which the buffer of the value begins.
    """

    whole: str
    offset: int


@dataclass
class Program:
    """The steps of one batch size, in order.

    specs: shape, dtype and layout of each value by its name.
    aliases: for each value that has the memory of another value, the name of the other value.
    constants: the arrays of values that are constants.
    inputs, outputs: names of values by the names of the graph's inputs and outputs.
    measured: all layers and fusions that were measured to choose the steps.
    places: for each value that lies within the memory of another value, its place in that memory.
    cost_us: the sum of the steps' times as the plan assignment states it, without those that are
    likely to copy nothing; None where nothing was measured.
    reshapes: the formats in which reshapes read their inputs, as the plan assignment states them,
    by the names of the layers.
    """

    batch: int
    steps: list[Step]
    specs: dict[str, TensorSpec]
    aliases: dict[str, str]
    constants: dict[str, np.ndarray]
    inputs: dict[str, str]
    outputs: dict[str, str]
    measured: Sequence[MeasuredLayer] = ()
    places: dict[str, Place] = field(default_factory=dict)
    cost_us: float | None = None
    reshapes: dict[str, Format] = field(default_factory=dict)

    @property
    def shown(self) -> list[Step]:
        """The steps as reports show them, with one step for each layer of a part."""
        return [shown for step in self.steps for shown in step.shown]

    def host_steps(self, device: Device) -> list[Step]:
        """Return the steps that the host computes in a plan for another device. Steps in place are
        left out, since nothing computes them."""
        return [step for step in self.steps if step.device is not device and not step.in_place]

    def root(self, value: str) -> str:
        """Return the name of the value whose memory a value has according to `aliases`, or the
        value's own name where it has no alias."""
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def place(self, value: str) -> Place:
        """Return the value that owns the memory of a value, and the byte of that memory at which
        the value begins."""
        root, offset = self.root(value), 0
        while root in self.places:
            offset += self.places[root].offset
            root = self.places[root].whole
        return Place(root, offset)


@contextmanager
def responsive() -> Iterator[None]:
    """Within a `with` block, makes threads wait less for the interpreter. A thread that works with
    a device makes many short calls. After each of them it may have to wait for another thread, one
    that builds kernels, reads files or answers requests and keeps the interpreter for long."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# without warnings of NumPy, because weights may be huge or not finite; the check of a candidate's
# outputs finds wrong results
@np.errstate(all="ignore")
def build(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
          device: Device) -> Prepared:
    """Return the state that algorithm.prepare() makes, and the cost of making it."""
    watched = _RecordingWeights(weights)
    start = time.perf_counter()
    state = algorithm.prepare(watched, problem, variant, device)
    state.packed = tuple(watched.forms.values())
    return state, BuildCost(time.perf_counter() - start,
                            any(launch.kernel.from_cache for launch in state.launches),
                            _device_bytes(state) if device.compiles else None,
                            {key: buffer.nbytes for key, buffer in watched.forms.items()})


def side_by_side(device: Device,
                 makers: Sequence[Callable[[], _Made]]) -> Sequence[Callable[[], _Made]]:
    """Return for each maker a function that returns the maker's result or raises its error.

    A single maker, and the makers of a device that does not build side by side, are returned, not
    yet called. Otherwise all makers have been called on return, in one thread for each processor
    that the process may use.
    """
    if len(makers) < 2 or not device.builds_side_by_side:
        return makers
    pool = ThreadPoolExecutor(processors())
    try:
        futures = [pool.submit(make) for make in makers]
        wait(futures)
    finally:
        # after an interrupt nobody needs the builds that are not done
        pool.shutdown(wait=False, cancel_futures=True)
    return [future.result for future in futures]


def _device_bytes(state: State) -> int:
    """Return the bytes of packed weights, other buffers and code that a state uses."""
    buffers = [*state.packed, *(argument for launch in state.launches
                                for argument in launch.arguments if isinstance(argument, Buffer))]
    code = {id(launch.kernel): launch.kernel.code_bytes or 0 for launch in state.launches}
    return sum({id(buffer): buffer.nbytes for buffer in buffers}.values()) + sum(code.values())


class _RecordingWeights(Weights):
    """Weights that record which packed forms are asked for."""

    def __init__(self, weights: Weights) -> None:
        self.arrays = weights.arrays
        self.layer = weights.layer
        self.forms: dict[str, Buffer] = {}
        self._weights = weights

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Hash of the constants, which is computed once for all candidates."""
        return self._weights.digest

    def packed(self, key: str, pack: Pack) -> Buffer:
        self.forms[key] = self._weights.packed(key, pack)
        return self.forms[key]
