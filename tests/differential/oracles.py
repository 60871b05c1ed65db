"""Results of ONNX Runtime and of ONNX's reference, and how far rounding may move them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.networks.compared import session_of

Arrays = dict[str, np.ndarray]
_RUNS = 8
_OTHER_BEFORE_13 = {"Hardmax", "LogSoftmax", "Softmax"}
"""Operators of all axes from one on before opset 13, which the reference takes along one axis."""


def tried(model: onnx.ModelProto, given: Arrays, oracle: str = "plain") -> list[Any] | None:
    """Returns the outputs by an oracle, of which "plain" and "optimised" are ONNX Runtime's; None
    where it does not run the model."""
    if (oracle == "reference" and model.opset_import[0].version < 13
            and any(node.op_type in _OTHER_BEFORE_13 for node in model.graph.node)):
        return None
    given = {info.name: given[info.name] for info in model.graph.input}
    with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
        try:
            if oracle == "reference":
                return [np.asarray(value) for value in ReferenceEvaluator(model).run(None, given)]
            session = session_of(model, threads=1, is_optimised=oracle == "optimised")
            return list(session.run(None, given))
        except Exception:
            return None


def computed(model: onnx.ModelProto, given: Arrays) -> list[Any] | None:
    """Returns the outputs by ONNX Runtime or, where it does not run the model, the reference."""
    plain = tried(model, given)
    return tried(model, given, "reference") if plain is None else plain


def moved(model: onnx.ModelProto, given: Arrays, seed: int) -> np.ndarray | None:
    """Returns how far each element of the only output moves where the floats that the network reads
    are off by the rounding of their dtype, so that it tells what rounding decides. Arrays of few
    binary digits, of which most sums are exact, are left as they are."""
    rng, noisy = np.random.default_rng(seed), onnx.ModelProto()

    def rounded(array: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            if array.dtype.kind != "f" or (array * 64 == np.rint(array * 64)).all():
                return array
            noise = 4 * np.finfo(array.dtype).eps * rng.uniform(-1, 1, array.shape)
            return np.asarray(array * (1 + noise), array.dtype)

    runs = [computed(model, given)]
    for _ in range(_RUNS):
        noisy.CopyFrom(model)
        for tensor in (*noisy.graph.initializer, *(
                node.attribute[0].t for node in noisy.graph.node if node.op_type == "Constant")):
            tensor.CopyFrom(numpy_helper.from_array(
                rounded(numpy_helper.to_array(tensor)), tensor.name))
        runs.append(computed(noisy, {name: rounded(array) for name, array in given.items()}))
    first, *others = (np.asarray(run[0]) if run else np.zeros(0) for run in runs)
    if any(other.shape != first.shape for other in others):
        return None
    with np.errstate(all="ignore"):
        changes = [np.where(other == first, 0, np.abs(np.subtract(other, first, dtype=np.float64)))
                   for other in others]
    return np.nan_to_num(np.max(changes, axis=0), nan=np.inf)


def reads(nodes: Sequence[onnx.NodeProto]) -> set[str]:
    """Returns the names that nodes and their bodies read."""
    return {name for node in nodes for name in node.input} | {
        name for node in nodes for attribute in node.attribute if attribute.HasField("g")
        for inner in attribute.g.node for name in inner.input}


def with_outputs(model: onnx.ModelProto, names: list[str]) -> onnx.ModelProto:
    """Returns a model with other outputs, without the nodes that they do not need."""
    needed, nodes, part = set(names), [], onnx.ModelProto()
    part.CopyFrom(model)
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            nodes.append(node)
            needed |= reads([node])
    kept = {"node": nodes[::-1], "output": [onnx.ValueInfoProto(name=name) for name in names],
            "value_info": [], **{field: [entry for entry in getattr(model.graph, field)
                                         if entry.name in needed]
                                 for field in ("input", "initializer")}}
    for field, entries in kept.items():
        part.graph.ClearField(field)
        getattr(part.graph, field).extend(entries)
    return onnx.shape_inference.infer_shapes(part)
