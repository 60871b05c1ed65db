"""Programs at one batch size, and the preparation of variants.

A program consists of layers with the variants that compute them, and of conversions. A variant is
one config of an algorithm, with formats and a precision. It is prepared by packing its weights and
compiling its kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.device.host import processors
from gossamer.facts import ValueFacts
from gossamer.ops.algorithm import Algorithm, Problem, State, Variant
from gossamer.ops.fused.problem import ReshapeProblem
from gossamer.ops.lru_cache import digest
from gossamer.ops.weights import Pack, Weights, WeightsStore
from gossamer.plan.candidate import Candidate
from gossamer.tensor import Format, TensorSpec

_DIGITS = 16
"""Number of hexadecimal digits in a digest of constants."""
_SWITCH_SECONDS = 2e-4
"""Switch interval of the interpreter: seconds after which a thread that runs Python code releases
the GIL to a waiting thread. Python's default is 5 ms; this value is a rule of thumb for any
host."""
_Made = TypeVar("_Made")


@dataclass
class Layer:
    """One unit of a network's computation.

    A layer is the problem of a node, a fusion of several layers, an inserted conversion, or a
    reshape.

    inputs, outputs: names of values.
    problem: the problem. The output of a reshape is the input's memory with another shape.
    weights: the problem's constants by name.
    density: share of nonzero weights, None without weights.
    source: name of the node in messages.
    """

    name: str
    inputs: list[str]
    outputs: list[str]
    problem: Problem
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    density: float | None = None
    source: str = ""
    inserted: bool = False
    """Whether the layer is a change of layout or precision that is not a node of the network."""
    covers: tuple[str, ...] = ()
    """Names of the layers of a fusion; empty for other layers."""
    members: tuple[Layer, ...] = field(default=(), repr=False)
    """The layers of a part, which ONNX Runtime computes in one run; empty for other layers."""
    facts: Mapping[str, ValueFacts] = field(default_factory=dict)
    """Facts about outputs that have few distinct values, by the output's name."""
    store: WeightsStore = field(default_factory=WeightsStore, compare=False, repr=False)
    """The packed weights of the network's layers."""

    @property
    def op(self) -> str:
        """Name of the op that computes the problem."""
        return self.problem.op

    @property
    def is_reshape(self) -> bool:
        """Whether the layer is a reshape, which needs no computation."""
        return isinstance(self.problem, ReshapeProblem)

    @property
    def computes(self) -> tuple[str, ...]:
        """Names of the layers that a fusion covers; for other layers, their own name."""
        return self.covers or (self.name,)

    @cached_property
    def digest(self) -> str:
        """Hexadecimal digits that identify the values of the layer's constants."""
        return digest(self.weights)[:_DIGITS]

    def weights_on(self, device: Device) -> Weights:
        """Return the layer's weights, to be packed for a device."""
        return self.store.of(self.name, self.weights, device, self.covers)


@dataclass
class Step:
    """A layer with the variant that computes it.

    device: the plan's device, or the host if the layer fell back to it.
    inputs, outputs: names of values in the layouts of the variant.
    rejected: for every other algorithm, why it was not taken.
    """

    layer: Layer
    algorithm: Algorithm
    variant: Variant
    device: Device
    inputs: list[str]
    outputs: list[str]
    rejected: dict[str, str] = field(default_factory=dict)
    candidates: Sequence[Candidate] = ()
    """All candidates of the layer, also those that were left out; empty if nothing was measured."""
    in_place: bool = False
    """Whether the step has nothing to do, because its result is already in its output's memory."""
    placed_variant: Variant | None = None
    """If an input or output of the step is a slice of the channels of a larger tensor: the variant
    with the formats of these slices. None for all other steps."""
    part: str = ""
    """Name of the part, if a report shows this step for one layer of a part; empty for the steps of
    a program."""

    @property
    def problem(self) -> Problem:
        return self.layer.problem

    @property
    def config_text(self) -> str:
        """The config in reports; "in place" if the step has nothing to do."""
        if self.part:
            return f"{self.part}, {self.variant.config_text}"
        return "in place" if self.in_place else self.variant.config_text

    @property
    def shown(self) -> list[Step]:
        """The steps that reports show for this step.

        For a part, there is one step for each of its layers except reshapes. Any other step is
        shown itself.
        """
        return [Step(layer, self.algorithm,
                     Variant(self.variant.config, layer.problem.inputs, layer.problem.outputs),
                     self.device, layer.inputs, layer.outputs, self.rejected,
                     part=self.layer.name)
                for layer in self.layer.members if not layer.is_reshape] or [self]

    def candidate_of(self, candidates: Iterable[Candidate]) -> Candidate:
        """Return the candidate that computes the step.

        candidates: all candidates of the step's layer.
        """
        (taken,) = [candidate for candidate in candidates
                    if (candidate.algorithm, candidate.variant) == (self.algorithm, self.variant)]
        return taken


@dataclass
class Program:
    """The steps of one batch size, in order.

    specs: shape, dtype and layout of each value by its name.
    aliases: for each value that shares the memory of another value, the name of the other value.
    constants: the arrays of constant values, by name.
    inputs, outputs: names of values by the names of the graph's inputs and outputs.
    measured: all layers and fusions that were measured to choose the steps, each a LayerCandidates
    (see tune/rows.py).
    locations: for each value that is stored in channels of another value, the name of the other
    value. Its format says which channels belong to it.
    cost_us: the cost of the plan assignment: the sum of the steps' times in microseconds. A step
    that is likely to copy nothing counts with a small share of its time. None if nothing was
    measured.
    reshapes: the format of each reshape's input in the plan assignment, by the reshape's name.
    """

    batch: int
    steps: list[Step]
    specs: dict[str, TensorSpec]
    aliases: dict[str, str]
    constants: dict[str, np.ndarray]
    inputs: dict[str, str]
    outputs: dict[str, str]
    measured: Sequence[Any] = ()
    locations: dict[str, str] = field(default_factory=dict)
    cost_us: float | None = None
    reshapes: dict[str, Format] = field(default_factory=dict)

    @property
    def shown(self) -> list[Step]:
        """The steps in reports, where each layer of a part is a step."""
        return [shown for step in self.steps for shown in step.shown]

    def host_steps(self, device: Device) -> list[Step]:
        """Return the steps of a device's plan that run on the host.

        Steps in place are left out, because they compute nothing.
        """
        return [step for step in self.steps if step.device is not device and not step.in_place]

    def root(self, value: str) -> str:
        """Return the value that owns a value's memory, by following `aliases`.

        A value that is no alias owns its memory itself.
        """
        while value in self.aliases:
            value = self.aliases[value]
        return value

    def owner(self, value: str) -> str:
        """Return the value whose memory contains a value."""
        root = self.root(value)
        while root in self.locations:
            root = self.locations[root]
        return root


@contextmanager
def responsive() -> Iterator[None]:
    """Shorten the waits of threads for the GIL in a `with` block.

    A thread that works with a device makes many short calls that release the GIL. After each call,
    another thread may hold the GIL for long, while it builds kernels, reads files or answers
    requests.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(min(before, _SWITCH_SECONDS))
    try:
        yield
    finally:
        sys.setswitchinterval(before)


# NumPy's warnings about huge or infinite weights are not needed, because the check of a candidate's
# outputs finds wrong results
@np.errstate(all="ignore")
def build(algorithm: Algorithm, weights: Weights, problem: Problem, variant: Variant,
          device: Device) -> State:
    """Return the state that algorithm.prepare() makes, which keeps its packed weights alive."""
    watched = _RecordingWeights(weights)
    state = algorithm.prepare(watched, problem, variant, device)
    state.packed = tuple(watched.forms.values())
    return state


def concurrently(device: Device,
                 makers: Sequence[Callable[[], _Made]]) -> Sequence[Callable[[], _Made]]:
    """Run makers in threads; return a function for each maker's result.

    This function waits until all makers have run. It uses one thread for each processor that the
    process may use. Each returned function returns a maker's result or raises the maker's error.

    If there is only one maker, or if the device builds one variant at a time, the makers are
    returned uncalled.

    makers: functions that each build something.
    """
    if len(makers) < 2 or not device.builds_side_by_side:
        return makers
    pool = ThreadPoolExecutor(processors())
    try:
        futures = [pool.submit(make) for make in makers]
        wait(futures)
    finally:
        # after an interrupt, pending builds are not needed
        pool.shutdown(wait=False, cancel_futures=True)
    return [future.result for future in futures]


class _RecordingWeights(Weights):
    """Weights that record which packed forms are requested."""

    def __init__(self, weights: Weights) -> None:
        self.arrays = weights.arrays
        self.layer = weights.layer
        self.forms: dict[str, Buffer] = {}
        self._weights = weights

    @property
    def digest(self) -> str:  # type: ignore[override]
        """Hash of the constants, computed once for all candidates."""
        return self._weights.digest

    def packed(self, key: str, pack: Pack) -> Buffer:
        self.forms[key] = self._weights.packed(key, pack)
        return self.forms[key]
