"""The program of one batch size: layers with their chosen variants, layout changes included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.algorithm import Algorithm, Problem, Variant
from gossamer.tensor import TensorSpec

if TYPE_CHECKING:
    from gossamer.plan.tune.tuner import Candidate


@dataclass
class Layer:
    """One node as a problem. No problem: the output is the input's memory under another shape.

    inputs and outputs are names of values; weights are the problem's constants.
    """

    name: str
    op: str
    inputs: list[str]
    outputs: list[str]
    output_specs: list[TensorSpec]
    problem: Problem | None = None
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    density: float | None = None
    source: str = ""
    inserted: bool = False
    """A change of layout that no node of the network asks for."""


@dataclass
class Step:
    """A layer with its choice. `device` differs from the plan's where the layer fell back to the
    host. `rejected` says for each other algorithm why it was not taken."""

    layer: Layer
    algorithm: Algorithm
    variant: Variant
    device: Device
    inputs: list[str]
    outputs: list[str]
    rejected: dict[str, str] = field(default_factory=dict)
    candidates: Sequence[Candidate] = ()
    """Every candidate that was measured for it; none where the choice was not measured."""

    @property
    def problem(self) -> Problem:
        assert self.layer.problem is not None
        return self.layer.problem


@dataclass
class Program:
    """Steps in order over named values.

    specs: how each value lies in memory. aliases: values that are another value's memory.
    constants: values that hold uploaded constants. inputs and outputs: values by graph name.
    """

    batch: int
    steps: list[Step]
    specs: dict[str, TensorSpec]
    aliases: dict[str, str]
    constants: dict[str, np.ndarray]
    inputs: dict[str, str]
    outputs: dict[str, str]

    def root(self, value: str) -> str:
        while value in self.aliases:
            value = self.aliases[value]
        return value
