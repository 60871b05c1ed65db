"""Tests of whole networks by their plan, and by plans that force one algorithm."""

from __future__ import annotations

import gzip
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from bench_tests.conftest import PEAKS, setting
from bench_tests.networks import tiny
from gossamer.bench import networks
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError, PeerNetwork, tuners
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer.expression import apply
from gossamer.model.graph import Node
from gossamer.model.onnx_writer import to_onnx
from gossamer.plan.plan import Plan
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.tensor import Format
from gossamer_bench import contest
from gossamer_bench.layer_tables import InvertedResidual
from gossamer_bench.pruned_graphs import pruned
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.mobile_networks import inverted_residual
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Case
from tests.fixtures import is_slow
from tests.made import made
from tests.tolerances import tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """The tiny network as a file, and compressed under another name."""
    content = to_onnx(tiny().graph).SerializeToString()
    plain, packed = tmp_path / "tiny.onnx", tmp_path / "Small.onnx.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content))
    return [plain, packed]


@pytest.mark.slow
def test_every_algorithm_is_forced_or_absent_with_a_reason(tmp_path: Path) -> None:
    case = network_case("suite", tiny(), 2, setting(find("host"), tmp_path, ["onnxruntime"],
                                                    ["fp32", "fp16"]), force_each=True)
    result = contest.run(case, PEAKS, STAMP)
    rows = {row.contender: row for row in result.rows}
    assert {"gossamer", "gossamer:host_im2col", "gossamer:host_depthwise",
            "gossamer:host_gemm"} <= set(rows)
    assert ("onnxruntime" in rows) == bool(find_spec("onnxruntime"))
    assert "host_depthwise" in rows["gossamer:host_depthwise"].config
    assert rows["gossamer"].config.endswith(f"; {find('host').limits.compute_units} threads")
    assert "host_depthwise" not in rows["gossamer:host_im2col"].config
    # the host has no less precise algorithms, so each plan is there once
    assert {row.precision for row in result.rows} == {"fp32"} and len(rows) == len(result.rows)
    assert all(row.error < tolerance("network") for row in result.rows)
    assert result.absent["gossamer:im2col_gemm"].startswith(
        "computes no layer: host compiles no kernels")
    # the network has no product of two variables
    assert "gossamer:numpy" not in {*result.absent, *rows}
    assert not result.failed


def test_the_algorithms_that_are_forced_can_be_named(tmp_path: Path) -> None:
    case = network_case("suite", tiny(), 2, setting(find("host"), tmp_path, ["onnxruntime"],
                                                    ["fp32"]), force_each=True)
    assert set(case.with_forced([]).contenders) == {"gossamer", "onnxruntime"}
    assert set(case.with_forced(["host_gemm", "absent"]).contenders) == {
        "gossamer", "gossamer:host_gemm", "onnxruntime"}


def block() -> PeerNetwork:
    """Returns a block, which algorithms may compute as one layer."""
    return PeerNetwork("block", inverted_residual(InvertedResidual("block", 8, 6, 16, 8, 1)))


@pytest.mark.slow
def test_plans_between_layers_read_and_write_what_lies_there(
        device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if is_slow(device):
        pytest.skip("simulators are not measured")
    plans: list[Plan] = made(monkeypatch, networks, "Plan")
    case = network_case("suite", block(), 2, setting(device, tmp_path, [], ["fp32", "fp16"]),
                        between_layers=True)
    result = contest.run(case, PEAKS, STAMP)
    assert result.rows and not result.failed
    assert all(row.error < tolerance("network", "fp16") for row in result.rows)
    formats = {plan.policy.boundary: {str(program.specs[name].format)
                                      for name in (*program.inputs.values(),
                                                   *program.outputs.values())}
               for plan in plans for program in [plan.program(2)]}
    assert formats == {None: {"NCHW"}, Format("NHWC", "float16"): {"NHWC float16"}}


@pytest.mark.slow
def test_a_plan_without_fusions_is_a_contender(device: Device, tmp_path: Path,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    if is_slow(device):
        pytest.skip("simulators are not measured")
    plans: list[Plan] = made(monkeypatch, networks, "Plan")
    network = block()
    case = network_case("suite", network, 2, setting(device, tmp_path), unfused_too=True)
    assert set(case.contenders) == {"gossamer", "gossamer:unfused"}
    assert set(case.with_forced([]).contenders) == {"gossamer"}
    result = contest.run(case.with_forced(["unfused"]), PEAKS, STAMP)
    assert not result.absent and not result.failed
    assert [row.contender for row in result.rows].count("gossamer:unfused") == 1
    fusions = {plan.policy.unfused: [measured.layer.name for measured in plan.program(2).measured
                                     if measured.layer.covers] for plan in plans}
    assert fusions[False] and not fusions[True]


def test_a_plan_with_dense_weights_is_a_contender(tmp_path: Path) -> None:
    network = replace(tiny(), graph=pruned(tiny().graph, 0.75))
    case = network_case("suite", network, 2, setting(find("host"), tmp_path), dense_too=True)
    assert set(case.beside) == {"gossamer:dense"} and not case.with_forced([]).beside
    result = contest.run(case.with_forced(["dense"]), PEAKS, STAMP)
    assert not result.absent and not result.failed
    own, dense = (next(row for row in result.rows if row.contender == name)
                  for name in ("gossamer", "gossamer:dense"))
    assert own.density < 0.6 and dense.density == 1
    assert own.error < tolerance("network") and dense.error < tolerance("network")
    assert (own.suite, own.case, own.batch) == (dense.suite, dense.case, dense.batch)


def test_a_case_beside_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    def fail() -> Case:
        raise AbsentError("no memory for it")

    case = network_case("suite", tiny(), 2, setting(find("host"), tmp_path))
    result = contest.run(replace(case, beside={"gossamer:dense": fail}), PEAKS, STAMP)
    assert result.absent == {"gossamer:dense": "no memory for it"}
    assert {row.contender for row in result.rows} == {"gossamer"}


def test_the_budget_of_a_run_is_that_of_each_plan(tmp_path: Path) -> None:
    device = find("host")
    for budget, is_over in ((1e-9, True), (None, False)):
        tuner = tuners(device, "quick", kept=TuningCache(device, tmp_path), budget_s=budget)("fp32")
        tuner.start()
        assert tuner.is_over == is_over


def test_forced_plans_on_every_device(device: Device, tmp_path: Path) -> None:
    if is_slow(device):
        pytest.skip("simulators are not measured")
    case = network_case("suite", tiny(), 1, setting(device, tmp_path), force_each=True)
    name = "im2col_gemm" if device.compiles else "host_im2col"
    (alternative,) = case.contenders[f"gossamer:{name}"]()
    ready = alternative.make()
    ready.work(None)
    device.synchronize()
    assert ready.contender == f"gossamer:{name}" and name in ready.config
    assert ready.output(1).shape == (1, 5)


def test_layers_that_ran_elsewhere_are_told(tmp_path: Path) -> None:
    case = network_case("suite", tiny(), 1, setting(find("host"), tmp_path))
    assert case.notes == ()


def test_the_error_behind_a_sign_has_no_bound(tmp_path: Path) -> None:
    settings = setting(find("host"), tmp_path)
    plain = network_case("suite", tiny(), 1, settings)
    assert plain.most_error == {"fp32": 1e-4, "tf32": 2e-2, "fp16": 2e-2}
    network = tiny()
    network.graph.nodes[2] = Node("elementwise", "2", ["1.out"], ["2.out"],
                                  {"expression": apply("sign")})
    binary = network_case("suite", network, 1, settings)
    assert binary.most_error["fp32"] == 1e-4 and min(
        binary.most_error[name] for name in ("tf32", "fp16")) > 2


@pytest.mark.slow
def test_files_are_cases_by_their_names(files: list[Path], tmp_path: Path) -> None:
    items = select(["networks"], [1, 2], models=files)
    assert [(item.name, item.batch) for item in items] == [
        ("tiny", 1), ("tiny", 2), ("Small", 1), ("Small", 2)]
    case = items[3].make(setting(find("host"), tmp_path, ["onnxruntime", "torch-eager"]))
    result = contest.run(case, PEAKS, STAMP)
    assert "gossamer" in {row.contender for row in result.rows}
    assert ("onnxruntime" in {row.contender for row in result.rows}) == bool(
        find_spec("onnxruntime"))
    assert result.absent["torch-eager"] == "Small has no PyTorch module"


def test_models_that_cannot_be_cases(files: list[Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--model .*tiny.onnx: goes with the suite networks"):
        select(["gemm"], [1], models=files)
    twin = tmp_path / "tiny.onnx.gz"
    twin.write_bytes(files[1].read_bytes())
    with pytest.raises(InputError, match="there is another file for the case 'tiny'"):
        select(["networks"], [1], models=[files[0], twin])
    with pytest.raises(InputError, match=r"missing\.onnx"):
        select(["networks"], [1], models=[tmp_path / "missing.onnx"])
    two = to_onnx(tiny().graph)
    two.graph.input.append(helper.make_tensor_value_info("more", TensorProto.FLOAT, ["N", 3]))
    (tmp_path / "two.onnx").write_bytes(two.SerializeToString())
    with pytest.raises(InputError, match="expected one float32 input without dynamic dimensions "
                                         "other than the batch, got 'x' float32 Nx3x8x8, "
                                         "'more' float32 Nx3"):
        select(["networks"], [1], models=[tmp_path / "two.onnx"])
