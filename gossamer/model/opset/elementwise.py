"""Definitions of the element-wise ops, and the dtypes in which they are computed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gossamer.expression import DISCONTINUOUS
from gossamer.facts import REAL, ValueFacts, integers
from gossamer.model.compose import Composer
from gossamer.model.graph import Node, StaticGraph
from gossamer.model.opset.definition import (
    RESOLVED,
    InferenceState,
    OpDef,
    always,
    broadcasts_across_images,
)
from gossamer.model.opset.expression_facts import expression_facts

_RANGES = {"bool": (0, 1), **{
    np.dtype(kind).name: (int(np.iinfo(kind).min), int(np.iinfo(kind).max))
    for kind in (np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64)}}
"""The smallest and largest value of booleans and of each integer dtype."""

COMPUTED = ("float32", "int32", "int64", "int8", "uint8", "int16", "uint16", "bool")
"""The dtypes in which element-wise ops compute, and to which they cast. Values that follow from
shapes may have any dtype."""


def _check_dtypes(state: InferenceState, node: Node, dtypes: Iterable[str]) -> None:
    """Raise UnsupportedError for a dtype that is not in COMPUTED.

    If all inputs of the node are known, any dtype is allowed.
    """
    if all(name in state.known for name in node.inputs):
        return
    for dtype in dtypes:
        if dtype not in COMPUTED:
            raise state.unsupported(node, f"computes with {dtype}; gossamer computes elements in "
                                          f"{', '.join(COMPUTED)}")


def _elementwise_shape(state: InferenceState, node: Node) -> None:
    """Emit the node with all operands cast to one dtype.

    The common dtype is float32 if an operand is float32 or if all operands are booleans, else the
    integer dtype that can represent all operands. Thus, an int64 combined with a float32 is
    rounded. Booleans and conditions of `where` are cast to the common dtype too.
    """
    # check dtypes first: a wrong dtype is wrong at all sizes of the inputs, whereas shapes that do
    # not match here may match at other sizes
    _check_dtypes(state, node, (state.dtypes[name] for name in node.inputs))
    shapes = [state.shapes[name] for name in node.inputs]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        text = " and ".join(str(list(s)) for s in shapes)
        raise state.error(node, f"shapes {text} do not broadcast") from None
    steps = node.attributes["expression"].steps
    conditions = {step.arguments[0] for step in steps if step.function == "where"}
    conditions -= {value for step in steps
                   for value in step.arguments[1 if step.function == "where" else 0:]}
    dtypes = {state.dtypes[name] for index, name in enumerate(node.inputs)
              if index not in conditions}
    if all(name in state.known for name in node.inputs):
        dtypes = set()
    target = "float32"
    numbers = dtypes - {"bool"}
    if numbers and "float32" not in numbers:
        target = np.result_type(*numbers).name
        for step in steps:
            if any(constant != np.trunc(constant) or np.isinf(constant)
                   for constant in step.constants):
                raise state.unsupported(node, f"computes with {step.constants[0]:g} and {target}; "
                                              "gossamer computes integers only with integers")
    inputs = list(node.inputs)
    for index, name in enumerate(inputs):
        if not dtypes or state.dtypes[name] == target:
            continue
        cast = state.new_name(node, f"operand{index}")
        inputs[index] = state.cast(node, name, [cast], target)
    state.emit(node, shape, inputs=inputs, dtype=target, expression=node.attributes["expression"])


def _mod_shape(state: InferenceState, node: Node) -> None:
    """Emit the remainder of a division as an expression.

    Integer quotients are rounded towards 0.
    """
    composer = Composer()
    a, b = composer.operand("a"), composer.operand("b")
    if any(state.dtypes[name] == "float32" for name in node.inputs):
        rest = a.apply("fmod", b)
    else:
        rest = a - a / b * b
    if not node.attributes["of_dividend"]:
        signs = rest.apply("sign") * b.apply("sign")
        rest = signs.apply("less", 0).apply("where", rest + b, rest)
    node.op = "elementwise"
    node.attributes = {"expression": composer.build(rest)[1]}
    _elementwise_shape(state, node)


def _elementwise(attributes: dict[str, Any],
                 arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    numbers = [a.astype(np.int64) if a.dtype == bool else a for a in arrays]
    results = attributes["expression"].evaluate(*numbers)
    shape = np.broadcast_shapes(*[a.shape for a in arrays])
    results = [np.broadcast_to(result, shape) for result in results]
    return [r.astype(np.float32) if r.dtype.kind == "f" else r for r in results]


def _is_discontinuous(node: Node) -> bool:
    return any(step.function in DISCONTINUOUS for step in node.attributes["expression"].steps)


def _elementwise_facts(static: StaticGraph, node: Node,
                       facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    integer = not any(static.dtypes[name] == "float32" for name in node.inputs)
    results = expression_facts(node.attributes["expression"], facts, integer=integer)
    if not integer:
        return results
    return [_stored(result, static.dtypes[name])
            for result, name in zip(results, node.outputs, strict=True)]


def _cast_shape(state: InferenceState, node: Node) -> None:
    x, dtype = node.inputs[0], node.attributes["dtype"]
    if state.dtypes[x] == dtype and x not in state.known:
        state.alias(node)
    else:
        _check_dtypes(state, node, (state.dtypes[x], dtype))
        state.cast(node, x, node.outputs, dtype)


def _cast_like_shape(state: InferenceState, node: Node) -> None:
    node.attributes = {"dtype": state.dtypes[node.inputs.pop()]}
    _cast_shape(state, node)


def _cast(attributes: dict[str, Any], arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    return [arrays[0].astype(attributes["dtype"])]


def _cast_facts(static: StaticGraph, node: Node, facts: Sequence[ValueFacts]) -> list[ValueFacts]:
    (x,), dtype = facts, node.attributes["dtype"]
    if dtype not in _RANGES:
        return [x if x.count is not None else REAL]
    return [dtype_facts(dtype) if dtype == "bool" else _stored(x.truncate(), dtype)]


def _stored(whole: ValueFacts, dtype: str) -> ValueFacts:
    """Return the facts of integers stored in a dtype.

    If an integer does not fit, any value of the dtype may result, because devices convert such
    integers differently.
    """
    allowed = dtype_facts(dtype)
    fits = whole.count is not None and allowed.low <= whole.low and whole.high <= allowed.high
    return whole if fits else allowed


def dtype_facts(dtype: str) -> ValueFacts:
    """Return the facts that hold for every value of a dtype."""
    return integers(*_RANGES[dtype]) if dtype in _RANGES else REAL


DEFINITIONS = (
    OpDef("elementwise",
          text="operands, which broadcast; expression: an Expression with as many outputs as the "
               "node, in which truth values are 1 and 0 in the dtype of the compared numbers",
          shape=_elementwise_shape, evaluate=_elementwise, mixes=broadcasts_across_images,
          passes_values=True, discontinuous=_is_discontinuous, facts=_elementwise_facts,
          float_only=False, attribute_inputs=()),
    OpDef("mod",
          text="a, b; of_dividend: whether the remainder has the sign of a, as in C, else that of "
               "b, as in Python",
          shape=_mod_shape, **RESOLVED, passes_values=True, discontinuous=always, float_only=False,
          attribute_inputs=()),
    OpDef("cast", text="x; dtype",
          shape=_cast_shape, evaluate=_cast, mixes=broadcasts_across_images, passes_values=True,
          discontinuous=always, facts=_cast_facts, float_only=False, attribute_inputs=()),
    OpDef("cast_like", text="x, and a value with the dtype to which x is cast; no attributes",
          shape=_cast_like_shape, **RESOLVED, passes_values=True, discontinuous=always,
          float_only=False, attribute_inputs=()),
)
