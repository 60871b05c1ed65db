"""visit: applies the shape rule of one node, and evaluates nodes whose inputs are all known."""

from __future__ import annotations

import copy

import numpy as np

from gossamer.errors import quoted
from gossamer.model.graph import Node
from gossamer.model.opset.definition import not_evaluated
from gossamer.model.opset.registry import OPSET, inputs_to_attributes
from gossamer.model.opset.state import MALFORMED, InferenceState, malformed

_VIEWS = ("expand", "reshape")
"""Ops whose results are views of their first input in NumPy. A view takes no memory."""


def visit(state: InferenceState, node: Node) -> None:
    """Applies the shape rule of a node's op, which adds nodes to the state. An added node whose
    inputs are all known is replaced by its values. Raises ModelError for a malformed node."""
    node = copy.copy(node)
    node.attributes = dict(node.attributes)
    node.inputs = [state.aliases.get(name, name) for name in node.inputs]
    definition = OPSET.get(node.op)
    if definition is None:
        raise state.error(node, f"op {quoted(node.op)} is unknown")
    for name in node.inputs:
        if name and name not in state.shapes:
            raise state.error(node, f"reads {quoted(name)}, which nothing provides")
    if definition.attribute_inputs and not inputs_to_attributes(node, state.known):
        unknown = next(n for n in node.inputs[1:] if n and n not in state.known)
        raise state.unsupported(node, f"depends for its shape on {quoted(unknown)}, which the data "
                                      "decides; gossamer needs shapes that follow from the input's "
                                      "shape")
    if definition.float_only and not all(name in state.known for name in node.inputs):
        for name in node.inputs:
            if name and state.dtypes[name] != "float32":
                raise state.unsupported(node, f"computes with {state.dtypes[name]} "
                                              f"({quoted(name)}); gossamer computes it in float32")
    emitted = len(state.nodes)
    try:
        with np.errstate(all="ignore"):
            definition.shape(state, node)
            state.nodes[emitted:] = [new for new in state.nodes[emitted:]
                                     if not _evaluated(state, node, new)]
    except MALFORMED as error:
        raise state.error(node, malformed(error)) from error


def _evaluated(state: InferenceState, node: Node, new: Node) -> bool:
    """Computes the values of a new node, and returns whether that was possible. node: the node of
    the graph, for messages."""
    evaluate = OPSET[new.op].evaluate
    if evaluate is not_evaluated or any(name not in state.known for name in new.inputs):
        return False
    is_view = new.op in _VIEWS
    if not is_view:
        for name in new.outputs:
            state.check_constant(node, state.shapes[name], state.dtypes[name])
    read = [state.known[name] for name in new.inputs]
    for name, array in zip(new.outputs, evaluate(new.attributes, read), strict=True):
        if is_view and not np.may_share_memory(array, read[0]):
            state.check_constant(node, state.shapes[name], state.dtypes[name])
        state.know(name, array)
    return True
