"""Tests of contenders in several precisions, and of vendors' algorithms as peers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, NvidiaDevice, setting
from bench_tests.networks import LAYERS, tiny
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError, Setting
from gossamer.device.base import Buffer, Device
from gossamer.device.native import processor as native
from gossamer.device.registry import find
from gossamer.measure import Timing
from gossamer.ops.algorithm import PRECISIONS, Algorithm, State, Variant
from gossamer.ops.conv2d.host import HostIm2col
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.epilogue import buffers_as_arrays
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate, Measurement
from gossamer.plan.program import Layer
from gossamer_bench import contest
from gossamer_bench.peers.inference import PEERS, defaults, vendors
from gossamer_bench.suites.layers import convolution, layer_case

STAMP = Stamp({}, "gossamer bench", None, "run")


class Library(HostIm2col):
    """A vendor's algorithm on the host, in float32 and in float16."""

    name = "library"
    vendor = "Library"

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        yield from super().variants(problem, device)
        inputs, outputs = (tuple(spec.with_format(dtype="float16") for spec in specs)
                           for specs in (problem.inputs, problem.outputs))
        yield Variant((("tile", 1),), inputs, outputs, "fp16")

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.variant.precision == "fp32":
            super().launch(state, inputs, outputs, workspace, stream)
            return
        (x,) = buffers_as_arrays(inputs, state.variant.inputs)
        (y,) = buffers_as_arrays(outputs, state.variant.outputs)
        assert x.dtype == y.dtype == np.float16
        matrix, constants = state.data
        weights = {**constants, "weight": matrix.reshape(state.problem.weight_shapes["weight"])}
        y[...] = OPS["conv2d"].reference(state.problem, [x], weights)[0]


class Elsewhere(Library):
    name = "elsewhere"

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        return "Elsewhere is not installed: pip install '.[vendor]'"


class Costs:
    """A tuner whose times by algorithm and precision are not measured: other candidates take 9 us,
    and None stands for wrong results."""

    def __init__(self, allowed: str, times: dict[tuple[str, str], float | None]) -> None:
        self.allowed = PRECISIONS[:PRECISIONS.index(allowed) + 1]
        self.times = times

    def measure(self, layer: Layer, algorithms: Sequence[Algorithm],
                device: Device) -> list[Candidate]:
        return [Candidate(algorithm, variant, self._measured(algorithm, variant))
                for algorithm in algorithms
                for variant in algorithm.variants(layer.problem, device)
                if variant.precision in self.allowed]

    def release(self) -> None:
        """Does nothing, as this tuner holds no inputs."""

    def _measured(self, algorithm: Algorithm, variant: Variant) -> Measurement:
        time = self.times.get((algorithm.name, variant.precision), 9.0)
        if time is None:
            return Measurement.of(algorithm, variant, failure="wrong numbers (error 1)")
        return Measurement.of(algorithm, variant, Timing(time, time, time, 5), error=0.0)


@pytest.fixture(autouse=True)
def libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    # layers have the same algorithms with or without llvmlite
    monkeypatch.setattr(native, "absent", lambda: "left out")
    op = OPS["conv2d"]
    monkeypatch.setitem(OPS, "conv2d", dataclasses.replace(
        op, algorithms=(*op.algorithms, Library(), Elsewhere())))


def run(times: dict[tuple[str, str], float | None], against: Sequence[str] = ("library",),
        precisions: Sequence[str] = PRECISIONS) -> contest.Result:
    settings = Setting(find("host"), lambda allowed: Costs(allowed, times),  # type: ignore[arg-type]
                       tuple(against), tuple(precisions))
    return contest.run(layer_case("suite", convolution(LAYERS[0]), 3, settings), PEAKS, STAMP)


def configs(result: contest.Result) -> dict[tuple[str, str], str]:
    # where BLAS has several threads, small products of the host say that they take one
    return {(row.contender, row.precision): row.config.removesuffix(" threads=1")
            for row in result.rows}


def test_a_contender_has_a_row_in_each_precision() -> None:
    result = run({("host_im2col", "fp32"): 5.0, ("library", "fp16"): 2.0})
    rows = configs(result)
    assert rows == {("gossamer", "fp32"): "host_im2col", ("gossamer", "fp16"): "library tile=1",
                    ("gossamer:host_im2col", "fp32"): "host_im2col",
                    ("library", "fp32"): "library", ("library", "fp16"): "library tile=1"}
    errors = {row.precision: row.error for row in result.rows if row.contender == "gossamer"}
    assert errors["fp32"] < 1e-6 < errors["fp16"] < 1e-3
    assert not result.failed


def test_what_is_taken_in_two_precisions_has_one_row() -> None:
    rows = configs(run({("host_im2col", "fp32"): 1.0}))
    assert [key for key in rows if key[0] == "gossamer"] == [("gossamer", "fp32")]
    rows = configs(run({("library", "fp16"): 1.0}, precisions=["fp16"]))
    assert [key for key in rows if key[0] == "gossamer"] == [("gossamer", "fp16")]
    assert ("gossamer:host_im2col", "fp32") not in rows


def test_vendors_are_peers() -> None:
    assert {"library", "elsewhere"} <= set(vendors())
    assert {"library", "torch-graph"} <= set(defaults(NvidiaDevice(), True))
    assert not {"library", "torch-graph"} & set(defaults(find("host"), True))
    result = run({}, ["elsewhere"])
    assert result.absent["elsewhere"].startswith("Elsewhere is not installed: pip install")
    assert not any(name.startswith("library") for name, _ in configs(result))
    assert not {"gossamer:library", "gossamer:elsewhere"} & set(result.case.contenders)


def test_torch_compile_of_layers_is_only_compared_when_named() -> None:
    assert "torch-compile" not in defaults(NvidiaDevice(), True)
    assert "torch-compile" in defaults(NvidiaDevice(), False)


def test_a_precision_that_computes_wrong_numbers_is_listed() -> None:
    result = run({("library", "fp16"): None})
    assert result.failed == {"library (fp16)": "RuntimeError: wrong numbers (error 1)"}
    assert ("library", "fp32") in configs(result)


def test_an_algorithm_without_the_precision_is_absent() -> None:
    result = run({}, precisions=["fp16"])
    assert result.absent["gossamer:host_im2col"] == "has no candidate in fp16"


def test_the_real_tuner_takes_what_is_allowed(tmp_path: Path) -> None:
    case = layer_case("suite", convolution(LAYERS[0]), 3, setting(
        find("host"), tmp_path, ["library"], PRECISIONS))
    rows = configs(contest.run(case, PEAKS, STAMP))
    assert {("library", "fp32"), ("library", "fp16")} <= set(rows)


def test_torchs_switches_follow_the_precision_and_come_back() -> None:
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers import torch_calls

    def switches() -> tuple[bool, bool, bool]:
        return (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32,
                torch.backends.cudnn.benchmark)

    torch_calls.forget()
    before = switches()
    flags = torch_calls.FLAGS
    for precision, tf32 in (("fp32", False), ("tf32", True), ("fp16", False)):
        flags.use(precision)
        assert switches() == (tf32, tf32, True)
    torch_calls.forget()
    assert switches() == before


def test_torch_computes_in_half_on_the_host_and_has_no_tf32_there() -> None:
    pytest.importorskip("torch")
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 8)).astype(np.float32)
    peer = PEERS["torch-eager"]
    alternatives = peer(tiny(), x, find("host"), PRECISIONS)
    assert [alternative.label for alternative in alternatives] == [
        "fp32, NCHW", "fp32, NHWC", "fp16, NCHW", "fp16, NHWC"]
    single, half = alternatives[1].make(), alternatives[3].make()
    for ready in (single, half):
        ready.work(None)
    assert half.precision == "fp16" and half.output(1).shape == (1, 5)
    difference = np.linalg.norm(half.output(2) - single.output(2))
    assert 0 < difference < 1e-2 * np.linalg.norm(single.output(2))
    with pytest.raises(AbsentError, match="no TF32"):
        peer(tiny(), x, find("host"), ["tf32"])
    with pytest.raises(AbsentError, match="fp32 only"):
        PEERS["onnxruntime"](tiny(), x, find("host"), ["fp16"])
