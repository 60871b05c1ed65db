"""Draws random networks, whose values are computed while nodes are added to them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.differential.oracles import Arrays, computed, reads, tried
from tests.simulated.networks import Network

_OPSETS = (*range(7, 22), 13, 17, 18)
_DTYPES = ("float32",) * 12 + ("float16", "float64", "int8", "uint8", "int32", "int64", "bool")
_RANKS = (4, 4, 4, 4, 4, 3, 3, 2, 2, 1, 5, 0)
_INPUTS, _ELEMENTS, _ATTEMPTS = 4, 4000, 200
_LARGEST = 1e6
"""The magnitude of floats above which their rounding would hide everything else in a network."""
_FIXED = ("sorted", "training_mode", "storage_order", "saturate", "layout", "output_dtype")
"""Attributes that keep their defaults."""
_Option = onnx.defs.OpSchema.FormalParameterOption
_NAMES = {"float": "float32", "double": "float64"}
_UNFIT = (onnx.defs.SchemaError, onnx.shape_inference.InferenceError, ValueError, IndexError,
          KeyError, TypeError, ArithmeticError)
"""Errors that are raised where no node of an operator can be added."""


class Unfit(ValueError):
    """Raised where a network has no value that an operator takes."""


@cache
def dtypes_of(op: str, opset: int) -> frozenset[str]:
    """Returns the dtypes of the first input of an operator."""
    names = (text[7:-1] for text in onnx.defs.get_schema(op, opset).inputs[0].types)
    return frozenset(_NAMES.get(name, name) for name in names)


class Draft(Network):
    """A network while nodes are added to it: every value is known, for the inputs that are drawn
    with it.

    nan: whether inputs may hold NaN.
    """

    def __init__(self, seed: int, nan: bool = False) -> None:
        super().__init__(seed)
        self.nan = nan
        self.opset = int(self.pick(*_OPSETS))
        self.inputs: Arrays = {}
        self.values: Arrays = {}
        self.pending: list[onnx.NodeProto] = []
        self.drawn: dict[str, Any] = {}

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def size(self) -> int:
        return int(self.pick(1, 2, 3, 4, 5, 7, 8))

    def fewer(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns a shape that is broadcast to a shape."""
        shape = tuple(size if self.chance(0.7) else 1 for size in shape)
        return shape[self.pick(0, 0, 0, *range(len(shape) + 1)):]

    def once(self, name: str, *choices: Any) -> Any:
        """Returns a choice, the same one whenever it is asked for in a node."""
        return self.drawn.setdefault(name, self.pick(*choices))

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Returns numbers: normally distributed ones, ones with which sums are exact and ties
        happen, seldom zeros of both signs, large and infinite ones; the whole range of integers."""
        dtype = np.dtype(dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            whole = info.bits == 8 or self.chance(0.03)
            return np.asarray(self.rng.integers(*(info.min, info.max) if whole else (-6, 7), shape,
                                                endpoint=True).astype(dtype))
        kind = self.pick("normal", "normal", "exact", "exact", "special")
        if kind == "exact":
            return np.asarray(self.rng.integers(-12, 13, shape) / self.pick(1, 2, 4), dtype)
        numbers = self.rng.standard_normal(shape)
        if kind == "special":
            odd = [-0.0, 0.0, 0.5, -1.5, 1e-40, 3e4] + [np.inf, -np.inf] * self.chance(0.3)
            numbers = np.where(self.rng.random(shape) < 0.2,
                               self.rng.choice(odd + [np.nan] * self.nan, shape), numbers)
        return np.asarray(numbers, dtype)

    def constant(self, array: Any) -> str:
        """Adds an initializer, or a node Constant, and returns its name."""
        array = np.asarray(array)
        name = super().constant(array) if self.chance(0.8) else str(
            self.node("Constant", [], value=numpy_helper.from_array(array)))
        self.values[name] = array
        return name

    def other(self, shape: tuple[int, ...], dtype: Any) -> str:
        """Returns a value of this shape and dtype: one of the network, an input, or a constant."""
        names = [name for name, value in self.values.items()
                 if value.shape == shape and value.dtype == dtype]
        if names and self.chance(0.6):
            return str(self.pick(*names))
        array = self.array(shape, dtype)
        if len(self.inputs) >= _INPUTS or self.chance(0.6):
            return self.constant(array)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.values[name] = array
        return name

    def value(self, op: str) -> str:
        """Returns a value of a dtype that an operator takes, most often a new one."""
        allowed = dtypes_of(op, self.opset)
        names = [name for name, value in self.values.items() if str(value.dtype) in allowed]
        if names and self.chance(0.9):
            return names[-1] if self.chance(0.5) else str(self.pick(*names))
        dtypes = [dtype for dtype in _DTYPES if dtype in allowed]
        if not dtypes:
            raise Unfit
        return self.other(tuple(self.size() for _ in range(self.pick(*_RANKS))),
                          self.pick(*dtypes))

    def axis(self, x: np.ndarray) -> int:
        """Returns the axis of a node, which may be counted from the last."""
        low = -x.ndim if self.opset >= 11 else 0
        return int(self.once("axis", int(self.rng.integers(low, x.ndim))))

    def axes(self, x: np.ndarray) -> list[int]:
        chosen = self.rng.permutation(x.ndim)[:self.rng.integers(0, x.ndim + 1)]
        return [int(axis) - x.ndim * (self.opset >= 13 and self.chance(0.4)) for axis in chosen]

    def node(self, op: str, inputs: list[str], count: int = 1, **attributes: Any) -> Any:
        """Adds a node, and returns its output or outputs."""
        names = [f"v{len(self.nodes) + len(self.pending)}_{index}" for index in range(count)]
        self.pending.append(helper.make_node(op, inputs, names, f"{names[0]}{op}"))
        kinds = onnx.defs.get_schema(op, self.opset).attributes
        self.pending[-1].attribute.extend(
            helper.make_attribute(name, value, attr_type=kinds[name].type.value)
            for name, value in attributes.items())
        return names if count > 1 else names[0]

    def operator(self, op: str) -> None:
        """Adds a node whose inputs and attributes are drawn."""
        from tests.differential.operators import DRAWS, OUTPUTS

        schema, x = onnx.defs.get_schema(op, self.opset), self.value(op)
        array, inputs, attributes = self.values[x], [x], dict[str, Any]()

        def draw(name: str, *others: Any) -> Any:
            choice = DRAWS.get(f"{op}.{name}", DRAWS.get(name, others))
            return choice(self, array) if callable(choice) else (
                self.pick(*choice) if isinstance(choice, tuple) else choice)

        def beside() -> str:
            return self.other(self.fewer(array.shape), array.dtype)

        for index, formal in enumerate(schema.inputs):
            if formal.option == _Option.Variadic:
                inputs += draw(formal.name, [beside() for _ in range(self.pick(0, 1, 2))])
            elif index:
                is_there = formal.option == _Option.Single or self.chance(0.5)
                value = draw(formal.name, beside() if formal.option == _Option.Single else "")
                if isinstance(value, int | float):
                    value = np.asarray(value, array.dtype)
                inputs.append("" if not is_there else value if isinstance(value, str)
                              else self.constant(value))
        for name, attribute in schema.attributes.items():
            default = helper.get_attribute_value(attribute.default_value) if (
                attribute.default_value.name) else None
            near = {int: (0, 1), float: (default, 0.5, 2.0)}.get(type(default), (default,))
            value = draw(name, *near) if name not in _FIXED else None
            if value is not None and (attribute.required or self.chance(0.6)):
                is_one = attribute.type == onnx.defs.OpSchema.AttrType.INT
                attributes[name] = value[0] if is_one and isinstance(value, list) else value
        while not inputs[-1]:
            inputs.pop()
        self.node(op, inputs, OUTPUTS.get(op, 1), **attributes)

    def commit(self) -> bool:
        """Keeps the pending nodes if ONNX Runtime computes them, and their values are of use in a
        network."""
        made = [name for node in self.pending for name in node.output]
        results = tried(self.model("part", made, self.pending), self.values)
        if results is None or not all(
                isinstance(value, np.ndarray) and value.dtype.kind in "fiub"
                and 0 < value.size < _ELEMENTS and self._is_usable(value) for value in results):
            return False
        self.nodes += self.pending
        self.values |= dict(zip(made, results, strict=True))
        return True

    def _is_usable(self, value: np.ndarray) -> bool:
        """Returns whether numbers are of a size at which rounding hides nothing, and no integers
        that do not fit."""
        finite = value[np.isfinite(value)].astype(np.float64)
        most = 2.0**(8 * value.itemsize - 2) if value.itemsize > 2 else np.inf
        return (self.nan or not np.isnan(value).any()) and bool(
            (np.abs(finite) < (_LARGEST if value.dtype.kind == "f" else most)).all())

    def model(self, name: str, outputs: list[str], nodes: list[onnx.NodeProto] | None = None,
              sizes: Mapping[int, str] | None = None) -> onnx.ModelProto:
        """Returns nodes, all by default, as a model. sizes: the names of open dimensions."""
        nodes = self.nodes if nodes is None else nodes
        read, made = reads(nodes), {name for node in nodes for name in node.output}
        inputs = [helper.make_tensor_value_info(
            value, helper.np_dtype_to_tensor_dtype(array.dtype),
            [(sizes or {}).get(size, size) for size in array.shape])
            for value, array in self.values.items() if value in read - made - set(self.constants)]
        typed = [onnx.ValueInfoProto(name=output) if nodes is self.pending else
                 helper.make_tensor_value_info(output, helper.np_dtype_to_tensor_dtype(
                     self.values[output].dtype), None) for output in outputs]
        graph = helper.make_graph(nodes, name, inputs, typed, [
            numpy_helper.from_array(array, constant)
            for constant, array in self.constants.items() if constant in read])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)],
                                  ir_version=8 if self.opset < 21 else 10)
        is_new = nodes is self.pending
        return onnx.shape_inference.infer_shapes(model, check_type=is_new, strict_mode=is_new)


def drawn(seed: int, nan: bool = False) -> tuple[onnx.ModelProto, list[Arrays]]:
    """Returns a network, and the inputs of its calls; the second have other sizes."""
    from tests.differential.operators import COMPOSED, LEFT_OUT, OFTEN

    names = [*OFTEN.split() * 4, *(schema.name for schema in onnx.defs.get_all_schemas()
                           if not schema.domain and not re.fullmatch(LEFT_OUT, schema.name))]
    draft = Draft(seed, nan)
    wanted = draft.rng.integers(5, 21)
    for _ in range(_ATTEMPTS):
        before = dict(draft.constants), dict(draft.inputs), dict(draft.values)
        draft.pending, draft.drawn = [], {}
        try:
            if draft.chance(0.05):
                draft.pick(*COMPOSED)(draft)
            else:
                draft.operator(str(draft.pick(*names)))
            is_kept = draft.commit()
        except _UNFIT:
            is_kept = False
        if not is_kept:
            draft.constants, draft.inputs, draft.values = before
        if len(draft.nodes) >= wanted:
            break
    read, name = reads(draft.nodes), f"seed {seed}"
    outputs = [value for node in draft.nodes for value in node.output
               if node.op_type != "Constant" and (value not in read or draft.chance(0.1))]
    shared = {size for value in draft.inputs.values() for size in value.shape}
    sizes = {size: int(draft.rng.integers(1, 6)) for size in sorted(shared) if draft.chance(0.3)}
    other = {value: draft.array(tuple(sizes.get(size, size) for size in array.shape), array.dtype)
             for value, array in draft.inputs.items()}
    model = draft.model(name, outputs, sizes={size: f"d{size}" for size in sizes})
    if sizes and computed(model, other) is not None:
        return model, [draft.inputs, other]
    # constants of the network fix its sizes
    return draft.model(name, outputs), [draft.inputs]
