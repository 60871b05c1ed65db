"""Packed networks are small, and compute finite numbers of the same shapes once restored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests.model.onnx_models import model, runtime, weights
from tests.networks.packed import pack, restored


def network() -> onnx.ModelProto:
    """Returns a network with pruned weights, and with variances, which have to stay above 0."""
    pruned = weights(64, 32, 3, 3)
    pruned[np.abs(pruned) < 1] = 0
    rows = weights(4, 512)
    return model(
        [helper.make_node("Conv", ["x", "w"], ["a"], "conv", pads=[1, 1, 1, 1],
                          doc_string="File net.py, line 3"),
         helper.make_node("BatchNormalization", ["a", *rows_of_norm()], ["b"], "norm"),
         helper.make_node("Conv", ["b", "v"], ["y"], "second")],
        {"x": ("N", 32, 6, 6)}, {"y": 4},
        {"w": pruned, "v": weights(512, 64, 1, 1),
         **dict(zip(rows_of_norm(), (*rows[:3, :64], 1e-3 + np.abs(rows[3, :64])), strict=True))})


def rows_of_norm() -> list[str]:
    return ["gamma", "beta", "mean", "variance"]


def saved(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_a_restored_network_computes_finite_numbers_of_the_same_shapes(tmp_path: Path) -> None:
    proto, feeds = network(), {"x": weights(2, 32, 6, 6)}
    data = pack(proto)
    assert len(data) < len(proto.SerializeToString()) / 50
    (y,), (expected,) = (runtime(each, feeds) for each in (
        restored(saved(tmp_path / "net.onnx.gz", data)), proto))
    assert y.shape == expected.shape
    assert np.isfinite(y).all()
    assert y.std() == pytest.approx(expected.std(), rel=0.3)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_drawn_weights_are_distributed_like_those_of_the_file(dtype: str, tmp_path: Path) -> None:
    array = np.abs(8 * weights(100, 100)).astype(dtype)
    array[:, :70] = 0
    proto = model([helper.make_node("Identity", ["w"], ["y"], "same")], {}, {"y": 2}, {"w": array})
    (tensor,) = restored(saved(tmp_path / "net.onnx.gz", pack(proto))).graph.initializer
    drawn = numpy_helper.to_array(tensor)
    assert (drawn.dtype, drawn.shape) == (array.dtype, array.shape)
    assert not np.array_equal(drawn, array)
    assert drawn.min() == 0
    assert drawn.max() <= array.max()
    numbers, expected = drawn.astype(float), array.astype(float)
    for statistic in (np.mean, np.std, np.count_nonzero):
        assert statistic(numbers) == pytest.approx(statistic(expected), rel=0.3)


def test_files_that_are_small_with_their_weights_keep_them(tmp_path: Path) -> None:
    proto = network()
    whole = restored(saved(tmp_path / "net.onnx.gz", pack(proto, most_bytes=10**6)))
    assert whole.graph.initializer == proto.graph.initializer
    assert not whole.graph.node[0].doc_string


def test_what_is_no_network_is_an_error_with_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"net\.onnx\.gz: .*expected an ONNX file"):
        restored(saved(tmp_path / "net.onnx.gz", b"no network"))
