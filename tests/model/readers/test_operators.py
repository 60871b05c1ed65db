"""Nodes of every ONNX operator, with attributes and inputs at their bounds, give what ONNX Runtime
gives, or ONNX's reference in NumPy: with inputs at run time, and with inputs that are constants."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from itertools import islice

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import gossamer
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import GossamerError
from gossamer.model.graph import StaticGraph, names_of
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset.onnx_nodes import FOLDED
from gossamer.model.readers.onnx.reader import load_onnx
from tests.fixtures import is_slow
from tests.model.executor import execute
from tests.model.onnx_models import runtime
from tests.model.readers.operator_cases import TABLES, cases, needs_onnx
from tests.networks.compared import several
from tests.tolerances import normalised_error, tolerance

pytestmark = [needs_onnx, pytest.mark.filterwarnings("ignore::RuntimeWarning")]
Arrays = Mapping[str, np.ndarray]

NOT_COMPARED = {
    r"(Max|Average)Pool auto_pad=SAME_.*dilations=": "ONNX Runtime pads as without dilations",
    r"Reduce\w+-\d+ keepdims=2": "the standard has only 0 and 1",
    r"Squeeze of \[2,1,3,1\] int64\[0\]\[\]": "no axes are none, by ONNX's shape inference",
    r"Squeeze (0=)?\[1,": "a free batch of 1 is no axis of size 1",
    r"TopK-11 sorted=0": "any order is right",
    r"GroupNormalization \[2, 4, 1, 1\]": "ONNX Runtime's float32 is 2e-5 off",
    r"QLinear\w+ 7=uint16": "the standard has 8 bits",
    r"ReduceMean \[(2, )?0": "a mean of nothing is undefined",
    r"(LogSoftmax \[(2, )?0|Pad of .*,-1,).*, constant": "ONNX's reference computes none"}
"""Patterns of cases in which what is expected is not what the other library gives, with the
reason."""


def values_of(static: StaticGraph, feeds: Arrays, device: Device | None) -> Arrays:
    """Returns the outputs of gossamer: of a plan on a device, or by the references of the ops."""
    if device is None:
        return execute(static, feeds)
    outputs = several(gossamer.compile(static.graph, device, strict=True)(**feeds))
    return dict(zip((info.name for info in static.graph.outputs), outputs, strict=True))


def difference(static: StaticGraph, values: Arrays, expected: Arrays) -> str:
    """Returns how values differ from those that are expected; nothing where they do not."""
    for name, right in expected.items():
        dtype, value = "float32" if right.dtype.kind == "f" else right.dtype.name, values[name]
        if (static.dtypes[name], value.shape) != (dtype, right.shape):
            return f"{static.dtypes[name]} {value.shape}, expected {dtype} {right.shape}"
        allowed = 1e-3 if right.dtype == np.float16 else tolerance("")
        if not (normalised_error(value, right) <= allowed if dtype == "float32"
                else np.array_equal(value, right)):
            return f"{value.reshape(-1)[:4]}, expected {right.reshape(-1)[:4]}"
    return ""


def differences(proto: onnx.ModelProto, device: Device | None, by_numpy: bool) -> list[str] | None:
    """Returns how gossamer's results for a network differ from ONNX Runtime's, or from those of
    ONNX's reference in NumPy, where the inputs are given and where they are constants: "" where
    they do not. None where one of the two refuses the network."""
    rng, feeds, batch = np.random.default_rng(0), {}, 1
    for info in proto.graph.input:
        kind = info.type.tensor_type
        shape = [int(dim.dim_param[1:] or dim.dim_value) for dim in kind.shape.dim]
        batch = shape[0] if shape and not feeds else batch
        feeds[info.name] = rng.uniform(-3, 3, shape).astype(
            onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type))
    narrow = {name: array.astype(np.float32) if array.dtype == np.float64 else array
              for name, array in feeds.items()}
    try:
        static = resolve(load_onnx(proto), batch)
    except GossamerError:
        return None
    names = [info.name for info in proto.graph.output]
    try:
        expected = dict(zip(names, ReferenceEvaluator(proto).run(None, feeds) if by_numpy
                            else runtime(proto, feeds), strict=True))
    except Exception:  # neither has a class of its own for all errors
        return None
    folded = onnx.ModelProto.FromString(proto.SerializeToString())
    del folded.graph.input[:]
    folded.graph.initializer.extend(numpy_helper.from_array(*pair[::-1]) for pair in feeds.items())
    found = ["", ""]
    with nullcontext() if device else suppress(GossamerError):
        found[0] = difference(static, values_of(static, narrow, device), expected)
    with suppress(GossamerError):
        constant = resolve(load_onnx(folded), 1)
        if constant.constants.keys() >= expected.keys():
            found[1] = difference(constant, constant.constants, expected)
        elif proto.graph.node[0].op_type in FOLDED:
            found[1] = "not folded"
    return found


def compared(table: str, step: int, device_of: Callable[[int], Device | None]) -> set[str]:
    """Asserts that the first case of each operator of a table, and each `step`th after it, gives
    what is expected. Returns the operators of which one could be compared.

    device_of: function of a case's number that returns the device that computes the case; None for
    the references of the ops.
    """
    wrong, found = [], set()
    for name, operator in TABLES[table].items():
        for number, (case, proto) in islice(enumerate(cases(name, operator)), 0, None, step):
            for how, text in zip(("", ", constant"), differences(
                    proto, device_of(number), table == "quantised") or (), strict=False):
                if not any(re.match(pattern, f"{case}{how}") for pattern in NOT_COMPARED):
                    found.add(name)
                    wrong += [f"{case}{how}: {text}"] * bool(text)
    assert not wrong, "\n".join(wrong)
    return found


@pytest.mark.parametrize("table", TABLES)
def test_operators_give_what_onnxruntime_gives(table: str, without_onnxruntime: None) -> None:
    uncompared = TABLES[table].keys() - compared(table, 1, lambda number: (
        find("host") if table.startswith("resizes") or number % 8 == 0 else None))
    # ONNX Runtime computes none of opset 6, ONNX's reference none of Microsoft's operators
    assert all((name == "BatchNormalization" and table == "old") or "." in name
               for name in uncompared), uncompared


@pytest.mark.parametrize("table", TABLES)
def test_names_that_the_reader_makes_are_not_those_of_the_file(table: str) -> None:
    taken = []
    for name, operator in TABLES[table].items():
        for case, proto in islice(cases(name, operator), 2):
            with suppress(GossamerError):
                graph = load_onnx(proto)
                made = names_of(graph) - {
                    name for node in proto.graph.node for name in (*node.input, *node.output)}
                for value in sorted(made):
                    proto.graph.node.append(helper.make_node("Shape", ["x0"], [value]))
                    proto.graph.output.append(helper.make_tensor_value_info(value, 7, None))
                graph = load_onnx(proto)
                counts = Counter(value for node in graph.nodes for value in node.outputs)
                counts.update(list(graph.constants))
                taken += [f"{case}: {value}" for value, count in counts.items() if count > 1]
    assert not taken


@pytest.mark.parametrize("table", TABLES)
def test_devices_compute_operators(table: str, compiled_device: Device,
                                   without_onnxruntime: None) -> None:
    """No layer is left to the host. Of each operator a simulator computes the first case alone."""
    compared(table, 1000 if is_slow(compiled_device) else 12, lambda number: compiled_device)
