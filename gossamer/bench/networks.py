"""The inputs, plans and references of measured networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from gossamer.bench.work import MOST_ERROR, AbsentError, Case, PeerNetwork, Setting, least_work
from gossamer.errors import InputError, UnsupportedError
from gossamer.io.text import shape_text
from gossamer.model import zoo
from gossamer.model.graph import Graph
from gossamer.model.infer.resolve import along_batch
from gossamer.model.load import load
from gossamer.model.readers import registry
from gossamer.ops.algorithm import PRECISIONS
from gossamer.plan.plan import Plan
from gossamer.plan.policy import ANY, Policy
from gossamer.plan.program import Layer, Program
from gossamer.plan.tune import network_reference
from gossamer.tensor import Format, default_spec

CHECKED_IMAGES = 2
"""Number of images compared with the reference, if a network computes each image independently."""
FORCED_OPS = ("conv2d", "gemm", "matmul")
"""The ops for which algorithms are forced. Layers of these ops dominate a network's time."""
_BETWEEN_LAYERS = Format("NHWC", "float16")
"""The format of images between layers in most peers and in float16 plans."""
_MOST_NETWORK_ERROR = 2e-2
"""Largest normalised error of a network in TF32 or float16.

This limit is larger than that of one layer, because the errors of layers accumulate: the error of
MobileNetV2, which has 53 layers, is 3e-3 in TF32 and 4e-3 in float16.
"""
_ANY_ERROR = 10.0
"""The error limit of networks with discontinuous functions, larger than any of their errors."""
_DISCONTINUOUS = {"sign", "less", "less_equal", "greater", "greater_equal", "equal", "floor"}
"""Functions that may turn the smallest difference into a large one; later errors are unbounded."""


@cache
def file_network(path: Path) -> PeerNetwork:
    """Return the network of a model file.

    Raises InputError or ModelError if the file does not contain a network with one float32 input.
    """
    graph = load(path)
    (shape, dtype), *others = [(info.shape, info.dtype) for info in graph.inputs]
    if others or dtype != "float32" or shape[:1] != (None,) or None in shape[1:]:
        described = ", ".join(f"{info.name!r} {info.dtype} {shape_text(info.shape)}"
                              for info in graph.inputs)
        raise InputError(f"{path}: expected one float32 input without dynamic dimensions other "
                         f"than the batch, got {described}")

    reader = registry.reader_of(path)
    read_onnx = reader.read_onnx if reader else None
    return PeerNetwork(registry.stem(path), graph, onnx=None if read_onnx is None else (
        lambda: read_onnx(path).SerializeToString()))


def in_torch(name: str, graph: Graph, batch: int) -> PeerNetwork:
    """Return a network with a PyTorch module created from its graph."""
    def torch_form(constants: Mapping[str, np.ndarray]) -> object:
        from gossamer.bench.peers.graph_module import graph_module

        return graph_module(graph, batch)

    return PeerNetwork(name, graph, torch_form)


def network_at(path: Path, batch: int) -> PeerNetwork:
    """Return a network of the zoo or of a file, with its PyTorch module.

    Raises InputError or ModelError if the file does not contain a network with one float32 input.

    batch: the batch size of the PyTorch module.
    """
    if str(path) in zoo.MODELS:
        return in_torch(str(path), zoo.build(str(path)), batch)
    network = file_network(path)
    return replace(in_torch(network.name, network.graph, batch), onnx=network.onnx)


def input_of(network: PeerNetwork, batch: int) -> np.ndarray:
    """Return a normally distributed input of a network, the same in every run.

    Raises UnsupportedError if the network has several inputs.
    """
    infos = network.graph.inputs
    if len(infos) != 1:
        raise UnsupportedError(f"{network.name}: has {len(infos)} inputs, but only networks with "
                               "one input can be measured")
    shape = (batch, *[size or 1 for size in infos[0].shape[1:]])
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def whole_network(suite: str, name: str, graph: Graph, x: np.ndarray,
                  layers: Sequence[Layer]) -> Case:
    """Return the case of a whole network.

    The minimum work of the case is the minimum FLOPs of the layers, and the bytes of the network's
    nonzero weights, input and output.

    x: the input.
    layers: the layers of the network's plan at this batch size.
    """
    mixing, _ = along_batch(graph, len(x))
    expected = reference(graph, x[:CHECKED_IMAGES] if mixing is None else x)
    weights = [layer.weights["weight"] for layer in layers if "weight" in layer.weights]
    size = sum(weight.size for weight in weights)
    nonzeros = sum(int(np.count_nonzero(weight)) for weight in weights)
    flops = sum(least_work(layer)[0] for layer in layers if not layer.is_reshape)
    stored = sum(array.nbytes for layer in layers for array in layer.weights.values())
    ends = sum(default_spec(shape).nbytes for shape in (x.shape, (len(x), *expected.shape[1:])))
    return Case(suite, name, len(x), flops, stored - 4 * (size - nonzeros) + ends,
                nonzeros / size if size else 1.0, expected, most_error=_most_error(graph))


def reference(graph: Graph, x: np.ndarray) -> np.ndarray:
    """Return the network's first output for its single input `x`, in float64."""
    outputs = network_reference.reference(graph, {graph.inputs[0].name: x})
    return outputs[graph.outputs[0].name]


def _most_error(graph: Graph) -> dict[str, float]:
    """Return the largest accepted normalised error of each precision."""
    functions = {step.function for node in graph.nodes for key in ("expression", "epilogue")
                 if key in node.attributes for step in node.attributes[key].steps}
    most = _ANY_ERROR if functions & _DISCONTINUOUS else _MOST_NETWORK_ERROR
    return {"fp32": MOST_ERROR["fp32"], "tf32": most, "fp16": most}


def plans_of(graph: Graph, batch: int, setting: Setting, policy: Policy = ANY, *,
             between_layers: bool = False) -> list[Plan]:
    """Plan the network once for each precision of the setting.

    The most precise plan comes first. The precision of a plan is that of its least precise layer.
    If several plans have the same precision, only one of them is returned.

    policy: restrictions of gossamer's choice of algorithms.
    between_layers: whether inputs and outputs of float16 plans have the format _BETWEEN_LAYERS, as
    inside a larger network.
    Raises AbsentError if the algorithm that the policy forces computes no layer.
    """
    only = policy.only
    plans: dict[str, Plan] = {}
    reason = ""
    # start with the lowest precision: its candidates include those of the other precisions, so that
    # the tuning cache then has the times for the other precisions
    for allowed in reversed(setting.precisions):
        boundary = _BETWEEN_LAYERS if between_layers and allowed == "fp16" else None
        plan = Plan(graph, setting.device, replace(policy, boundary=boundary),
                    tuner=setting.tuner(allowed))
        steps = plan.program(batch).steps
        # ignore algorithms of other ops with the same name
        if only is None or any(step.algorithm.name == only and step.layer.op in FORCED_OPS
                               for step in steps):
            plans[precision_of(plan.program(batch))] = plan
        else:
            reason = next((step.rejected[only] for step in steps if only in step.rejected
                           and step.layer.op in FORCED_OPS), "it supports no op of the network")
    if not plans:
        raise AbsentError(f"computes no layer: {reason}")
    return [plans[precision] for precision in PRECISIONS if precision in plans]


def precision_of(program: Program) -> str:
    """Return the precision of the least precise layer."""
    return max((step.variant.precision for step in program.steps), key=PRECISIONS.index,
               default="fp32")
