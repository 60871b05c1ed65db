"""OPSET: the definitions of all ops of graphs, by name."""

from __future__ import annotations

import numpy as np

from gossamer.model.graph import Node
from gossamer.model.opset import (
    elementwise,
    indexing,
    linear,
    normalisation,
    onnx_nodes,
    parts,
    products,
    reductions,
    shapes,
    windows,
)
from gossamer.model.opset.definition import OpDef

OPSET: dict[str, OpDef] = {
    definition.name: definition
    for module in (products, normalisation, windows, elementwise, reductions, shapes, parts,
                   indexing, linear, onnx_nodes)
    for definition in module.DEFINITIONS}


def inputs_to_attributes(node: Node, constants: dict[str, np.ndarray]) -> bool:
    """Turn a node's parameter inputs into attributes if all parameters are known.

    Returns whether the node was changed.
    """
    names = OPSET[node.op].attribute_inputs
    values = node.inputs[1:]
    if not names or any(name and name not in constants for name in values):
        return False
    for parameter, name in zip(names, values, strict=False):
        if name:
            array = constants[name]
            node.attributes[parameter] = (array.item() if parameter == "value"
                                          else tuple(array.reshape(-1).tolist()))
    node.inputs = node.inputs[:1]
    return True
