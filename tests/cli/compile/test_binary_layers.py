"""Layers that cannot be computed on bits stay on floats, and the report says why; where such an
algorithm is forced, one line names the layer and the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import gossamer
from tests.cli.command_line import fails, json_of, save_network, succeeds
from tests.model.onnx_models import ints, model, save

RNG = np.random.default_rng(0)
SIGNS = RNG.choice([-0.5, 0.5], (8, 4, 3, 3)).astype(np.float32)
TOO_DEEP = 2**24 + 1


def compile_words(path: Path, *words: object) -> tuple[object, ...]:
    """Return the words of a command line that compiles a network with little effort."""
    return ("compile", path, "--device", "host", "--effort", "quick", *words)


def forcing(path: Path, *words: object, layer: str = "layer=host_direct_popcount"
            ) -> tuple[object, ...]:
    return compile_words(path, "--force", layer, *words)


def saved(folder: Path, weight: np.ndarray, *, pad: float | None = None) -> Path:
    """Save a convolution named "layer" of the signs of an image."""
    nodes = [helper.make_node("Sign", ["x"], ["s"], name="signs")]
    weights = {"w": weight}
    if pad is not None:
        weights |= {"value": np.array(pad, np.float32), "pads": ints(0, 0, 1, 1, 0, 0, 1, 1)}
        nodes.append(helper.make_node("Pad", ["s", "pads", "value"], ["padded"], name="border"))
    nodes.append(helper.make_node("Conv", ["s" if pad is None else "padded", "w"], ["y"],
                                  name="layer"))
    return save(model(nodes, {"x": ["N", 4, 6, 6]}, {"y": None}, weights), folder)


def as_inspected(path: Path) -> dict[str, Any]:
    """Return what `inspect` says about the layer."""
    (shown,) = [row for row in json_of("inspect", path)["rows"] if row["name"] == "layer"]
    return shown


def changed(place: tuple, value: float) -> np.ndarray:
    weight = SIGNS.copy()
    weight[place] = value
    return weight


BAD = {
    "a weight that is not alpha": (
        {"weight": changed((3, 1, 0, 2), 0.75)},
        "its weights have different magnitudes within a channel"),
    "alpha 0": (
        {"weight": changed((5,), 0.0)},
        "some of its weights are 0: the weights of a channel must have one nonzero magnitude"),
    "a constant beyond the signs": (
        {"weight": SIGNS, "pad": 2.0}, "in steps of 1"),
    "a constant between the signs": (
        {"weight": SIGNS, "pad": 0.5}, "not known to be -1, 0 or 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_such_a_layer_stays_on_floats(name: str, tmp_path: Path) -> None:
    arguments, reason = BAD[name]
    path = saved(tmp_path, **arguments)
    x = RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)
    plan = gossamer.compile(str(path), "host", only="host_direct_popcount")
    plan(x)
    (row,) = [row for row in plan.report(2).rows if row["layer"] == "layer"]
    assert row["algorithm"] == "host_im2col" and row["form"]["form"] == "floats"
    assert reason in row["form"]["reason"] and reason in row["rejected"]["host_direct_popcount"]
    shown = as_inspected(path)
    assert shown["form"] == "floats" and reason in shown["form_reason"]
    explained = succeeds(*compile_words(path, "--explain", "layer")).stdout
    assert reason in " ".join(explained.split())


@pytest.mark.parametrize("name", BAD)
def test_a_forced_algorithm_is_refused_with_the_layer(name: str, tmp_path: Path) -> None:
    arguments, reason = BAD[name]
    line = fails(2, *forcing(saved(tmp_path, **arguments), "-o", tmp_path / "out.plan"))
    assert line.startswith(
        "error: layer layer: host_direct_popcount is forced but cannot compute it: ")
    assert reason in line and not (tmp_path / "out.plan").exists()


def test_sums_beyond_float32_stay_on_floats(tmp_path: Path) -> None:
    path = save_network(
        tmp_path / "deep.onnx", weights={"w": np.ones((1, TOO_DEEP), np.float32)},
        nodes=[helper.make_node("Sign", ["x"], ["s"]),
               helper.make_node("Gemm", ["s", "w"], ["y"], transB=1, name="layer")],
        inputs=("N", TOO_DEEP), outputs=(("y", None),))
    reason = f"sums of {TOO_DEEP} products are not exact in float32"
    shown = as_inspected(path)
    assert (shown["form"], shown["form_reason"]) == ("floats", reason)
    assert reason in fails(2, *forcing(path))


@pytest.mark.parametrize(("forced", "words"), [
    ("layer=bit_tensor_core", ["layer layer: bit_tensor_core is forced",
                               "no tensor cores for bits (sm_80 or newer)"]),
    ("layer=wide_popcount", ["layer layer: wide_popcount is forced", "compiles no kernels"]),
    ("layer=gemm_mma", ["layer layer: gemm_mma is forced", "it does not support conv2d"]),
])
def test_what_cannot_be_forced(forced: str, words: list[str], tmp_path: Path) -> None:
    line = fails(2, *forcing(saved(tmp_path, SIGNS), layer=forced))
    for word in words:
        assert word in line


def test_a_forced_algorithm_is_taken(tmp_path: Path) -> None:
    path = saved(tmp_path, SIGNS, pad=1.0)
    x = RNG.standard_normal((2, 4, 6, 6)).astype(np.float32)
    expected = gossamer.compile(str(path), "host", only="host_im2col")(x)
    for algorithm in ("host_direct_popcount", "host_im2col"):
        for only in (None, "host_direct_popcount", "host_im2col"):
            plan = gossamer.compile(str(path), "host", only=only, force={"layer": algorithm})
            np.testing.assert_array_equal(plan(x), expected)
            (row,) = [row for row in plan.report(2).rows if "layer" in row["layers"]]
            assert row["algorithm"] == algorithm
            if row["op"] == "conv2d":
                assert "no tensor cores for bits" in row["rejected"]["bit_tensor_core"]
    output = tmp_path / "out.plan"
    succeeds(*forcing(path, "-o", output))
    np.testing.assert_array_equal(gossamer.Plan.load(str(output))(x), expected)


def test_exact_sums_are_not_less_than_float32(tmp_path: Path) -> None:
    path = saved(tmp_path, SIGNS)
    printed = succeeds("compile", path, "--device", "host", "--force", "layer=host_direct_popcount")
    assert "host_direct_popcount" in printed.stdout
    assert "lower precision than float32" not in printed.stdout + printed.stderr
