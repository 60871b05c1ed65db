"""optimise: rewrites of a graph that keep its results and hold for every batch size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gossamer.errors import ModelError
from gossamer.expression import identity
from gossamer.model.compose import Composer
from gossamer.model.graph import Graph, Node
from gossamer.model.infer.resolve import live_nodes
from gossamer.model.infer.sample import Sample, as_step, sample
from gossamer.model.infer.shape_rules import visit
from gossamer.model.infer.state import InferenceState
from gossamer.model.passes.batch_norm import expand_batch_norms, fold_batch_norms
from gossamer.model.passes.fusion import fuse_chains, fuse_epilogues


def optimise(graph: Graph) -> Graph:
    """Folds constants and batch norms, and fuses element-wise arithmetic into convolutions,
    products and each other. The graph given is not changed."""
    graph = _copy(graph)
    drop_identities(graph)
    fold_constants(graph)
    known = sample(graph)
    inline_scalars(graph, known)
    merge_equal(graph)
    matmul_to_gemm(graph, known)
    fold_zero_pads(graph)
    fold_batch_norms(graph)
    expand_batch_norms(graph, known)
    fuse_chains(graph, known)
    fuse_epilogues(graph, known)
    drop_dead(graph)
    return graph


def _copy(graph: Graph) -> Graph:
    nodes = [replace(node, inputs=list(node.inputs), outputs=list(node.outputs),
                     attributes=dict(node.attributes)) for node in graph.nodes]
    return replace(graph, nodes=nodes, constants=dict(graph.constants),
                   warnings=list(graph.warnings))


def drop_identities(graph: Graph) -> None:
    """Removes identities; one between two values that must keep their names stays."""
    fixed = {info.name for info in graph.outputs}
    makers = {name for node in graph.nodes for name in node.outputs}
    names: dict[str, str] = {}
    kept = []
    for node in graph.nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        if node.op != "identity":
            kept.append(node)
            continue
        source, name = node.inputs[0], node.outputs[0]
        if name not in fixed:
            names[name] = source
        elif source in makers and source not in fixed:
            # the maker takes the output's name
            names[source] = name
            fixed.add(name)
            for other in kept:
                other.inputs = [name if n == source else n for n in other.inputs]
                other.outputs = [name if n == source else n for n in other.outputs]
            names = {old: name if new == source else new for old, new in names.items()}
        else:
            kept.append(node)
    graph.nodes = kept


def fold_constants(graph: Graph) -> None:
    """Computes the nodes all of whose inputs are constants, where NumPy says how."""
    kept = []
    for node in graph.nodes:
        if all(name in graph.constants for name in node.inputs):
            walk = InferenceState(replace(graph, inputs=[], nodes=[]), 0)
            try:
                visit(walk, node)
            except ModelError:
                # resolve() will raise it, where the user asks for a batch size
                kept.append(node)
                continue
            if all(name in walk.known for name in node.outputs):
                graph.constants.update({name: walk.known[name] for name in node.outputs})
                continue
        kept.append(node)
    graph.nodes = kept


def inline_scalars(graph: Graph, known: Sample) -> None:
    """Constants of one value become steps of the expressions that read them."""
    for node in graph.nodes:
        if node.op != "elementwise":
            continue
        if any(known.dtype(name) != "float32" for name in node.inputs):
            continue
        composer = Composer()
        values = [as_step(composer, graph.constants.get(name), name) for name in node.inputs]
        outputs = composer.inline(node.attributes["expression"], values)
        operands, expression = composer.build(*outputs)
        if operands and known.same(node.outputs[0], operands, graph.constants):
            node.inputs, node.attributes["expression"] = operands, expression


def merge_equal(graph: Graph) -> None:
    """Computes once what several nodes compute alike."""
    first: dict[object, Node] = {}
    names: dict[str, str] = {}
    fixed = {info.name for info in graph.outputs}
    kept = []
    for node in graph.nodes:
        node.inputs = [names.get(name, name) for name in node.inputs]
        key = (node.op, tuple(map(bool, node.outputs)), tuple(node.inputs),
               tuple((name, _exact(node.attributes[name])) for name in sorted(node.attributes)))
        twin = first.get(key)
        if twin is not None and not fixed.intersection(node.outputs):
            names.update((mine, other) for mine, other
                         in zip(node.outputs, twin.outputs, strict=True) if mine)
        else:
            first.setdefault(key, node)
            kept.append(node)
    graph.nodes = kept


def _exact(value: object) -> object:
    """Text or bytes that two attributes share only if they are the same: the repr of an array
    rounds and leaves out."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    return repr(value)


def matmul_to_gemm(graph: Graph, known: Sample) -> None:
    """A product of a matrix with a constant matrix takes an epilogue as a gemm."""
    for node in graph.nodes:
        x = node.inputs[0] if node.op == "matmul" else ""
        if known.from_data(x) and known.rank(x) == 2:
            weight = graph.constants.get(node.inputs[1])
            if weight is not None and weight.ndim == 2 and weight.dtype == np.float32:
                node.op = "gemm"
                node.attributes = {"trans_a": False, "trans_b": False, "epilogue": identity()}


def fold_zero_pads(graph: Graph) -> None:
    """Zeros round an image become pads of the convolutions that read it."""
    pads = {node.outputs[0]: node for node in graph.nodes if _pads_image(node)}
    for node in graph.nodes:
        pad = pads.get(node.inputs[0]) if node.inputs else None
        if pad is not None and node.op == "conv2d" and "auto_pad" not in node.attributes:
            extra: Sequence[int] = [pad.attributes["pads"][axis] for axis in (2, 3, 6, 7)]
            node.inputs[0] = pad.inputs[0]
            node.attributes["pads"] = tuple(
                mine + more for mine, more in zip(node.attributes["pads"], extra, strict=True))
    drop_dead(graph)


def _pads_image(node: Node) -> bool:
    if node.op != "pad" or node.attributes["mode"] != "constant" or len(node.inputs) > 1:
        return False
    pads = node.attributes.get("pads", ())
    return (len(pads) == 8 and min(pads) >= 0 and not any(pads[axis] for axis in (0, 1, 4, 5))
            and not node.attributes.get("value") and not node.attributes.get("axes"))


def drop_dead(graph: Graph) -> None:
    """Removes nodes and constants on which no output depends."""
    outputs = [info.name for info in graph.outputs]
    graph.nodes = live_nodes(graph.nodes, outputs)
    used = {name for node in graph.nodes for name in node.inputs} | set(outputs)
    graph.constants = {name: a for name, a in graph.constants.items() if name in used}


