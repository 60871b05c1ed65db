"""The signs of a binary ONNX network: where its layers end, and where a bit may turn."""

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
    """Every sign in order: Sign nodes, and Where(GreaterOrEqual(x, 0), 1, -1)."""
    compared = {node.output[0]: node.input[0] for node in proto.graph.node
                if node.op_type == "GreaterOrEqual"}
    found = []
    for node in proto.graph.node:
        if node.op_type == "Sign":
            found.append(Sign(node.input[0], node.output[0]))
        elif node.op_type == "Where":
            found.append(Sign(compared[node.input[0]], node.output[0]))
    return found


def with_outputs(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with more of its values as outputs, behind its own."""
    changed = onnx.ModelProto()
    changed.CopyFrom(proto)
    changed.graph.output.extend(
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in names)
    return changed


def cut(proto: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
    """The model without its signs: their bits are inputs, and what they read are outputs behind
    its own. shapes: of all bits, batch first."""
    found = signs(proto)
    given = {info.name for info in proto.graph.input}
    read = dict.fromkeys(sign.before for sign in found if sign.before not in given)
    changed = with_outputs(proto, read)
    del changed.graph.node[:]
    changed.graph.node.extend(node for node in proto.graph.node
                              if node.op_type not in SIGN_NODES)
    changed.graph.input.extend(
        helper.make_tensor_value_info(sign.bits, onnx.TensorProto.FLOAT,
                                      ["N", *shapes[sign.bits][1:]]) for sign in found)
    used = {name for node in changed.graph.node for name in node.input}
    for info in [info for info in changed.graph.input if info.name not in used]:
        changed.graph.input.remove(info)
    return changed


def first_turned(found: Sequence[Sign], bits: Mapping[str, np.ndarray],
                 reference: Mapping[str, np.ndarray]) -> str | None:
    """The first sign, by the name of its bits, at which one image's bits differ from the
    reference's; None where all agree.

    bits: ours. reference: its bits and what its signs read, for the same image.
    Fails unless the reference has, wherever that sign's bits differ, a value within the tolerance
    of 0, measured by the rms of all that the sign reads.
    """
    for sign in found:
        turned = bits[sign.bits] != reference[sign.bits]
        if turned.any():
            before = reference[sign.before].astype(np.float64)
            far = np.abs(before[turned]).max() / np.sqrt(np.mean(before**2))
            assert far <= tolerance("network"), (
                f"{turned.sum()} bits of {sign.bits} differ, one of them at {far:.1e} of the rms")
            return sign.bits
    return None
