"""The most bytes that a folded node of ONNX may make."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from gossamer.model.opset.onnx_reference import computed, most_bytes


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
