"""The contract between an op and the ways to compute it."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.expression import Expression, identity
from gossamer.ops.launch import Launch
from gossamer.ops.weights import Weights
from gossamer.tensor import TensorSpec

PRECISIONS = ("fp32", "tf32", "fp16")
"""From the most to the least precise; allowing one allows those before it."""


@dataclass(frozen=True)
class Epilogue:
    """Element-wise arithmetic applied to each result before it is stored.

    expression: input 0 is the result; input i + 1 is operand i.
    operands: for each further input "channel" (a constant, one value an output channel, found
    in the weights as `operand<i>`) or "tensor" (a run-time input of the output's shape).
    """

    expression: Expression = field(default_factory=identity)
    operands: tuple[str, ...] = ()

    @property
    def tensor_count(self) -> int:
        return self.operands.count("tensor")


class Problem(abc.ABC):
    """One op instance; subclasses are frozen dataclasses, one an op.

    Activations are counted as inputs (the op's own, then the epilogue's tensor operands);
    constants go by name in `weights`.
    """

    op: ClassVar[str]

    @property
    @abc.abstractmethod
    def inputs(self) -> tuple[TensorSpec, ...]:
        """Logical specs of the run-time inputs, in the default layout."""

    @property
    @abc.abstractmethod
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    @abc.abstractmethod
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and shapes of the constants this op takes."""

    @property
    @abc.abstractmethod
    def flops(self) -> int:
        """Floating-point operations; a multiply-add counts as two."""

    @property
    def least_bytes(self) -> int:
        """Bytes moved when every input, weight and output crosses memory once."""
        weights = sum(4 * int(np.prod(shape)) for shape in self.weight_shapes.values())
        return weights + sum(spec.nbytes for spec in (*self.inputs, *self.outputs))

    def first_images(self, count: int) -> Problem:
        """The problem of the first images alone, or itself where images are not apart: checking
        a candidate on it is cheap, and its outputs begin the whole problem's."""
        return self

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Inputs to check and time candidates with: normal floats; integers that are small and
        not negative, so that they can be indices."""
        return [rng.standard_normal(spec.shape, dtype=np.float32)
                if np.dtype(spec.dtype).kind == "f"
                else rng.integers(0, 2, spec.shape).astype(spec.dtype) for spec in self.inputs]

    @abc.abstractmethod
    def describe(self) -> str:
        """A short text for tables: '3x3 s2 64x56x56 -> 128x28x28'."""


@dataclass(frozen=True)
class Variant:
    """A config with the layouts and the precision it works in: what is measured and chosen.

    precision: one of PRECISIONS. fp16 has float16 inputs and outputs where the problem states
    float32; sums are float32.
    """

    config: tuple[tuple[str, int | str], ...]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "fp32"
    workspace: int = 0
    """Bytes of scratch memory that a launch needs."""
    build_seconds: float = 0.0
    """That one processor is expected to build it for, where that may be too long."""

    def __getitem__(self, key: str) -> Any:
        return dict(self.config)[key]

    @property
    def as_fp16(self) -> Variant:
        """The same with float16 where it has float32."""
        inputs, outputs = (tuple(replace(spec, dtype="float16") if spec.dtype == "float32" else spec
                                 for spec in specs) for specs in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs, precision="fp16")

    @property
    def config_text(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.config)


@dataclass
class State:
    """A variant made ready: compiled kernels and packed weights."""

    problem: Problem
    variant: Variant
    device: Device
    launches: list[Launch] = field(default_factory=list)
    data: Any = None


class Algorithm(abc.ABC):
    """One way to compute an op. Instances are stateless."""

    op: ClassVar[str]
    name: ClassVar[str]
    dense: ClassVar[bool] = True
    """Whether zeros among the weights cost as much as other values."""
    vendor: ClassVar[str] = ""
    """The library whose kernels it runs, such as cuDNN; empty for our own."""

    @abc.abstractmethod
    def supports(self, problem: Any, device: Device) -> str | None:
        """None when it can compute the problem on the device; else the reason, as shown to the
        user."""

    def version(self, device: Device) -> str:
        """That of the vendor's library on the device; empty where there is none."""
        return ""

    @abc.abstractmethod
    def variants(self, problem: Any, device: Device) -> Iterable[Variant]:
        """Variants in the order of expected speed. The first always works, in float32."""

    @abc.abstractmethod
    def prepare(self, weights: Weights, problem: Any, variant: Variant, device: Device) -> State:
        """Packs weights and compiles kernels, once a plan and batch size."""

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        """Computes the problem; returns as soon as the work is queued."""
        for step in state.launches:
            arguments = [a(inputs, outputs, workspace) if callable(a) else a
                         for a in step.arguments]
            state.device.launch(step.kernel, step.work_groups, step.work_group_size, arguments,
                                shared_bytes=step.shared_bytes, stream=stream)
