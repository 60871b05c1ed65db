"""The problem of ONNX nodes that ONNX Runtime computes together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gossamer.ops.op import OperandProblem
from gossamer.tensor import TensorSpec

MODEL = "model"
"""The name of the constant that holds the ONNX model of the nodes, as bytes."""
_INDICES = ("int32", "int64")
"""The dtypes of indices in ONNX."""


@dataclass(frozen=True)
class OnnxPartProblem(OperandProblem):
    """Nodes of an ONNX file that are computed together.

    operands: spec of each input of the model, including constants.
    results: spec of each output.
    constants: indices of the operands that are constants, stored in the weights as `operand<i>`.
    The weights also hold the model itself, under the name MODEL.
    model_bytes: size of the model in bytes.
    digest: SHA-256 hash of the model.
    nodes: for each node, its name in messages, and the reason why gossamer does not compute the
    node.
    known: integer inputs that are determined by shapes, such as the target shape of a Reshape. Each
    item is (index of the input, values). The values depend on the batch size. With other values,
    nodes may fail.
    has_float16: whether values within the part are float16.
    """

    op: ClassVar[str] = "onnx_part"
    operands: tuple[TensorSpec, ...]
    results: tuple[TensorSpec, ...]
    constants: tuple[int, ...]
    model_bytes: int
    digest: str
    nodes: tuple[tuple[str, str], ...]
    known: tuple[tuple[int, tuple[int, ...]], ...] = ()
    has_float16: bool = False

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self.results

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {MODEL: (self.model_bytes,), **super().weight_shapes}

    @property
    def flops(self) -> int:
        return 0

    @property
    def rounding(self) -> str:
        return "fp16" if self.has_float16 else "fp32"

    def example_inputs(self, rng: np.random.Generator) -> list[np.ndarray]:
        """Draw inputs that are valid for the nodes.

        Inputs are drawn as by Problem.example_inputs, with two exceptions. Inputs in `known` have
        the values stated there. If any operand has a dimension of size 1, integers that may be
        indices are 0, so that they are in range.
        """
        arrays = super().example_inputs(rng)
        if 1 in {size for spec in self.operands for size in spec.shape}:
            arrays = [np.zeros_like(array) if spec.dtype in _INDICES else array
                      for array, spec in zip(arrays, self.inputs, strict=True)]
        for index, numbers in self.known:
            spec = self.inputs[index]
            arrays[index] = np.array(numbers, spec.dtype).reshape(spec.shape)
        return arrays

    def describe(self) -> str:
        operators = list(dict.fromkeys(source.partition(" ")[0] for source, _ in self.nodes))
        more = " ..." if len(operators) > 3 else ""
        count = len(self.nodes)
        return f"{', '.join(operators[:3])}{more} ({count} node{'s' * (count != 1)})"
