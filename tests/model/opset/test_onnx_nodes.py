"""The most bytes that a folded node of ONNX may make."""

from __future__ import annotations

import re

import numpy as np
import pytest
from onnx import helper

from gossamer.model.opset.onnx_nodes import FOLDED, computed, most_bytes


@pytest.mark.parametrize("shape", [(), (7,), (2, 3), (1, 2, 1, 3, 1, 2, 2)], ids=str)
def test_nonzero_makes_no_more_than_the_bound(shape: tuple[int, ...]) -> None:
    node = helper.make_node("NonZero", ["x"], ["places"])
    arrays = {"x": np.ones(shape, np.float32)}
    (places,) = computed(node, arrays, 13)
    assert places.nbytes <= most_bytes(node, arrays, 13) <= 8 * max(1, places.nbytes)


def test_compress_makes_no_more_than_the_bound() -> None:
    node = helper.make_node("Compress", ["x", "chosen"], ["y"], axis=0)
    arrays = {"x": np.ones((5, 4)), "chosen": np.ones(5, bool)}
    (y,) = computed(node, arrays, 13)
    assert y.size * 8 <= most_bytes(node, arrays, 13)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16"])
@pytest.mark.parametrize("scale", [np.float32(0.05), np.array([0.05, 2e-30], np.float32)])
def test_quantised_floats_of_any_size_saturate(dtype: str, scale: np.ndarray) -> None:
    x = np.array([[np.inf, -np.inf], [3e38, -3e38], [-1e10, 1e10], [2.5, 2.4e-29]], np.float32)
    limits = np.iinfo(dtype)
    zero = np.full(scale.shape, 3, dtype)
    node = helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["y"], axis=1)
    (y,) = computed(node, {"x": x, "scale": scale, "zero": zero}, 21)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, np.clip(
        np.rint(x.astype(np.float64) / scale) + 3, limits.min, limits.max))


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32", "float64"])
@pytest.mark.parametrize("op", sorted(op for op in FOLDED if re.match("Reduce(?!Log)", op)))
def test_reductions_keep_the_dtype(op: str, dtype: str) -> None:
    (y,) = computed(helper.make_node(op, ["x"], ["y"]), {"x": np.array([[3, 1, 2]], dtype)}, 18)
    assert y.dtype == dtype and y.shape == (1, 1)
