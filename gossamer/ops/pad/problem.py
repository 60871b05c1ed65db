"""Padding and cropping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from gossamer.facts import ValueFacts
from gossamer.ops.op import UnaryProblem
from gossamer.tensor import TensorSpec, default_spec

MODES = ("constant", "reflect", "edge")


@dataclass(frozen=True)
class PadProblem(UnaryProblem):
    """Padding or cropping of a tensor.

    pads: numbers of elements to add before each dimension, then those to add after each dimension;
    negative numbers crop.
    mode: "constant" adds `value`, "reflect" mirrors the input without repeating its border, and
    "edge" repeats the border. "reflect" and "edge" read the input before it is cropped, as ONNX
    Runtime does.
    value: the constant of mode "constant".
    facts: value facts of the input; empty if nothing is known.

    Raises ValueError if the pads do not fit the input, or if the mode is unknown.
    """

    op: ClassVar[str] = "pad"
    pads: tuple[int, ...]
    mode: str = "constant"
    value: float = 0.0
    facts: tuple[ValueFacts, ...] = ()

    def __post_init__(self) -> None:
        rank = len(self.input.shape)
        if self.mode not in MODES:
            raise ValueError(f"pad mode {self.mode!r} is not one of {', '.join(MODES)}")
        if len(self.pads) != 2 * rank:
            raise ValueError(f"{self.input} needs {2 * rank} pads, not {len(self.pads)}")
        for size, low, high in zip(self.input.shape, self.low, self.high, strict=True):
            if size + low + high < 0:
                raise ValueError(f"pads {self.pads} crop more elements than {self.input} has")
            if size + low + high == 0 or self.mode == "constant":
                continue
            furthest = max(low, high)
            if furthest > 0 and (size == 0 or (self.mode == "reflect" and furthest >= size)):
                raise ValueError(f"{self.mode} pads {self.pads} reach beyond {self.input}")

    @property
    def low(self) -> tuple[int, ...]:
        return self.pads[: len(self.pads) // 2]

    @property
    def high(self) -> tuple[int, ...]:
        return self.pads[len(self.pads) // 2 :]

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        shape = tuple(size + low + high for size, low, high
                      in zip(self.input.shape, self.low, self.high, strict=True))
        return (default_spec(shape, self.input.dtype),)

    @property
    def flops(self) -> int:
        return 0

    def first_images(self, count: int) -> PadProblem:
        if not self.pads or self.low[0] or self.high[0]:
            return self
        return replace(self, input=self.input.first(count))

    def describe(self) -> str:
        return f"{self.mode} {self.input} -> {self.outputs[0]}"


def reference(problem: PadProblem, inputs: Sequence[np.ndarray],
              weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    x = inputs[0]
    shape = problem.outputs[0].shape
    if 0 in shape:
        return [np.empty(shape, x.dtype)]
    added = [(max(low, 0), max(high, 0))
             for low, high in zip(problem.low, problem.high, strict=True)]
    if problem.mode == "constant":
        padded = np.pad(x, added, constant_values=np.array(problem.value).astype(x.dtype))
    else:
        padded = np.pad(x, added, mode="reflect" if problem.mode == "reflect" else "edge")
    uncropped = tuple(slice(max(-low, 0), size - max(-high, 0)) for size, low, high
                      in zip(padded.shape, problem.low, problem.high, strict=True))
    return [padded[uncropped]]
