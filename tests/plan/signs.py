"""The signs of a binary ONNX network, which end its layers and may turn a rounding error into
another bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import helper

from tests.tolerances import tolerance

SIGN_NODES = ("Sign", "GreaterOrEqual", "Where")


@dataclass(frozen=True)
class Sign:
    """The names of the value that a sign reads and of the bits that it makes."""

    before: str
    bits: str


def signs(proto: onnx.ModelProto) -> list[Sign]:
    """Returns every sign in order: Sign nodes, and Where(GreaterOrEqual(x, 0), 1, -1)."""
    compared = {node.output[0]: node.input[0] for node in proto.graph.node
                if node.op_type == "GreaterOrEqual"}
    result = []
    for node in proto.graph.node:
        if node.op_type == "Sign":
            result.append(Sign(node.input[0], node.output[0]))
        elif node.op_type == "Where":
            result.append(Sign(compared[node.input[0]], node.output[0]))
    return result


def with_outputs(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Returns the model with more of its values as outputs, after its own."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    changed.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return changed


def cut(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """Returns the model without its signs: their bits are inputs, and the values that they read
    are outputs after its own. shapes: the shapes of all bits, batch first."""
    model_signs = signs(proto)
    inputs = {info.name for info in proto.graph.input}
    read = dict.fromkeys(sign.before for sign in model_signs if sign.before not in inputs)
    changed = with_outputs(proto, read)
    del changed.graph.node[:]
    changed.graph.node.extend(node for node in proto.graph.node
                              if node.op_type not in SIGN_NODES)
    changed.graph.input.extend(
        helper.make_tensor_value_info(sign.bits, onnx.TensorProto.FLOAT,
                                      ["N", *shapes[sign.bits][1:]]) for sign in model_signs)
    used = {name for node in changed.graph.node for name in node.input}
    for info in [info for info in changed.graph.input if info.name not in used]:
        changed.graph.input.remove(info)
    return changed


def first_turned(model_signs: Sequence[Sign], bits: Mapping[str, np.ndarray],
                 reference: Mapping[str, np.ndarray]) -> str | None:
    """Returns the name of the bits of the first sign at which one image's bits differ from the
    reference's; None where all agree.

    bits: the bits of gossamer. reference: the bits and the values that signs read, for the same
    image. Fails unless all values of the reference at the differing bits of that sign are within
    the tolerance of 0, relative to the root mean square of all values that the sign reads.
    """
    for sign in model_signs:
        turned = bits[sign.bits] != reference[sign.bits]
        if turned.any():
            before = reference[sign.before].astype(np.float64)
            distance = np.abs(before[turned]).max() / np.sqrt(np.mean(before**2))
            assert distance <= tolerance("network"), (
                f"{turned.sum()} bits of {sign.bits} differ, one at {distance:.1e} of the rms")
            return sign.bits
    return None
