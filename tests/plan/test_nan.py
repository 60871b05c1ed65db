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


@pytest.mark.library_parts
@pytest.mark.parametrize("spoilt", [np.nan, np.inf, -np.inf, 1e38, None], ids=str)
@pytest.mark.parametrize("body", [
    "r = Relu(a) p = Conv(r, v, b) q = Conv<pads = [1, 1, 1, 1]>(r, w) s = Relu(q) "
    "t = Concat<axis = 1>(p, s)",
    "t = Relu(a)", "r = LeakyRelu(a) t = Conv(r, v, b)", "t = Neg(a)"])
def test_nan_that_convolutions_make_passes_pools(body: str, spoilt: float | None) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        nan (float[1, 2, 9, 11] x, float[8, 2, 3, 3] u, float[24, 8, 1, 1] v, float[24] b,
             float[9, 8, 3, 3] w) => (float[] y, float[] t)
        {{ a = Conv<strides = [1, 2]>(x, u) {body} y = MaxPool<kernel_shape = [2, 2]>(t) }}""")
    rng = np.random.default_rng(1)
    for info in model.graph.input[1:]:
        shape = [dim.dim_value for dim in info.type.tensor_type.shape.dim]
        weight = rng.choice(np.float32([-8, 9]), shape)
        model.graph.initializer.append(onnx.numpy_helper.from_array(weight, info.name))
    del model.graph.input[1:]
    pooled, plain = (gossamer.compile(model, "host", outputs=[name], **options)
                     for name, options in (("y", {}), ("t", {"vendors": False})))
    assert {step.algorithm.name for step in pooled.program(1).steps} == {"onnxruntime"}
    for _ in range(4):
        x = rng.standard_normal((1, 2, 9, 11)).astype(np.float32)
        if spoilt is not None:
            np.put(x, rng.integers(x.size), spoilt)
        with np.errstate(all="raise"):
            y, t = pooled(x), plain(x)
        assert (not np.isfinite(t).all()) == (spoilt is not None)
        np.testing.assert_allclose(y, sliding_window_view(t, (2, 2), (2, 3)).max((4, 5)), 1e-4,
                                   1e-2)
