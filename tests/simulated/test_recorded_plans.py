"""Plans of drawn networks on simulated devices are those that were recorded: the candidates that
are tried and left out, the choice and its cost, and what is stored, saved and reported."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.errors import GossamerError
from gossamer.model.formats import with_formats
from gossamer.model.graph import Graph
from gossamer.model.load import load
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import Format
from tests.recorded import Recorded
from tests.simulated.algorithms import drawn_times, estimated_times, simulated
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.networks import random_network
from tests.simulated.plans import Case
from tests.simulated.pruned import pruned_network
from tests.simulated.traced import (
    program_text,
    report_text,
    saved_text,
    steps_text,
    stored_text,
    traced,
)

PLANS = (3, 10, 11, 12, 14, 20, 24, 25, 26, 27, 34)
"""Seeds of networks that are planned within half a second each."""
SMALL, SPARSE, IN_PARTS, FEW = 342, 0, 204, 126
"""Seeds of networks of a few layers; SPARSE is that of a pruned network."""


@dataclass(frozen=True)
class Options:
    """How a network is planned. policy: fields of the policy, but for effort and precision."""

    seed: int
    hardware: str = "h200"
    effort: str | None = "quick"
    precision: str = "fp16"
    batches: tuple[int, ...] = (1,)
    estimated: bool = True
    pruned: bool = False
    all_vendor_configs: bool = False
    images: int = 0
    """Number of calibration inputs."""
    policy: dict[str, Any] = field(default_factory=dict)

    def made_policy(self, graph: Graph) -> Policy:
        images = [] if not self.images else [np.random.default_rng(0).standard_normal(
            (self.images, *graph.inputs[0].shape[1:])).astype(np.float32)]
        return Policy(self.effort, self.precision, calibration=images or None, **self.policy)


def planned(options: Options, graph: Graph, folder: Path, policy: Policy) -> str:
    """Returns what came of planning a network."""
    times = (estimated_times if options.estimated else drawn_times)(options.seed)
    device = SimulatedDevice(HARDWARE[options.hardware])
    with simulated(times), traced() as trace:
        tuner = None if options.effort is None else Tuner(
            device, options.effort, precision=options.precision,
            cache=TuningCache(device, folder / "tuning"), budget_s=policy.budget_s,
            keeps_precisions=policy.tolerance is not None, note=trace.notes.append,
            progress=trace.progress.append, all_vendor_configs=options.all_vendor_configs)
        texts = []
        try:
            plan = Plan(graph, device, policy, tuner=tuner, note=trace.notes.append)
            for batch in options.batches:
                program = plan.program(batch)
                if options.effort is not None:
                    texts.append(f"cost {program.cost_us:.9g}")
                texts += [f"program {program_text(program)}", report_text(plan.report(batch)),
                          steps_text(program)]
        except GossamerError as error:
            return ", ".join([*texts, str(error)])
        plan.save(folder / "saved.plan")
        texts.append(saved_text(folder / "saved.plan"))
        if tuner is not None:
            texts += [str(trace), f"measured {tuner.measured} {tuner.reused} {tuner.not_tried}",
                      stored_text(tuner.cache.path)]
        return ", ".join(texts)


@cache
def _proto(seed: int, pruned: bool) -> bytes:
    return (pruned_network if pruned else random_network)(seed).SerializeToString()


def graph_of(seed: int, folder: Path, pruned: bool = False) -> Graph:
    """Returns a drawn network."""
    path = folder / f"network {seed}.onnx"
    path.write_bytes(_proto(seed, pruned))
    return load(str(path))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    return tmp_path


def test_plans_of_drawn_networks(recorded: Recorded, folder: Path) -> None:
    texts = {}
    for seed in PLANS:
        case, own = Case.of(seed), folder / str(seed)
        own.mkdir()
        graph = with_formats(graph_of(seed, own), case.given, case.output_dtype)
        options = Options(seed, case.hardware, case.effort, case.precision, (case.batch,),
                          case.estimated)
        texts[str(seed)] = planned(options, graph, own, case.policy)
    recorded("plans", texts)


def varied() -> Iterator[tuple[str, Options]]:
    """Yields ways to plan small networks, with their names."""
    for effort, precision in (("quick", "fp32"), ("max", "tf32")):
        yield f"{effort} {precision}", Options(FEW, effort=effort, precision=precision)
    for hardware in ("sm_75", "opencl"):
        yield hardware, Options(SMALL, hardware, batches=(1, 3))
    yield "drawn times", Options(SMALL, estimated=False, batches=(2,))
    yield "no image", Options(FEW, batches=(0,))
    yield "all configs of libraries", Options(FEW, all_vendor_configs=True)
    yield "without libraries", Options(SMALL, policy={"vendors": False})
    for only in ("im2col_gemm", "depthwise"):
        yield f"only {only}", Options(SMALL, policy={"only": only})
    for algorithm in ("im2col_gemm", "winograd"):
        yield f"force {algorithm}", Options(SMALL, policy={"force": {"n0_Conv": algorithm}},
                                             precision="fp32")
    yield "force a layer that is not there", Options(SMALL, policy={"force": {"n1_Conv": "cudnn"}})
    for budget in (2, 8, 128, 256):
        yield f"budget of {budget} readings", Options(SMALL, policy={"budget_s": budget / 1024})
    for threshold in (0.2, 0.6, 0.97):
        yield f"sparse threshold {threshold}", Options(
            SPARSE, pruned=True, policy={"sparse_threshold": threshold})
    yield "pruned", Options(SPARSE, pruned=True, precision="fp32")
    for boundary in (Format("NHWC"), Format("NCHW", "float16")):
        yield f"boundary {boundary}", Options(FEW, policy={"boundary": boundary})
    yield "calibrated", Options(SMALL, images=3)
    yield "tolerance", Options(SMALL, images=3, policy={"tolerance": 1e-3})


def test_plans_by_options(recorded: Recorded, folder: Path) -> None:
    texts = {}
    for name, options in varied():
        own = folder / name
        own.mkdir()
        graph = graph_of(options.seed, own, options.pruned)
        texts[name] = planned(options, graph, own, options.made_policy(graph))
    recorded("plan_options", texts)


def test_plans_with_parts(recorded: Recorded, folder: Path,
                          monkeypatch: pytest.MonkeyPatch) -> None:
    """A library for whole networks is simulated on the device, too."""
    monkeypatch.setattr("gossamer.plan.part.has_library", lambda device: True)
    for module in ("choose.network_candidates", "run.prepared_steps"):
        monkeypatch.setattr(f"gossamer.plan.{module}.problem_times", lambda problem, *_: [
            0.5 + 3.0 * (index % 2) for index in range(len(problem.parts))])
    texts = {}
    for name, options in (
            ("alone", Options(FEW, precision="fp32")),
            ("estimated", Options(SMALL, precision="fp32")),
            ("drawn", Options(SMALL, precision="fp32", estimated=False)),
            ("joined", Options(IN_PARTS, precision="fp32", estimated=False)),
            ("unfused", Options(SMALL, policy={"unfused": True}, precision="fp32")),
            ("not measured", Options(IN_PARTS, effort=None, precision="fp32")),
            ("only", Options(IN_PARTS, effort=None, precision="fp32",
                             policy={"only": "onnxruntime"})),
            ("forced", Options(IN_PARTS, effort=None, precision="fp32",
                               policy={"force": {"n0_Conv": "im2col_gemm"}}))):
        own = folder / name
        own.mkdir()
        graph = graph_of(options.seed, own, options.pruned)
        texts[name] = planned(options, graph, own, options.made_policy(graph))
    recorded("plans_with_parts", texts)


def test_plans_beside_earlier_measurements(recorded: Recorded, folder: Path) -> None:
    texts = {}
    graph = graph_of(SMALL, folder)
    for effort, precision in (("quick", "tf32"), ("quick", "tf32"), ("normal", "tf32"),
                              ("quick", "fp32"), ("max", "fp32")):
        options = Options(SMALL, effort=effort, precision=precision)
        texts[f"{len(texts)} {effort} {precision}"] = planned(
            options, graph, folder, options.made_policy(graph))
    recorded("plans_measured_before", texts)


def test_plans_without_measurements(recorded: Recorded, folder: Path) -> None:
    texts = {}
    for seed in range(24):
        options = Options(seed, ("h200", "sm_75", "opencl")[seed % 3], None, "fp32",
                          (1 + seed % 4,), pruned=seed % 4 == 3)
        policy: dict[str, Any] = (
            {}, {"only": "im2col_gemm"}, {"sparse_threshold": 0.6}, {"only": "fused"},
            {"unfused": True}, {"vendors": False}, {"boundary": Format("NHWC")})[seed % 7]
        case = Case.of(seed)
        graph = with_formats(graph_of(seed, folder, options.pruned), case.given, case.output_dtype)
        texts[str(seed)] = planned(options, graph, folder, Policy(**policy))
    recorded("plans_not_measured", texts)
