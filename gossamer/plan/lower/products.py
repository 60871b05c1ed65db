"""Rules for nodes that multiply by weights, or one matrix by another."""

from __future__ import annotations

from gossamer.expression import identity
from gossamer.model.graph import Node
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.plan.lower.state import Lowering


def conv2d(lowering: Lowering, node: Node) -> None:
    weight = lowering.weight(node.inputs[1])
    if weight is None:
        raise ValueError("the weights are computed at run time, expected a constant")
    attributes = node.attributes
    epilogue, values, weights = lowering.epilogue(node)
    n, c, h, w = lowering.spec(node.inputs[0]).shape
    problem = Conv2dProblem(
        n, c, h, w, weight.shape[0], (weight.shape[2], weight.shape[3]),
        tuple(attributes["strides"]), tuple(attributes["pads"]), tuple(attributes["dilations"]),
        attributes["groups"], epilogue, lowering.weights_info(node, weight))
    if min(problem.pads) < 0:
        raise ValueError(f"pads {problem.pads} are negative; crop the input with Slice instead")
    lowering.add(node, problem, [node.inputs[0], *values],
                 {"weight": weight, **weights})


def conv_transpose2d(lowering: Lowering, node: Node) -> None:
    weight = lowering.weight(node.inputs[1])
    bias = lowering.weight(node.inputs[2]) if len(node.inputs) > 2 else None
    if weight is None or (bias is None and len(node.inputs) > 2):
        raise ValueError("the weights are computed at run time, expected constants")
    attributes = node.attributes
    problem = ConvTranspose2dProblem(
        lowering.spec(node.inputs[0]), weight.shape[1] * attributes["groups"],
        (weight.shape[2], weight.shape[3]), tuple(attributes["strides"]),
        tuple(attributes["pads"]), tuple(attributes["dilations"]),
        tuple(attributes["output_padding"]), attributes["groups"], bias is not None)
    weights = {"weight": weight} if bias is None else {"weight": weight, "bias": bias}
    lowering.add(node, problem, node.inputs[:1], weights)


def gemm(lowering: Lowering, node: Node) -> None:
    a, b = node.inputs[:2]
    attributes = node.attributes
    if attributes.get("trans_a"):
        a = lowering.transposed(node, a)
    weight = lowering.weight(b)
    if weight is None:
        _gemm_of_values(lowering, node, a, b)
        return
    if not attributes.get("trans_b"):
        weight = weight.T
    epilogue, values, weights = lowering.epilogue(node)
    rows, depth = lowering.spec(a).shape
    problem = GemmProblem(rows, weight.shape[0], depth, epilogue,
                          lowering.weights_info(node, weight))
    lowering.add(node, problem, [a, *values], {"weight": weight, **weights})


def _gemm_of_values(lowering: Lowering, node: Node, a: str, b: str) -> None:
    """A product of two run-time matrices, and its epilogue as a layer of its own."""
    if node.attributes.get("trans_b"):
        b = lowering.transposed(node, b)
    problem = MatmulProblem(lowering.spec(a), lowering.spec(b))
    expression = node.attributes.get("epilogue") or identity()
    if expression.is_identity:
        lowering.add(node, problem, [a, b])
        return
    product = f"product of {node.name}"
    lowering.define(product, problem.outputs[0].shape, problem.outputs[0].dtype)
    lowering.add(node, problem, [a, b], outputs=[product], name=product)
    lowering.expression(node, [product, *node.inputs[2:]], expression)


def matmul(lowering: Lowering, node: Node) -> None:
    a, b = node.inputs
    weight = lowering.weight(b)
    left = lowering.spec(a)
    if weight is not None and weight.ndim == 2 and len(left.shape) == 2:
        problem = GemmProblem(left.shape[0], weight.shape[1], left.shape[1],
                              weights_info=lowering.weights_info(node, weight.T))
        lowering.add(node, problem, [a], {"weight": weight.T})
        return
    lowering.add(node, MatmulProblem(left, lowering.spec(b)), [a, b])
