"""NaN spreads as in NumPy: on every device, by every algorithm, and where ONNX Runtime computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import gossamer
from gossamer.device.base import Device
from tests.fixtures import is_slow

PADS = ((0, 0), (0, 0), (1, 1), (0, 1))
OPERATORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "Clip(x, low, high)": lambda x: np.clip(x, -1, 2), "Max(x, high)": lambda x: np.maximum(x, 2),
    "Min(high, x)": lambda x: np.minimum(x, 2), "Relu(x)": lambda x: np.maximum(x, 0),
    "Sign(x)": np.sign, "MaxPool<kernel_shape = [3, 2], pads = [1, 0, 1, 1], strides = [2, 1]>(x)":
    lambda x: sliding_window_view(np.pad(x, PADS, constant_values=-np.inf), (3, 2), (2, 3))[
        :, :, ::2].max((4, 5)),
    "ReduceMax<axes = [1, 3]>(x)": lambda x: x.max((1, 3), keepdims=True),
    "ReduceMin<axes = [2], keepdims = 0>(x)": lambda x: x.min(2),
    "ReduceMean<axes = [1, 3]>(x)": lambda x: x.mean((1, 3), keepdims=True),
    "LogSoftmax<axis = 3>(x)": lambda x: np.log((e := np.exp(x - x.max(3)[..., None]))
                                                / e.sum(3)[..., None]),
    # NumPy sorts NaN to the end
    "TopK<largest = 0>(x, two)": lambda x: np.argsort(x, kind="stable")[..., :2],
    "TopK(x, two)": lambda x: (x.shape[3] - 1 - np.argsort(np.flip(x, 3), kind="stable")[
        ..., ::-1])[..., :2],
    "ArgMax<axis = 2, keepdims = 0>(x)": lambda x: x.argmax(2),
    "ArgMin<axis = 2, keepdims = 0>(x)": lambda x: x.argmin(2),
    "ArgMax<axis = 2, keepdims = 0, select_last_index = 1>(x)":
    lambda x: x.shape[2] - 1 - x[:, :, ::-1].argmax(2),
    "ArgMin<axis = 2, keepdims = 0, select_last_index = 1>(x)":
    lambda x: x.shape[2] - 1 - x[:, :, ::-1].argmin(2),
    # not for doubles
    "GlobalMaxPool(x)": lambda x: x.max((2, 3), keepdims=True)}
FORMS = {"nodes": "{body}", "function": "{names} = own.All(x, low, high, two)", "branches":
         "{names} = If(c)<then_branch = a () => ({outputs}) {{ {body} }}, "
         "else_branch = b () => ({outputs}) {{ {body} }}>"}


def check(kind: str, form: str, spoilt: Sequence[float], device: Device | str,
          **options: Any) -> None:
    """Compiles a model of all operators, as they are or in a form that ONNX Runtime computes.
    kind: the type of x in ONNX's text."""
    operators = list(OPERATORS.items())[:None if kind == "float" else -1]
    names = ", ".join(f"y{i}" for i in range(len(operators)))
    outputs = ", ".join(f"{'int64' if text[:3] in ('Arg', 'Top') else kind}[] y{i}"
                        for i, (text, _) in enumerate(operators))
    body = "\n".join(f"{f'v{i}, ' if 'TopK' in text else ''}y{i} = {text}"
                     for i, (text, _) in enumerate(operators))
    plan: Any = gossamer.compile(onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        nan ({kind}[k, l, m, n] x, bool c) => ({outputs})
        <{kind} low = {{-1}}, {kind} high = {{2}}, int64[1] two = {{2}}>
        {{ {FORMS[form].format(names=names, outputs=outputs, body=body)} }}
        <domain: "own", opset_import: ["" : 17]> All (x, low, high, two) => ({names}) {{ {body} }}
        """), device, **options)
    rng = np.random.default_rng(0)
    for _ in range(6):
        x = rng.choice(np.array([0, 1, 1, 2, -3, 3, -0.5], kind.replace("float", "float32")),
                       rng.integers(2, 7, 4))
        np.put(x, rng.integers(0, x.size, x.size // 8), spoilt)
        with np.errstate(all="raise"):  # a plan warns of no number
            results = plan(x, np.array(True))
        with np.errstate(all="ignore"):
            for (text, function), result in zip(operators, results, strict=True):
                np.testing.assert_allclose(result, function(x), 1e-6, 1e-6, err_msg=text)


@pytest.mark.parametrize("options", [{}, {"vendors": False}, {"effort": "quick"}], ids=str)
def test_layers(device: Device, options: dict[str, Any]) -> None:
    if options and is_slow(device):
        pytest.skip("this device is slow")
    check("float", "nodes", [np.nan, np.inf, -np.inf], device, **options)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["float", "double"])
def test_parts(form: str, kind: str) -> None:
    """ONNX Runtime's pools give the least finite number for a window of nothing but -inf."""
    check(kind, form, [np.nan, np.inf], "host")
