"""Cases of the published form: its steps by themselves, and all of them together."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, setting
from gossamer.bench.networks import reference
from gossamer.bench.rows import Stamp
from gossamer.device.base import Device
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer_bench import contest
from gossamer_bench.layer_tables import ConvLayer
from gossamer_bench.suites import published
from gossamer_bench.suites.published import STEPS, whole_layer
from tests.fixtures import is_slow
from tests.tolerances import normalised_error, tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")
LAYER = ConvLayer("toy/9x9x5-6.3x3", 5, 9, 6, 3, 2, 1)


def cases(monkeypatch: pytest.MonkeyPatch, batch: int) -> dict[str, published.Item]:
    monkeypatch.setattr(published, "yolo", lambda: iter([LAYER]))
    return {item.name.rpartition("/")[2]: item for item in published.published(batch, None)}


@pytest.mark.parametrize("step", [*STEPS, "whole"])
def test_a_step_is_measured_by_itself(compiled_device: Device, step: str, tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:
    if is_slow(compiled_device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    # the statistics are those of all three images
    case = cases(monkeypatch, 3)[step].make(setting(compiled_device, tmp_path))
    assert case.name == f"toy/9x9x5-6.3x3/{step}"
    result = contest.run(case, PEAKS, STAMP)
    rows = {row.contender: row for row in result.rows}
    assert {"gossamer", "gossamer:published"} <= rows.keys()
    assert rows["gossamer:published"].config.startswith("published")
    assert not result.failed
    assert all(0 <= row.error < tolerance("network") for row in result.rows)


def test_the_product_sums_over_channels_and_taps() -> None:
    product = STEPS["product"](LAYER, 3)
    assert (product.rows, product.columns, product.depth) == (3 * 5 * 5, 6, 5 * 9)


def test_the_pipeline_has_all_steps(compiled_device: Device) -> None:
    plan = Plan(whole_layer(LAYER), compiled_device, Policy(only="published"))
    x = np.random.default_rng(0).standard_normal((2, 5, 9, 9), np.float32)
    expected = reference(whole_layer(LAYER), x)
    assert normalised_error(plan(x), expected) <= tolerance("network")
    assert (expected < 0).any()
    kernels = [launch.kernel.name for work in plan.program(2).steps
               for launch in work.algorithm.prepare(
                   work.layer.weights_on(compiled_device), work.problem, work.variant,
                   compiled_device).launches]
    assert kernels[1:] == ["published_gemm", "mean_variance", "normalise", "leaky_relu"]
