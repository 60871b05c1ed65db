"""Rules that lower nodes that multiply by weights, or one matrix by another."""

from __future__ import annotations

import numpy as np

from gossamer.expression import identity
from gossamer.model.graph import Node
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.plan.lower.state import LowerState


def conv2d(state: LowerState, node: Node) -> None:
    weight = state.weight(node.inputs[1])
    if weight is None:
        raise ValueError("the weights are computed at run time, expected a constant")
    attributes = node.attributes
    epilogue, values, weights = state.epilogue(node)
    n, c, h, w = state.spec(node.inputs[0]).shape
    problem = Conv2dProblem(
        n, c, h, w, weight.shape[0], (weight.shape[2], weight.shape[3]),
        tuple(attributes["strides"]), tuple(attributes["pads"]), tuple(attributes["dilations"]),
        attributes["groups"], epilogue, state.weights_info(node, weight),
        state.facts([node.inputs[0], *values]), state.stated(node.outputs[0]))
    if min(problem.pads) < 0:
        raise ValueError(f"pads {problem.pads} are negative; crop the input with Slice instead")
    state.add(node, problem, [node.inputs[0], *values], {"weight": weight, **weights})


def conv_transpose2d(state: LowerState, node: Node) -> None:
    weight = state.weight(node.inputs[1])
    bias = state.weight(node.inputs[2]) if len(node.inputs) > 2 else None
    if weight is None or (bias is None and len(node.inputs) > 2):
        raise ValueError("the weights are computed at run time, expected constants")
    attributes = node.attributes
    problem = ConvTranspose2dProblem(
        state.spec(node.inputs[0]), weight.shape[1] * attributes["groups"],
        (weight.shape[2], weight.shape[3]), tuple(attributes["strides"]),
        tuple(attributes["pads"]), tuple(attributes["dilations"]),
        tuple(attributes["output_padding"]), attributes["groups"], bias is not None)
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    state.add(node, problem, node.inputs[:1], weights)


def gemm(state: LowerState, node: Node) -> None:
    a, b = node.inputs[:2]
    attributes = node.attributes
    weight = state.weight(b)
    if weight is None:
        _gemm_of_values(state, node, a, b)
        return
    if attributes.get("trans_a"):
        a = state.transposed(node, a)
    _gemm_of_weight(state, node, a, weight if attributes.get("trans_b") else weight.T)


def _gemm_of_weight(state: LowerState, node: Node, a: str, weight: np.ndarray) -> None:
    """Adds the product of a value with a weight (M, K), whose rows give the M columns of the
    result. A value of more than two dimensions is reshaped to a matrix before the product, and the
    result is reshaped back; reshapes copy nothing."""
    epilogue, values, weights = state.epilogue(node)
    inputs = [state.matrix(node, name) for name in (a, *values)]
    rows, depth = state.spec(inputs[0]).shape
    problem = GemmProblem(rows, weight.shape[0], depth, epilogue,
                          state.weights_info(node, weight),
                          state.facts([node.inputs[0], *values]), state.stated(node.outputs[0]))
    (output,) = node.outputs
    shape = state.static.shapes[output]
    if len(shape) == 2:
        state.add(node, problem, inputs, {"weight": weight, **weights})
        return
    matrix = state.define_matrix(output)
    state.add(node, problem, inputs, {"weight": weight, **weights}, outputs=[matrix])
    state.reshape(node, matrix, output, shape, name=f"{node.name} reshaped")


def _gemm_of_values(state: LowerState, node: Node, a: str, b: str) -> None:
    """Adds a product of two run-time matrices, and its epilogue as a layer of its own."""
    swapped = tuple(index for index, name in enumerate(("trans_a", "trans_b"))
                    if node.attributes.get(name))
    problem = MatmulProblem(state.spec(a), state.spec(b), transposed=swapped)
    expression = node.attributes.get("epilogue") or identity()
    if expression.is_identity:
        state.add(node, problem, [a, b])
        return
    product = f"product of {node.name}"
    state.define(product, problem.outputs[0].shape, problem.outputs[0].dtype)
    state.add(node, problem, [a, b], outputs=[product], name=product)
    state.expression(node, [product, *node.inputs[2:]], expression)


def matmul(state: LowerState, node: Node) -> None:
    a, b = node.inputs
    weight = state.weight(b)
    left = state.spec(a)
    if weight is not None and weight.ndim == 2 and len(left.shape) >= 2:
        _gemm_of_weight(state, node, a, weight.T)
        return
    swapped = tuple(index for index, name in enumerate(node.inputs) if name in state.swapped)
    a, b = (state.swapped.get(name, name) for name in node.inputs)
    state.add(node, MatmulProblem(state.spec(a), state.spec(b), transposed=swapped), [a, b])
