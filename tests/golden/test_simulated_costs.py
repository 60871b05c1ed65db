"""The cost that the planner states for drawn networks on simulated devices, a line for each plan.

Other candidates, conversions, fusions or limits of measuring show as other microseconds. The times
of layers are drawn from a seed, so that a cost says nothing of a real device.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.formats import with_formats
from gossamer.model.input_format import InputFormat
from gossamer.model.load import load
from gossamer.tensor import Format
from tests.golden import Golden
from tests.model.onnx_models import save
from tests.simulated.algorithms import drawn_times, estimated_times, simulated
from tests.simulated.binary import pruned_network
from tests.simulated.device import HARDWARE, SimulatedDevice, ticking
from tests.simulated.networks import random_network
from tests.simulated.plans import Case, planned

DRAWN = (3, 10, 11, 12, 14, 20, 24, 25, 26, 27, 34)
"""Seeds of networks that are planned within half a second each."""
SMALL, FEW, IN_PARTS, PRUNED = 342, 126, 204, 0
"""Seeds of networks of a few layers."""
PLAIN = Case(SMALL, "h200", "quick", "fp16", 1, {}, True, False, InputFormat(), "float32")
IMAGES = [np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)]
OPTIONS: dict[str, dict[str, Any]] = {
    **{f"{hardware}, batch {batch}": {"hardware": hardware, "batch": batch}
       for hardware in ("sm_75", "opencl") for batch in (1, 3)},
    "drawn times": {"estimated": False, "batch": 2}, "no image": {"seed": FEW, "batch": 0},
    "without libraries": {"restriction": {"vendors": False}},
    "tolerance": {"restriction": {"calibration": IMAGES, "tolerance": 1e-3}},
    **{f"only {name}": {"restriction": {"only": name}} for name in ("im2col_gemm", "depthwise")},
    **{f"budget of {budget} readings of the clock": {"restriction": {"budget_s": budget / 1024}}
       for budget in (2, 8, 128, 256)},
    **{f"forced: {text}": {"precision": "fp32", "restriction": {"force": dict([text.split()])}}
       for text in ("n0_Conv im2col_gemm", "n0_Conv winograd", "n1_Conv cudnn")},
    "boundary in NHWC": {"seed": FEW, "restriction": {"boundary": Format("NHWC")}},
    "pruned": {"seed": PRUNED, "precision": "fp32"},
    **{f"pruned, sparse threshold {share}": {
        "seed": PRUNED, "restriction": {"sparse_threshold": share}} for share in (0.2, 0.6, 0.97)}}


def cost(folder: Path, **options: Any) -> str:
    """Returns the cost, or why there is no plan. folder: has the measurements."""
    folder.mkdir(exist_ok=True)
    case = replace(PLAIN, **options)
    network = (pruned_network if case.seed == PRUNED else random_network)(case.seed)
    graph = with_formats(load(str(save(network, folder))), case.given, case.output_dtype)
    with simulated((estimated_times if case.estimated else drawn_times)(case.seed)), ticking():
        plan = planned(case, graph, SimulatedDevice(HARDWARE[case.hardware]), folder)
        try:
            return f"{plan.program(case.batch).cost_us:.4g} us"
        except GossamerError as error:
            return str(error)


def test_drawn_networks(golden: Golden, tmp_path: Path) -> None:
    golden.table("simulated_costs.txt", "drawn networks", {
        f"network {seed}": cost(tmp_path / str(seed), **vars(Case.of(seed))) for seed in DRAWN})


def test_options(golden: Golden, tmp_path: Path) -> None:
    golden.table("simulated_costs.txt", "options", {
        name: cost(tmp_path / name, **options) for name, options in OPTIONS.items()})


def test_parts_for_a_library(golden: Golden, tmp_path: Path,
                             monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for whole networks is simulated on the device, too."""
    monkeypatch.setattr("gossamer.plan.fusion.has_library", lambda device: True)
    for module in ("choose.network_candidates", "run.prepared_steps"):
        monkeypatch.setattr(f"gossamer.plan.{module}.problem_times", lambda problem, *_: [
            0.5 + 3.0 * (index % 2) for index in range(len(problem.parts))])
    golden.table("simulated_costs.txt", "parts for a library", {
        name: cost(tmp_path / name, precision="fp32", **options) for name, options in {
            "few layers": {"seed": FEW}, "more layers": {}, "drawn times": {"estimated": False},
            "several parts": {"seed": IN_PARTS, "estimated": False},
            "unfused": {"restriction": {"unfused": True}}}.items()})


def test_beside_earlier_measurements(golden: Golden, tmp_path: Path) -> None:
    golden.table("simulated_costs.txt", "one after another with the same measurements", {
        " ".join(how): cost(tmp_path, effort=how[1], precision=how[2]) for how in map(str.split, (
            "1 quick tf32", "2 quick tf32", "3 normal tf32", "4 quick fp32", "5 max fp32"))})
