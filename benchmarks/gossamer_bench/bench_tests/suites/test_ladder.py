"""The suite that measures the published ladder."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from bench_tests.conftest import PEAKS, setting
from bench_tests.networks import tiny
from gossamer.bench.rows import Stamp
from gossamer.bench.work import MOST_ERROR, AbsentError
from gossamer.device.registry import find
from gossamer.ops.registry import OPS
from gossamer_bench import contest
from gossamer_bench.ladder import network
from gossamer_bench.ladder.rungs import Rung
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.ladder import ladder_case
from gossamer_bench.verb import _peers
from tests.fixtures import working_devices
from tests.tolerances import tolerance

STAMP = Stamp({}, "gossamer bench ladder", None, "run")


def test_every_rung_is_checked_and_timed_in_both_precisions(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = working_devices().get("pocl") or working_devices().get("cuda")
    if device is None:
        pytest.skip("neither PoCL nor CUDA works here")
    # PoCL compiles a kernel anew for each size of work-groups
    monkeypatch.setattr(network, "_BLOCKS", (64, 256))
    case = dataclasses.replace(ladder_case(tiny(), 1, setting(device, tmp_path)), sample_us=100.0)
    result = contest.run(case, PEAKS, STAMP)
    assert not result.failed and not result.absent
    rows = {(row.contender, row.precision): row for row in result.rows}
    rungs = [(rung.contender, precision) for rung in Rung for precision in ("fp64", "fp32")]
    assert set(rows) == {*rungs, ("gossamer", "fp32")}
    for key in rungs:
        row = rows[key]
        most = MOST_ERROR["fp64"] if row.precision == "fp64" else tolerance("network")
        assert row.error < most and row.suite == "ladder" and row.batch == 1
    assert rows["ladder:1-pixels", "fp64"].config == (
        "one thread a pixel; 7 kernels, work-groups of 256")
    assert rows["ladder:4-memory", "fp32"].config.startswith("memory allocated once; 5 kernels")


def test_where_no_kernels_are_compiled_only_the_plan_is_measured(tmp_path: Path) -> None:
    result = contest.run(ladder_case(tiny(), 1, setting(find("host"), tmp_path)), PEAKS, STAMP)
    assert {row.contender for row in result.rows} == {"gossamer"}
    assert result.absent == {rung.contender: "host compiles no kernels" for rung in Rung}


def test_devices_without_double_precision_are_measured_in_float32(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = next((device for device in working_devices().values() if device.compiles), None)
    if device is None:
        pytest.skip("no device compiles kernels here")
    monkeypatch.setattr(device, "limits", dataclasses.replace(device.limits, float64=False))
    case = ladder_case(tiny(), 1, setting(device, tmp_path))
    double, single = case.contenders["ladder:2-values"]()
    with pytest.raises(AbsentError, match="does not compute in double precision"):
        double.make()
    assert single.make().precision == "fp32"


def test_the_ladder_is_one_image_without_peers() -> None:
    items = select(["ladder"], [1, 64])
    assert [(item.name, item.batch) for item in items] == [("mobilenetv2", 1)]
    host = find("host")
    assert _peers(None, host, items) == {"ladder": ()}
    assert _peers("onnxruntime", host, items) == {"ladder": ("onnxruntime",)}


def test_no_rung_is_a_candidate_of_a_plan() -> None:
    modules = {type(algorithm).__module__ for op in OPS.values() for algorithm in op.algorithms}
    assert modules and not any(module.startswith("gossamer_bench.ladder") for module in modules)
