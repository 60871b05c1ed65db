"""Rules that lower graph nodes to problems of ops.

This module and state.py are the only code that makes problems from nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.errors import UnsupportedError
from gossamer.expression import identity
from gossamer.model.facts import derive, stating_nan
from gossamer.model.graph import Graph, Node, StaticGraph
from gossamer.model.opset.definition import OpDef
from gossamer.model.opset.onnx_nodes import has_float16, nodes_of
from gossamer.model.opset.registry import OPSET
from gossamer.model.opset.shapes import swaps_matrices
from gossamer.model.passes.optimise import optimise
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.copy import problem as copy_problem
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.elementwise.problem import cast
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.onnx_part.problem import MODEL, OnnxPartProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ops.weights import WeightsStore
from gossamer.plan.lower.state import LowerState
from gossamer.plan.program import Layer
from gossamer.tensor import default_spec

_MOST_KNOWN = 4096
"""Maximum number of elements of a constant integer input whose values become part of a problem.
Shapes have far fewer elements; larger inputs are indices or masks."""


def optimised_for(graph: Graph, device: Device, precision: str) -> Graph:
    """Return the optimised graph for a device's plans.

    The optimised graph has the same results as `graph`.

    precision: the lowest precision of the plans. Channels are padded for float16: of float32,
    vectors have four elements, and further channels would be more work for nothing.
    """
    is_gpu = device.compiles and not device.on_processors
    return optimise(graph, channels_first=device.compiles, for_gpu=is_gpu,
                    pads_channels=is_gpu and precision == "fp16")


def lower(static: StaticGraph, store: WeightsStore | None = None
          ) -> tuple[list[Layer], dict[str, np.ndarray]]:
    """Return a graph's layers in order, and their run-time constants.

    The constants are those that the layers read as run-time values.

    store: facts and packed forms of the graph's weights, which all batch sizes share.
    Raises UnsupportedError, which names the node, if no problem describes a node.
    """
    state = LowerState(static, WeightsStore() if store is None else store,
                       stating_nan(static, derive(static)))
    for node in static.nodes:
        _lower_node(state, node)
    for info in static.graph.outputs:
        if info.name in static.constants:
            state.constants[info.name] = static.constants[info.name]
    return _needed(state), state.constants


def _needed(state: LowerState) -> list[Layer]:
    """Return the layers without unnecessary reshapes and transpositions.

    A reshape or transposition is unnecessary if no layer reads its result, because all layers that
    need the result read the input of the reshape or transposition. For example, a matrix product
    can read the result of another product before this result is reshaped to more dimensions, and a
    product can transpose an operand itself.
    """
    outputs = {info.name for info in state.static.graph.outputs}
    by_layers = {name for layer in state.layers for name in layer.inputs} | outputs
    return _with_joined_copies([
        layer for layer in state.layers
        if (not layer.is_reshape and layer.outputs[0] not in state.swapped)
        or layer.outputs[0] in by_layers or layer.outputs[0] not in state.read], outputs)


def _with_joined_copies(layers: Sequence[Layer], outputs: Collection[str]) -> list[Layer]:
    """Return the layers with one copy in place of each two of which only copies read the first.

    An example is the transpose of queries, keys and values whose slices are read. Copies of images
    stay as they are, because a slice of their channels may be read where it is.
    """
    copies = {layer.outputs[0]: layer for layer in layers
              if isinstance(layer.problem, CopyProblem) and layer.problem.is_free_of_format}
    read = {name for layer in layers if layer.outputs[0] not in copies for name in layer.inputs}
    passed = {name for layer in copies.values() for name in layer.inputs
              if name in copies and name not in read and name not in outputs
              and len(copies[name].problem.outputs[0].shape) != 4}
    for name, layer in copies.items():
        (source,) = layer.inputs
        if source in passed:
            first, second = copies[source].problem, layer.problem
            assert isinstance(first, CopyProblem) and isinstance(second, CopyProblem)
            copies[name] = replace(layer, inputs=copies[source].inputs, problem=first.then(second))
    return [copies.get(layer.outputs[0], layer) for layer in layers
            if layer.outputs[0] not in passed]


def flops_by_node(static: StaticGraph) -> dict[str, int]:
    """Return the floating-point operations of each node by its name.

    A node's operations are the operations of all layers that are made from the node. Raises
    UnsupportedError as lower() does.
    """
    state = LowerState(static, WeightsStore(), {})
    flops = {}
    for node in static.nodes:
        begin = len(state.layers)
        _lower_node(state, node)
        flops[node.name] = sum(layer.problem.flops for layer in state.layers[begin:])
    return flops


def _lower_node(state: LowerState, node: Node) -> None:
    """Add the layers of a node. Raises UnsupportedError, which names the node."""
    graph = state.static.graph
    try:
        _RULES[node.op](state, node)
    except ValueError as error:
        raise UnsupportedError(f"{graph.file}: {node.source or node.name}: {error}") from None


def _conv2d(state: LowerState, node: Node) -> None:
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


def _conv_transpose2d(state: LowerState, node: Node) -> None:
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


def _gemm(state: LowerState, node: Node) -> None:
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
    """Add the product of a value with a weight.

    The weight is (M, K): each of its M rows gives one column of the result. A value of more than
    two dimensions is reshaped to a matrix before the product, and the result is reshaped back;
    reshapes copy nothing.
    """
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
    """Add a product of run-time matrices.

    The epilogue is added as a separate layer.
    """
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


def _matmul(state: LowerState, node: Node) -> None:
    a, b = node.inputs
    weight = state.weight(b)
    left = state.spec(a)
    if weight is not None and weight.ndim == 2 and len(left.shape) >= 2:
        _gemm_of_weight(state, node, a, weight.T)
        return
    swapped = tuple(index for index, name in enumerate(node.inputs) if name in state.swapped)
    a, b = (state.swapped.get(name, name) for name in node.inputs)
    state.add(node, MatmulProblem(state.spec(a), state.spec(b), transposed=swapped), [a, b])


def _batch_norm_training(state: LowerState, node: Node) -> None:
    a = node.attributes
    names = ["gamma", "beta"]
    outputs = node.outputs[:1]
    if state.read.intersection(node.outputs[1:]):
        names += ["stored_mean", "stored_variance"]
        outputs = node.outputs
    problem = BatchNormProblem(state.spec(node.inputs[0]), a["epsilon"],
                               a["momentum"] if len(outputs) > 1 else None)
    weights = {name: state.static.constants[value]
               for name, value in zip(names, node.inputs[1:], strict=False)}
    state.add(node, problem, node.inputs[:1], weights, outputs=outputs)


def _elementwise(state: LowerState, node: Node) -> None:
    state.expression(node, node.inputs, node.attributes["expression"])


def _cast(state: LowerState, node: Node) -> None:
    source = state.spec(node.inputs[0])
    state.add(node, cast(source, node.attributes["dtype"]), node.inputs)


def _pool(state: LowerState, node: Node) -> None:
    a = node.attributes
    state.add(node, PoolProblem(
        state.spec(node.inputs[0]), a["kind"], tuple(a["kernel"]), tuple(a["strides"]),
        tuple(a["pads"]), tuple(a["dilations"]), bool(a["ceil_mode"]),
        bool(a["count_include_pad"]), state.facts(node.inputs[:1])), node.inputs[:1])


def _reduce(state: LowerState, node: Node) -> None:
    a = node.attributes
    state.add(node, ReduceProblem(state.spec(node.inputs[0]), a["kind"], tuple(a["axes"]),
                                  bool(a["keepdims"]), state.facts(node.inputs[:1])),
              node.inputs[:1])


def _concat(state: LowerState, node: Node) -> None:
    parts = tuple(state.spec(name) for name in node.inputs)
    axis = node.attributes["axis"] % len(parts[0].shape)
    state.add(node, ConcatProblem(parts, axis, state.facts(node.inputs)), node.inputs)


def _split(state: LowerState, node: Node) -> None:
    source = state.spec(node.inputs[0])
    axis = node.attributes["axis"] % len(source.shape)
    parts = copy_problem.split(source, axis, node.attributes["sizes"])
    for index, (problem, output) in enumerate(zip(parts, node.outputs, strict=True)):
        if output in state.read:
            state.copy(node, problem, outputs=[output], name=f"{node.name}.{index}")


def _slice(state: LowerState, node: Node) -> None:
    a = node.attributes
    source = state.spec(node.inputs[0])
    # in a graph an end of -1 means that a backward slice includes element 0; slice_() would count
    # -1 from the end of the axis
    ends = [-source.shape[axis] - 1 if end < 0 else end
            for end, axis in zip(a["ends"], a["axes"], strict=True)]
    state.copy(node, copy_problem.slice_(source, a["starts"], ends, a["axes"], a["steps"]))


def _reshape(state: LowerState, node: Node) -> None:
    state.reshape(node, node.inputs[0], node.outputs[0],
                  state.static.shapes[node.outputs[0]])


def _transpose(state: LowerState, node: Node) -> None:
    (source,) = node.inputs
    if swaps_matrices(node) and state.constant(source) is None:
        state.swapped[node.outputs[0]] = source
    state.copy(node, copy_problem.transpose(state.spec(source), node.attributes["permutation"]))


def _expand(state: LowerState, node: Node) -> None:
    state.add(node, copy_problem.expand(state.spec(node.inputs[0]),
                                        state.static.shapes[node.outputs[0]]), node.inputs[:1])


def _pad(state: LowerState, node: Node) -> None:
    a = node.attributes
    state.add(node, PadProblem(state.spec(node.inputs[0]), tuple(a["pads"]), a["mode"],
                               float(a.get("value") or 0.0), state.facts(node.inputs[:1])),
              node.inputs[:1])


def _resize(state: LowerState, node: Node) -> None:
    """Add a resize of rank 3 or 4.

    A tensor of rank 3 is treated as rank 4 with a height of 1.
    """
    a = node.attributes
    source = state.spec(node.inputs[0])
    sizes, scales = tuple(a["sizes"]), tuple(a["scales"])
    rules = (a["mode"], a["coordinates"], a["nearest_mode"])
    if len(source.shape) == 4:
        state.add(node, ResizeProblem(source, sizes, scales, *rules), node.inputs[:1])
        return
    if len(source.shape) != 3:
        raise ValueError(f"expected an input of rank 3 or 4, got {source}")
    n, c, w = source.shape
    lifted, result = f"{node.name} lifted", f"{node.name} resized"
    state.reshape(node, node.inputs[0], lifted, (n, c, 1, w), name=lifted)
    problem = ResizeProblem(default_spec((n, c, 1, w), source.dtype), (1, *sizes), (1.0, *scales),
                            *rules)
    state.add(node, problem, [lifted], outputs=[result], name=result)
    state.define(result, problem.outputs[0].shape, source.dtype)
    state.reshape(node, result, node.outputs[0], state.static.shapes[node.outputs[0]])


def _softmax(state: LowerState, node: Node) -> None:
    source = state.spec(node.inputs[0])
    axis = node.attributes["axis"] % len(source.shape)
    state.add(node, SoftmaxProblem(source, axis, bool(node.attributes["log"])),
              node.inputs[:1])


def _layer_norm(state: LowerState, node: Node) -> None:
    a = node.attributes
    x, scale, bias = node.inputs
    state.add(node, LayerNormProblem(state.spec(x), tuple(a["axes"]), float(a["epsilon"]),
                                     bool(a["centred"])), [x],
              {"scale": state.static.constants[scale], "bias": state.static.constants[bias]})


def _top_k(state: LowerState, node: Node) -> None:
    a = node.attributes
    (count,) = a["count"]
    problem = TopKProblem(state.spec(node.inputs[0]), a["axis"], count, a["largest"],
                          a["nan_first"], a["last"], places_only=node.outputs[0] not in state.read)
    state.add(node, problem, node.inputs[:1],
              outputs=node.outputs[1:] if problem.places_only else node.outputs)


def _onnx_part(state: LowerState, node: Node) -> None:
    model = node.attributes["model"]
    data = model.tobytes()
    constants = {index: array for index, name in enumerate(node.inputs)
                 if (array := state.weight(name)) is not None}
    inputs = [name for index, name in enumerate(node.inputs) if index not in constants]
    known = [(index, tuple(map(int, array.flat))) for index, name in enumerate(inputs)
             if (array := state.constant(name)) is not None and array.dtype.kind in "iub"
             and array.size <= _MOST_KNOWN]
    problem = OnnxPartProblem(
        tuple(state.spec(name) for name in node.inputs),
        tuple(state.spec(name) for name in node.outputs), tuple(constants), len(data),
        hashlib.sha256(data).hexdigest(), nodes_of(model), tuple(known), has_float16(model))
    state.add(node, problem, inputs,
              {MODEL: model, **{f"operand{index}": array for index, array in constants.items()}})


def _gather(state: LowerState, node: Node) -> None:
    data, indices = node.inputs
    source, order = state.spec(data), state.weight(indices)
    problem = GatherProblem(source, state.spec(indices),
                            node.attributes["axis"] % len(source.shape),
                            () if order is None else (1,))
    if order is None:
        state.add(node, problem, [data, indices])
    else:
        state.add(node, problem, [data], {"operand1": order})


_RULES: dict[str, Callable[[LowerState, Node], Any]] = {
    "batch_norm_training": _batch_norm_training,
    "cast": _cast,
    "concat": _concat,
    "conv2d": _conv2d,
    "conv_transpose2d": _conv_transpose2d,
    "elementwise": _elementwise,
    "expand": _expand,
    "gather": _gather,
    "gemm": _gemm,
    "layer_norm": _layer_norm,
    "matmul": _matmul,
    "pad": _pad,
    "onnx_part": _onnx_part,
    "pool": _pool,
    "reduce": _reduce,
    "reshape": _reshape,
    "resize": _resize,
    "slice": _slice,
    "softmax": _softmax,
    "split": _split,
    "top_k": _top_k,
    "transpose": _transpose,
}


def check_rules(opset: Mapping[str, OpDef], rules: Collection[str]) -> None:
    """Raise TypeError unless the rules match the static ops.

    The error names the ops that have no rule although static graphs may contain them, and the rules
    for ops that no static graph contains.
    """
    remaining = {name for name, definition in opset.items() if definition.remains}
    problems = [f"{text}: {', '.join(sorted(names))}" for text, names in (
        ("ops without a lowering rule", remaining.difference(rules)),
        ("rules for ops that no static graph has", set(rules) - remaining)) if names]
    if problems:
        raise TypeError("; ".join(problems))


check_rules(OPSET, _RULES)
