"""optimise: simplifies a graph without changing its results at any batch size."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace

import numpy as np

from gossamer.errors import ModelError
from gossamer.expression import DISCONTINUOUS, Composer, identity
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import ShapesByBatch, live_nodes, shapes_by_batch, visit
from gossamer.model.opset.definition import InferenceState
from gossamer.model.passes.attention_products import join_attention_products
from gossamer.model.passes.channels import (
    choose_channels_by_weights,
    gather_shuffled_channels,
    merge_joined_convolutions,
    move_above_concatenations,
    nest_concatenations,
)
from gossamer.model.passes.consecutive_convolutions import merge_consecutive_convolutions
from gossamer.model.passes.dead_channels import drop_dead_channels
from gossamer.model.passes.expressions import drop_expansions, drop_straight_through
from gossamer.model.passes.fusion import (
    expand_batch_norms,
    fold_batch_norms,
    fuse_chains,
    fuse_epilogues,
)
from gossamer.model.passes.padded_channels import pad_channels
from gossamer.model.passes.parallel_convolutions import merge_parallel_convolutions
from gossamer.model.passes.pixels import keep_pixels, transpose_images_for_tokens
from gossamer.model.passes.reshapes import RESHAPES, move_before_reshapes
from gossamer.model.passes.scaled_signs import move_scales_into_weights, round_scaled_signs
from gossamer.model.passes.transpositions import (
    move_channels_first,
    scale_before_products,
    scale_before_transposing,
)


def optimise(graph: Graph, *, channels_first: bool = False, for_gpu: bool = False,
             pads_channels: bool = False) -> Graph:
    """Return a simplified graph with the same results.

    Constants and batch norms are folded, and element-wise nodes are fused into convolutions,
    products and each other.

    channels_first: whether layers of channels-last images become layers of channels-first images,
    provided that fewer transposes remain. The rewrite helps only kernels that support several
    layouts. ONNX Runtime's kernels support one layout.
    for_gpu: whether to make the rewrites that are faster on GPUs alone. A gather of channels is
    removed if all its readers are 1x1 convolutions, which then read all channels, with zero weights
    for channels that were not selected. Pairs of depthwise convolutions become one, and so do the
    products of attention.
    pads_channels: whether channels of images are padded to a multiple of eight.
    """
    graph = _copy(graph)
    drop_identities(graph)
    fold_constants(graph)
    shapes = shapes_by_batch(graph)
    drop_casts(graph, shapes)
    _rewrite(drop_expansions, graph, shapes)
    drop_dead(graph)
    inline_scalars(graph, shapes)
    merge_equal(graph)
    changed = _rewrite(gather_shuffled_channels, graph, shapes)
    changed |= _rewrite(scale_before_transposing, graph, shapes)
    if channels_first:
        changed |= _rewrite(transpose_images_for_tokens, graph, shapes)
        changed |= _rewrite(move_channels_first, graph, shapes)
    if for_gpu:
        changed |= _rewrite(choose_channels_by_weights, graph, shapes)
    if changed:
        drop_identities(graph)
        drop_dead(graph)
        shapes = shapes_by_batch(graph)
    _rewrite(nest_concatenations, graph)
    if (_rewrite(merge_joined_convolutions, graph, shapes, for_gpu=for_gpu)
            | _rewrite(move_above_concatenations, graph, shapes)):
        drop_dead(graph)
        shapes = shapes_by_batch(graph)
    matmul_to_gemm(graph, shapes)
    if _rewrite(scale_before_products, graph, shapes):
        drop_identities(graph)
        shapes = shapes_by_batch(graph)
    fold_zero_pads(graph, shapes)
    drop_dead(graph)
    round_scaled_signs(graph)
    _rewrite(fold_batch_norms, graph, shapes)
    _rewrite(expand_batch_norms, graph, shapes)
    _rewrite(merge_parallel_convolutions, graph, shapes)
    if for_gpu:
        merge_consecutive_convolutions(graph, shapes)
    drop_dead(graph)
    fuse_chains(graph, shapes)
    # a chain of several nodes is one node now
    _rewrite(move_above_concatenations, graph, shapes)
    _rewrite(drop_straight_through, graph, shapes)
    # drop dead nodes here, because they would count as readers and prevent fusions into epilogues
    drop_dead(graph)
    _rewrite(move_scales_into_weights, graph)
    if _rewrite(move_before_reshapes, graph, shapes):
        drop_dead(graph)
        shapes = shapes_by_batch(graph)
    fuse_epilogues(graph, shapes)
    if _rewrite(keep_pixels, graph, shapes):
        shapes = shapes_by_batch(graph)
        fuse_epilogues(graph, shapes)
    drop_dead_channels(graph, shapes)
    if for_gpu:
        join_attention_products(graph, shapes)
    if pads_channels:
        pad_channels(graph, shapes_by_batch(graph))
    drop_dead(graph)
    return graph


_NEEDED: dict[Callable[..., bool | None], Set[str]] = {
    drop_expansions: {"expand", "constant_of_shape"},
    gather_shuffled_channels: {"transpose"},
    scale_before_transposing: {"transpose"},
    scale_before_products: {"matmul"},
    transpose_images_for_tokens: {"transpose"},
    move_channels_first: {"transpose"},
    choose_channels_by_weights: {"gather"},
    nest_concatenations: {"concat"},
    merge_joined_convolutions: {"concat"},
    move_above_concatenations: {"concat"},
    fold_batch_norms: {"batch_norm"},
    expand_batch_norms: {"batch_norm"},
    merge_parallel_convolutions: {"add", "sub"},
    drop_straight_through: {"sub"},
    move_scales_into_weights: DISCONTINUOUS,
    move_before_reshapes: set(RESHAPES),
    # flatten is not listed, because it makes matrices, never images
    keep_pixels: {"reshape", "squeeze", "unsqueeze"},
}
"""For each pass, the ops and element-wise functions that it rewrites. The pass is skipped if the
graph has none of them."""


def _rewrite(rewriting: Callable[..., bool | None], graph: Graph, *shapes: ShapesByBatch,
             **options: bool) -> bool:
    """Run a pass if the graph has one of the ops or functions that the pass needs.

    Returns whether the pass reports that it changed the graph.
    """
    kinds = {node.op for node in graph.nodes} | {
        step.function for node in graph.nodes if node.op == "elementwise"
        for step in node.attributes["expression"].steps}
    return not kinds.isdisjoint(_NEEDED[rewriting]) and bool(
        rewriting(graph, *shapes, **options))


def _copy(graph: Graph) -> Graph:
    nodes = [replace(node, inputs=list(node.inputs), outputs=list(node.outputs),
                     attributes=dict(node.attributes)) for node in graph.nodes]
    return replace(graph, nodes=nodes, constants=dict(graph.constants),
                   warnings=list(graph.warnings), notes=list(graph.notes))


def drop_identities(graph: Graph) -> None:
    """Remove identities, except between two values that must both keep their names."""
    fixed = {info.name for info in graph.outputs}
    produced = {name for node in graph.nodes for name in node.outputs}
    names: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        if node.op != "identity":
            nodes.append(node)
            continue
        source, name = node.inputs[0], node.outputs[0]
        if name not in fixed:
            names[name] = source
        elif source in produced and source not in fixed:
            # the node that produces the source now writes it under the output's name
            names[source] = name
            fixed.add(name)
            for earlier in nodes:
                earlier.inputs = [name if n == source else n for n in earlier.inputs]
                earlier.outputs = [name if n == source else n for n in earlier.outputs]
            names = {old: name if new == source else new for old, new in names.items()}
        else:
            nodes.append(node)
    graph.nodes = nodes


def drop_casts(graph: Graph, shapes: ShapesByBatch) -> None:
    """Remove casts to the dtype that a value already has.

    An example is a cast from bool to float32, if the booleans are already stored as float32.
    """
    for node in graph.nodes:
        if node.op not in ("cast", "cast_like"):
            continue
        dtype = shapes.dtype(node.inputs[0])
        if dtype and dtype == (node.attributes.get("dtype") or shapes.dtype(node.inputs[-1])):
            node.op, node.inputs, node.attributes = "identity", node.inputs[:1], {}
    drop_identities(graph)


def fold_constants(graph: Graph) -> None:
    """Evaluate nodes with constant inputs only, if their op has a NumPy evaluation."""
    nodes = []
    state = InferenceState(replace(graph, inputs=[], nodes=[]), 0)
    for node in graph.nodes:
        if all(name in graph.constants for name in node.inputs):
            try:
                visit(state, node)
            except ModelError:
                # keep the node: resolve() raises its error at the batch size that the user requests
                nodes.append(node)
                continue
            if all(name in state.known for name in node.outputs):
                graph.constants.update({name: state.known[name] for name in node.outputs})
                continue
        nodes.append(node)
    graph.nodes = nodes


def inline_scalars(graph: Graph, shapes: ShapesByBatch) -> None:
    """Turn constants of one element into steps of the expressions that read them."""
    for node in graph.nodes:
        if node.op != "elementwise":
            continue
        if any(shapes.dtype(name) != "float32" for name in node.inputs):
            continue
        composer = Composer()
        values = [composer.operand_or_constant(name, graph.constants.get(name))
                  for name in node.inputs]
        outputs = composer.inline(node.attributes["expression"], values)
        operands, expression = composer.build(*outputs)
        if operands and shapes.broadcast_to(node.outputs[0], operands, graph.constants):
            node.inputs, node.attributes["expression"] = operands, expression


def merge_equal(graph: Graph) -> None:
    """Merge nodes that compute the same result from the same inputs."""
    first: dict[object, Node] = {}
    names: dict[str, str] = {}
    fixed = {info.name for info in graph.outputs}
    nodes = []
    for node in graph.nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        key = (node.op, tuple(map(bool, node.outputs)), tuple(node.inputs),
               tuple((name, _exact(node.attributes[name])) for name in sorted(node.attributes)))
        twin = first.get(key)
        if twin is not None and not fixed.intersection(node.outputs):
            names.update((name, twin_name) for name, twin_name
                         in zip(node.outputs, twin.outputs, strict=True) if name)
        else:
            first.setdefault(key, node)
            nodes.append(node)
    graph.nodes = nodes


def _exact(value: object) -> object:
    """Return a key that two attributes share only if they are equal.

    The repr of an array is not sufficient: it rounds numbers, and omits elements of large arrays.
    """
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return repr(value)


def matmul_to_gemm(graph: Graph, shapes: ShapesByBatch) -> None:
    """Turn products with a constant matrix into gemms, which can have an epilogue.

    The other factor is a matrix, or a tensor of higher rank with vectors along its last axis.
    """
    for node in graph.nodes:
        if node.op != "matmul":
            continue
        x, weight = node.inputs[0], graph.constants.get(node.inputs[1])
        if weight is None or weight.ndim != 2 or weight.dtype != np.float32:
            continue
        if shapes.depends_on_data(x) and (shapes.rank(x) or 0) >= 2:
            node.op = "gemm"
            node.attributes = {"trans_a": False, "trans_b": False, "epilogue": identity()}


def fold_zero_pads(graph: Graph, shapes: ShapesByBatch) -> None:
    """Move zero padding of images into the convolutions that read the images."""
    images: dict[str, tuple[str, Sequence[int]]] = {}
    for node in graph.nodes:
        if node.op == "pad" and (pads := _image_pads(node, shapes)) is not None:
            images[node.outputs[0]] = node.inputs[0], pads
    for node in graph.nodes:
        image = images.get(node.inputs[0]) if node.inputs else None
        if image is not None and node.op == "conv2d" and "auto_pad" not in node.attributes:
            node.inputs[0], pads = image
            node.attributes["pads"] = tuple(
                size + more for size, more in zip(node.attributes["pads"], pads, strict=True))


def _image_pads(node: Node, shapes: ShapesByBatch) -> Sequence[int] | None:
    """Return the pads (top, left, bottom, right) of a node that only zero-pads images.

    Returns None for other nodes. Pads that exporters compute from the image's size are already
    known, because this size does not depend on the batch.
    """
    concrete = shapes.with_attributes(node)
    if concrete is None:
        return None
    node = concrete
    pads = node.attributes.get("pads", ())
    rest = node.attributes.get("value") or node.attributes.get("axes")
    if node.attributes["mode"] != "constant" or rest or len(pads) != 8 or min(pads) < 0 or (
            any(pads[axis] for axis in (0, 1, 4, 5))):
        return None
    return [pads[axis] for axis in (2, 3, 6, 7)]


def drop_dead(graph: Graph) -> None:
    """Remove nodes and constants on which no output depends."""
    outputs = [info.name for info in graph.outputs]
    graph.nodes = live_nodes(graph.nodes, outputs)
    used = {name for node in graph.nodes for name in node.inputs} | set(outputs)
    graph.constants = {name: a for name, a in graph.constants.items() if name in used}


