"""Algorithms that are named, decided by a threshold of sparsity, or taken from a saved plan."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import onnx
import pytest
from onnx import helper
from typer.testing import CliRunner

import gossamer
from gossamer.cli.app import app
from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.ops.algorithm import PRECISIONS, Variant
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import InvertedResidualMma
from gossamer.ops.registry import OPS
from gossamer.plan.choose import saved_options
from gossamer.plan.choose.program_builder import LayerChoice
from gossamer.plan.plan import Plan
from gossamer.plan.program import Layer, Step
from tests.fixtures import is_slow
from tests.model.onnx_models import model, runtime, save, weights
from tests.ops.fused.blocks import block
from tests.ops.recording import RecordingDevice
from tests.plan.small import assert_close, expected, images, small
from tests.tolerances import normalised_error, tolerance

SPARSITIES = {"dense": 0.0, "thin": 0.5, "thinner": 0.75}
DENSE = {algorithm.name: algorithm.dense for algorithm in OPS["conv2d"].algorithms}


@cache
def network() -> onnx.ModelProto:
    """Returns three convolutions of rising sparsity and a classifier that is sparse too."""
    arrays = {name: weights(4, 4, 3, 3, seed=seed) for seed, name in enumerate(SPARSITIES)}
    for name, sparsity in SPARSITIES.items():
        pruned = np.random.default_rng(9).permutation(arrays[name].size)
        arrays[name].reshape(-1)[pruned[: round(sparsity * arrays[name].size)]] = 0
    # each channel is read once, so that none is left out
    arrays["matrix"] = weights(4, 4) * np.eye(4, dtype=np.float32)
    nodes, value = [], "x"
    for name in SPARSITIES:
        nodes.append(helper.make_node("Conv", [value, name], [f"{name}.out"], name,
                                      pads=[1, 1, 1, 1]))
        value = f"{name}.out"
    nodes += [helper.make_node("GlobalAveragePool", [value], ["mean"], "mean"),
              helper.make_node("Flatten", ["mean"], ["flat"], "flat"),
              helper.make_node("Gemm", ["flat", "matrix"], ["y"], "classes")]
    return model(nodes, {"x": ["N", 4, 5, 4]}, {"y": 2}, arrays)


def compiled(folder: Path, device: Device | str, threshold: float, **options: Any) -> Plan:
    return gossamer.compile(str(save(network(), folder)), device, sparse_threshold=threshold,
                            **options)


def sides(plan: Plan) -> dict[str, bool]:
    """Returns for each convolution whether it took a dense algorithm."""
    return {step.layer.name: step.algorithm.dense for step in plan.program(2).steps
            if step.layer.op == "conv2d"}


def test_layers_above_the_threshold_take_a_sparse_algorithm(
    device: Device, tmp_path: Path, own_cache: Path, effort: str | None
) -> None:
    if effort and is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    plan = compiled(tmp_path, device, 0.6, effort=effort)
    assert sides(plan) == {"dense": True, "thin": True, "thinner": False}
    x = np.random.default_rng(0).standard_normal((2, 4, 5, 4)).astype(np.float32)
    (expected,) = runtime(network(), {"x": x})
    assert expected.any()
    assert normalised_error(plan(x), expected) <= tolerance("network")
    report = plan.report(2)
    assert ("sparse and dense algorithms were not compared: the threshold 0.6 decided"
            in report.notes)
    assert not report.plans
    reasons = {row["layer"]: row["rejected"] for row in report.rows}
    for layer, stated in (("thin", "sparsity 0.5 is not above the threshold 0.6"),
                          ("thinner", "sparsity 0.75 is above the threshold 0.6")):
        names = {name for name, reason in reasons[layer].items() if reason == stated}
        assert names and {DENSE[name] for name in names} == {layer == "thinner"}
    assert "sparsity 0.75 is above the threshold 0.6" in reasons["classes"].values()


def test_a_plan_that_measures_nothing_takes_the_published_form() -> None:
    sparse = [name for name, dense in DENSE.items() if not dense]
    assert sparse.index("direct_sparse") == 0  # and waits for no generated code


@pytest.mark.parametrize(("threshold", "taken"), [(0.5, [True, True, False]),
                                                  (0.49, [True, False, False]),
                                                  (0.76, [True, True, True])])
def test_a_layer_at_the_threshold_is_dense(tmp_path: Path, threshold: float,
                                           taken: list[bool]) -> None:
    assert list(sides(compiled(tmp_path, "host", threshold)).values()) == taken


@pytest.mark.parametrize("zeros", [30, 42, 59, 82])
def test_sparsity_is_compared_as_it_is_written(tmp_path: Path, zeros: int) -> None:
    """1 - 0.7 is more than 0.3 in binary."""
    thin = weights(4, 25, 1, 1)
    thin.reshape(-1)[:zeros] = 0
    graph = model([helper.make_node("Conv", ["x", "w"], ["y"], "only")], {"x": ["N", 25, 5, 4]},
                  {"y": 4}, {"w": thin})
    plan = gossamer.compile(str(save(graph, tmp_path)), "host", sparse_threshold=zeros / 100)
    assert sides(plan) == {"only": True}


def test_a_layer_too_dense_for_every_sparse_algorithm_stays_dense(tmp_path: Path) -> None:
    thin = weights(4, 4, 3, 3)
    thin.reshape(-1)[:20] = 0  # of 144
    graph = model([helper.make_node("Conv", ["x", "w"], ["y"], "only")], {"x": ["N", 4, 5, 4]},
                  {"y": 4}, {"w": thin})
    plan = gossamer.compile(str(save(graph, tmp_path)), "host", sparse_threshold=0.1)
    (row,) = plan.report(1).rows
    assert DENSE[row["algorithm"]]
    assert "fewer than a quarter of the weights are zero" in row["rejected"]["host_direct"]


@pytest.mark.parametrize("threshold", [0.0, 1.0, -0.5, float("nan")])
def test_what_is_no_share_is_refused(tmp_path: Path, threshold: float) -> None:
    with pytest.raises(InputError, match=r"expected a sparsity between 0 and 1, such as 0\.6"):
        compiled(tmp_path, "host", threshold)


def test_a_forced_algorithm_excludes_a_threshold(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only and sparse_threshold"):
        compiled(tmp_path, "host", 0.6, only="host_im2col")


def test_the_command_line_shows_densities_and_reasons(tmp_path: Path, own_cache: Path) -> None:
    path = str(save(network(), tmp_path))

    def run(*words: str) -> Any:
        return CliRunner().invoke(app, [*words])

    inspected = run("inspect", path)
    assert all(share in inspected.stdout for share in (" 100%", " 50%", " 25%"))
    words = ["compile", path, "--device", "host", "--effort", "quick", "--sparse-threshold", "0.6"]
    explained = run(*words, "--explain", "thinner")
    assert explained.exit_code == 0, explained.output
    (line,) = [line for line in explained.stdout.splitlines() if line.startswith("thinner ")
               and "host_direct" in line and "on host" not in line]
    assert " 25% " in line
    assert "sparsity 0.75 is above the threshold 0.6" in explained.stdout
    plain = json.loads(run(*words, "--json").stdout)
    assert plain["sparse_threshold"] == 0.6


@pytest.mark.parametrize("only", ["few_rows", "tiled_gemm"])
def test_a_forced_algorithm_is_taken_wherever_it_can_be(
    compiled_device: Device, tmp_path: Path, own_cache: Path, only: str, effort: str | None
) -> None:
    if effort and is_slow(compiled_device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    plan = gossamer.compile(str(save(small(), tmp_path)), compiled_device, effort=effort,
                            only=only)
    assert_close(plan(images(2)), expected(images(2)))
    (step,) = [step for step in plan.program(2).steps if step.layer.op == "gemm"]
    assert step.algorithm.name == only
    assert f"{only} is forced" in step.rejected.values()


def test_an_algorithm_that_can_compute_nothing_changes_nothing(device: Device,
                                                               tmp_path: Path) -> None:
    path = str(save(small(), tmp_path))
    names = [[step.algorithm.name for step in gossamer.compile(path, device, only=only)
              .program(2).steps] for only in (None, "depthwise")]
    assert names[0] == names[1]


def test_an_unknown_algorithm_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"only='magic': there is no such algorithm; .*--explain"):
        gossamer.compile(str(save(small(), tmp_path)), "host", only="magic")


PROBLEM = block(1, 64, 384, 64, (14, 14))
LAYER = Layer("a block", ["x"], ["y"], PROBLEM, covers=("a", "b"))


def restored(variant: Variant, device: Device) -> LayerChoice | str:
    """Returns what is read of the choice of a variant that was stored."""
    (algorithm,) = (found for found in OPS["fused"].algorithms
                    if isinstance(found, InvertedResidualMma))
    step = Step(LAYER, algorithm, variant, device, ["x"], ["y"])
    return saved_options._restored(saved_options._stored(step, device), LAYER, device, None,
                                   exact=True)


@pytest.mark.slow
def test_tiles_that_were_listed_for_another_precision_are_found() -> None:
    """A plan in float16 has the tiles of float16 for its steps in TF32 too."""
    device = RecordingDevice()
    listed = list(InvertedResidualMma().variants_in(PROBLEM, device, PRECISIONS))
    assert {variant.precision for variant in listed} == set(PRECISIONS)
    for variant in listed:
        choice = restored(variant, device)
        assert isinstance(choice, LayerChoice) and choice.variant == variant


def test_other_precisions_are_not_listed_where_that_is_not_needed(
        monkeypatch: pytest.MonkeyPatch) -> None:
    device = RecordingDevice()
    variant = next(iter(InvertedResidualMma().variants_in(PROBLEM, device, ("fp16",))))
    monkeypatch.setattr(InvertedResidualMma, "variants",
                        Mock(side_effect=AssertionError("all variants were listed")))
    assert isinstance(restored(variant, device), LayerChoice)
