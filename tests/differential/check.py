"""Checks of drawn networks against three other results, and differences whose cause is known."""

from __future__ import annotations

import os
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper

import gossamer
from gossamer.errors import GossamerError
from tests.differential.network import drawn
from tests.differential.oracles import Arrays, moved, tried, with_outputs
from tests.networks.compared import several
from tests.tolerances import WHOLE_NETWORK, normalised_error

ORACLES = ("plain", "optimised", "reference")
WAYS: dict[str, dict[str, Any]] = {
    "host": {"device": "host"}, "own": {"device": "host", "vendors": False},
    "opencl": {"device": "opencl:0"}, "host-quick": {"device": "host", "effort": "quick"},
    "opencl-quick": {"device": "opencl:0", "effort": "quick"}}
TOLERANCES = {"float16": 4 * WHOLE_NETWORK["fp16"]}


@dataclass(frozen=True)
class Difference:
    """A result with which no oracle agrees. where: the last node of the smallest part of the
    network that shows it. model: this part."""

    seed: int
    way: str
    kind: str
    where: str = ""
    text: str = ""
    model: bytes = b""

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.way}: {self.kind}: {self.where}: {self.text}"


def work(seeds: range, ways: Sequence[str], nan: bool, results: Connection) -> None:
    """Sends what is different in each network, and then None."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for seed in seeds:
        try:
            for difference in differences(seed, ways, nan):
                results.send(difference)
        except Exception:
            results.send(Difference(seed, "", "the check failed", text=traceback.format_exc()))
        results.send(None)


def differences(seed: int, ways: Sequence[str] = tuple(WAYS), nan: bool = False
                ) -> Iterator[Difference]:
    """Yields what is different in a network. Ways that compile kernels or measure, which take long,
    are tried for some seeds."""
    model, calls = drawn(seed, nan)
    for way in ways:
        if ("opencl" in way and seed % 3) or ("quick" in way and seed % 4):
            continue
        for index, given in enumerate(calls):
            if found := compared(model, given, way, seed, nan):
                kind, text, part, nodes = smallest(model, given, way, seed, nan, *found)
                where = "; ".join(described(node, part) for node in nodes)
                yield Difference(seed, f"{way}{'-other-sizes' * index}", kind, where, text,
                                 part.SerializeToString())
                break


def compared(model: onnx.ModelProto, given: Arrays, way: str, seed: int, nan: bool = False
             ) -> tuple[str, str] | None:
    """Returns the kind and the text of a difference; None where an oracle agrees. nan: whether
    networks that make NaN are compared."""
    tries = [tried(model, given, oracle) for oracle in ORACLES]
    expected = [made for made in tries if made is not None]
    if not expected or (not nan and any(map(_has_nan, expected[0]))):
        return None
    try:
        with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
            plan = gossamer.compile(model.SerializeToString(), threads=1, **WAYS[way])
            made = plan(*[given[info.name] for info in plan.inputs])
    except GossamerError as error:
        return ("refused", str(error)) if tries[0] and tries[2] else None
    except Exception as error:
        return f"crashed with {type(error).__name__}", str(error)[:200]
    for index, (info, output) in enumerate(zip(model.graph.output, several(made), strict=True)):
        rights = [values[index] for values in expected]
        texts = [different(output, right) for right in rights]
        if all(texts):
            part = with_outputs(model, [info.name])
            rights += [made[0] for oracle in ORACLES if (made := tried(part, given, oracle))]
            change = moved(part, given, seed)
            texts = [different(output, right, change) for right in rights]
        if all(texts):
            return texts[0].split(" ")[0], f"{info.name}: {texts[0]}"
    return None


def _has_nan(value: np.ndarray) -> bool:
    return value.dtype.kind == "f" and bool(np.isnan(value).any())


def different(output: Any, right: Any, change: np.ndarray | None = None) -> str:
    """Returns how an output differs from the right one; "" where it does not. change: how far
    rounding may move each element."""
    output, right = np.asarray(output), np.asarray(right)
    for what in ("shape", "dtype"):
        if getattr(output, what) != getattr(right, what):
            return f"{what} {getattr(output, what)}, expected {getattr(right, what)}"
    with np.errstate(all="ignore"):
        if change is not None and change.shape == right.shape:
            near = np.abs(output.astype(np.float64) - right.astype(np.float64)) <= 4 * change
            output = np.where(near, right, output)
        error = normalised_error(output, right) if right.dtype.kind == "f" else float(
            np.mean(output != right)) if right.size else 0.0
        allowed = TOLERANCES.get(str(right.dtype), WHOLE_NETWORK["fp32"])
    if error <= (allowed if right.dtype.kind == "f" else 0):
        return ""
    place = tuple(np.argwhere((output != right) & ~((output != output) & (right != right)))[0])
    most = ""
    if right.dtype.kind in "iu":
        most = f", {np.abs(output.astype(float) - right.astype(float)).max():.3g} at most"
    return (f"numbers of {right.dtype} (error {error:.2g}{most}), such as {output[place]!r} at "
            f"{list(map(int, place))}, expected {right[place]!r}")


def smallest(model: onnx.ModelProto, given: Arrays, way: str, seed: int, nan: bool, kind: str,
             text: str) -> tuple[str, str, onnx.ModelProto, Sequence[onnx.NodeProto]]:
    """Returns the difference of the first node that shows one of the kind, or has another shape,
    the part up to this node, and the node; where no part shows it, the whole network, and the
    nodes before the output that the text names, the last one first."""
    for node in model.graph.node:
        part = with_outputs(model, list(node.output))
        if (found := compared(part, given, way, seed, nan)) and found[0] in (kind, "shape"):
            return *found, part, [node]
    nodes = with_outputs(model, [text.split(":")[0]]).graph.node[::-1] or model.graph.node
    return kind, text, model, nodes


def described(node: onnx.NodeProto, model: onnx.ModelProto) -> str:
    shapes = {info.name: "x".join(str(dim.dim_param or dim.dim_value)
                                  for dim in info.type.tensor_type.shape.dim)
              + " float16" * (info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT16)
              for info in (*model.graph.value_info, *model.graph.input)}
    attributes = ", ".join(f"{each.name}={helper.get_attribute_value(each)!r}"
                           for each in node.attribute if each.type in (1, 2, 3, 6, 7))
    reads = ", ".join(shapes.get(name, "constant") for name in node.input)
    return (f"{node.op_type}-{model.opset_import[0].version}({attributes}) of {reads}, "
            f"{len(model.graph.node)} nodes")


class Cause(NamedTuple):
    """Regular expressions of the kind of differences, of the node and of the text, and the reason
    why gossamer is right, or what it does not promise."""

    kind: str
    where: str
    text: str
    reason: str


CAUSES = (
    Cause("refused", "", "has batch .*, another input has",
          "the open first dimensions of all inputs are one batch"),
    Cause("refused", "", "cannot take .*(gossamer computes it (in|with)|cannot multiply)"
          "|computes with u?int.*gossamer computes this op in float32 only",
          "where values fix sizes that the file leaves open, these are not known in time"),
    Cause("refused", "Pool", "does not fit an input", "the standard's result is empty, which ONNX "
          "Runtime rounds up to a window beyond the input"),
    Cause("shape", "^(Average|Lp|Max)Pool-", r"shape \(.*\b0\b", "of windows larger than the "
          "input the standard has none; ONNX Runtime divides towards 0 and counts one"),
    Cause("refused|shape|numbers", r"Pool-(?=.*SAME_).*(dilations=\[[^]]*2|ceil_mode=1)", "",
          "SAME_* by the standard pads for dilated windows, and has no size to round up"),
    Cause("numbers", r"^AveragePool-(?=.*SAME_)(?=.*strides=\[.*[23])", "",
          "pads of SAME_* are not below 0; ONNX Runtime's are, or it fails"),
    Cause("numbers", r"^Clip-(1[1-9]|2)", r"such as np.float\d+\(-?inf", "a bound that is not "
          "given is none, as in ONNX's reference; ONNX Runtime's is the greatest finite number"),
    Cause("numbers", r"^(Batch|Instance)Normalization-", r"numbers of float\d+ \(error 0\.000",
          "where a number is its mean, the rounding of the mean and of its scaled value is left"),
    Cause("numbers", "^Pow-", r"expected np.int\d+\(-(2147483648|9223372036854775808)\)",
          "0 to a power below 0 is infinite: no integer stands for it"),
    Cause("numbers", "^(Ceil|Floor|Round)-", "numbers of float16", "between operators float16 is "
          "not rounded: a sum may lie next to the limit on which ONNX Runtime rounds it"),
    Cause("numbers", "^(De)?[Qq]uantizeLinear-", r"such as np.float\d+\(nan\)", "no integer stands "
          "for NaN: quantised values are kept as numbers, through which it spreads"),
    Cause("numbers", "^Cast-.*to=9.* float16", "numbers of bool", "between operators float16 is "
          "not rounded: a number that it has no room for is not 0"),
    Cause("numbers", "^Cast-", r"numbers of u?int\d+ \(error .*, 1 at most\)", "a number just "
          "below an integer is rounded to it, or is not, before its fraction is dropped"),
    Cause("refused", "^Resize-.*(linear|cubic)", "is declared as u?int8, its node makes float32",
          "gossamer itself interpolates no integers; they are ONNX Runtime's"),
    Cause("numbers", "^TopK-", r"numbers of int64",
          "of numbers that are equal but for their rounding, the rounding decides which is first"),
    Cause("numbers", "^ThresholdedRelu-.*, [3-9] nodes", "", "a number that is the threshold but "
          "for its rounding becomes 0, or does not"),
    Cause("numbers", "^Mod-", r"expected np.u?int\d+\(0\)", "a remainder of a division by 0 is "
          "the dividend, as its quotient is 0; ONNX Runtime refuses it"),
    Cause("numbers", r"^Resize-.*cubic.* of d\d+x", "", "where the batch is resized, too, only the "
          "reference computes cubic, which differs from exact arithmetic there"),
    Cause("numbers", "^Reduce", r"\(-?\d\.\d+e-0[89]\) at .*\(-?\d\.\d+e-0[89]\)",
          "of numbers whose sum is 0 the rounding is left"),
    Cause("refused", "^ConvTranspose-(?=.*SAME_).*output_padding", "returned an output of shape",
          "ONNX's inference adds output_padding to a size of SAME_*, which does not have it"),
    Cause("shape", "^ConvTranspose-.*SAME_", "",
          "the standard multiplies sizes by strides; ONNX Runtime takes no pads below 0"),
    Cause("shape", "^Loop", "", "the standard stacks scan outputs, the reference joins them"),
    Cause("shape", "^NonZero-", r"shape \(0, ", "a number has no axes: ONNX Runtime counts one"),
    Cause("shape", "^Squeeze-", r"shape \(1,", "a Squeeze of all sizes of 1 keeps the batch"),
)


def cause(found: Difference) -> str:
    """Returns the reason of a difference; "" where it is not known."""
    return next((each.reason for each in CAUSES
                 if re.search(each.kind, found.kind) and re.search(each.where, found.where)
                 and re.search(each.text, found.text)), "")
