"""ModelWriter, which collects the nodes, inputs and constants of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper


class ModelWriter:
    """The nodes, inputs and small constants of an ONNX graph."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.constants: list[onnx.TensorProto] = []
        self._prefix = ""
        self._count = 0

    def begin(self, prefix: str) -> None:
        """Sets the prefix of the names of all later nodes and constants."""
        self._prefix = prefix

    def node(self, operator: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Adds a node with one output, and returns the output's name."""
        name = self._new_name()
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def input(self, name: str, shape: Sequence[int], dtype: np.typing.DTypeLike) -> str:
        """Adds an input of the graph, and returns the input's name."""
        self.inputs.append(helper.make_tensor_value_info(
            name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape))
        return name

    def constant(self, value: Any, dtype: np.typing.DTypeLike) -> str:
        """Adds a constant, and returns the constant's name."""
        name = self._new_name()
        self.constants.append(numpy_helper.from_array(np.asarray(value, dtype), name))
        return name

    def integers(self, values: Sequence[int]) -> str:
        """Adds a constant list of int64, such as a shape, and returns the constant's name."""
        return self.constant(list(values), np.int64)

    def cast(self, value: str, dtype: np.typing.DTypeLike) -> str:
        """Adds a conversion of a value, and returns the result's name."""
        return self.node("Cast", [value], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Adds a reshape of a value, and returns the result's name."""
        return self.node("Reshape", [value, self.integers(shape)])

    def _new_name(self) -> str:
        self._count += 1
        return f"{self._prefix}{self._count}"
