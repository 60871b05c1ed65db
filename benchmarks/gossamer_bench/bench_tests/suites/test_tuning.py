"""The suite that times planning: gossamer in a fresh process with empty caches, and who else is
measured."""

from __future__ import annotations

import dataclasses
import re
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench_tests.conftest import PEAKS, setting
from bench_tests.networks import tiny
from gossamer.bench.networks import reference
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.model import zoo
from gossamer_bench import contest, fresh_process
from gossamer_bench.fresh_process import Job
from gossamer_bench.suites.catalogue import select
from gossamer_bench.suites.tuning import tuning_case
from tests.bench.peers.graphs import detector
from tests.tolerances import normalised_error, tolerance

STAMP = Stamp({}, "gossamer bench", None, "run")


def job(**changed: Any) -> Job:
    graph = tiny().graph
    x = np.random.default_rng(0).standard_normal((3, 3, 8, 8)).astype(np.float32)
    return dataclasses.replace(Job("gossamer", graph, x, 2, "host", "fp32", "quick"), **changed)


@pytest.mark.slow
def test_planning_is_timed_from_empty_caches(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "mine"))
    case = tuning_case(tiny(), "quick", 3, setting(find("host"), tmp_path / "tuning", (),
                                                   ("fp32", "fp16")))
    result = contest.run(case, PEAKS, STAMP)
    assert (case.suite, case.name, case.batch) == ("tuning", "tiny/quick", 3)
    assert not result.failed and not result.absent
    assert {row.precision for row in result.rows} == {"fp32", "fp16"}
    for row in result.rows:
        match = re.fullmatch(r"(\d+) candidates measured, \d+ not tried, plan ([\d.]+) us",
                             row.config)
        assert match and int(match[1]) > 3 and 0 < float(match[2]) < row.median_us
        assert row.contender == "gossamer" and row.device == "host" and row.batch == 3
        assert row.speed_of_light_us is None and 0 <= row.error < tolerance("network")
    # every time was measured in another folder
    assert not (tmp_path / "mine").exists() and not (tmp_path / "tuning").exists()


def test_torch_compile_says_why_it_is_absent(tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    class OtherDevice(HostDevice):
        name, api, compiles = "opencl:0", "opencl", True

    def reason(device: HostDevice) -> str:
        case = tuning_case(tiny(), "quick", 1, setting(device, tmp_path, ["torch-compile"]))
        with pytest.raises(AbsentError) as caught:
            case.contenders["torch-compile"]()
        return str(caught.value)

    assert "does not run on opencl:0" in reason(OtherDevice())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert reason(find("host")) == "torch is not installed: pip install torch"


def test_torch_compile_is_timed_where_it_is_installed() -> None:
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    done = job(contender="torch-compile")
    first = fresh_process.run(done)
    assert first.seconds > 0 and first.layout == "NCHW"
    assert normalised_error(first.output, reference(done.graph, done.x[:2])) < tolerance("network")
    with pytest.raises(AbsentError, match="no TF32"):
        fresh_process.run(dataclasses.replace(done, precision="tf32"))


@pytest.mark.slow
@pytest.mark.parametrize("contender", ["gossamer", "torch-compile"])
def test_the_first_of_several_outputs_is_checked(contender: str) -> None:
    if contender != "gossamer" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    graph = detector()
    x = np.random.default_rng(0).standard_normal((2, 4, 8, 8)).astype(np.float32)
    output = fresh_process.run(job(contender=contender, graph=graph, x=x)).output
    assert normalised_error(output, reference(graph, x)) < tolerance("network")


@pytest.mark.parametrize("network", ["tiny", "mobilenet_v2"])
def test_a_graph_is_the_same_in_torch(network: str) -> None:
    torch = pytest.importorskip("torch")
    from gossamer.bench.peers.graph_module import graph_module

    graph = tiny().graph if network == "tiny" else zoo.build(network, seed=3)
    x = np.random.default_rng(0).standard_normal(
        (2, *graph.inputs[0].shape[1:])).astype(np.float32)
    with torch.inference_mode():
        result = graph_module(graph, 2)(torch.from_numpy(x)).numpy()
    assert normalised_error(result, reference(graph, x)) < tolerance("network")


@pytest.mark.slow
def test_a_process_that_fails_is_a_failure_with_its_last_line() -> None:
    with pytest.raises(RuntimeError, match="there is no device 'tpu:0'"):
        fresh_process.run(job(device="tpu:0"))


def test_a_process_that_prints_nothing_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fresh_process, "_finished", lambda folder, environment: (0, "hello\n", ""))
    with pytest.raises(RuntimeError, match="printed 'hello' at its end"):
        fresh_process.run(job())


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_ctrl_c_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupted(self: subprocess.Popen[str]) -> None:
        started.append(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fresh_process.run(job())
    (process,) = started
    assert process.returncode == -signal.SIGKILL
    assert not Path(process.args[-1]).exists()  # type: ignore[index,arg-type]


def test_a_network_is_planned_with_each_effort(shared: Path, monkeypatch: pytest.MonkeyPatch
                                               ) -> None:
    def names(**options: Any) -> list[str]:
        return [item.name for item in select(["tuning"], [1], **options)]

    built_in = ["mobilenetv2", "resnet50"]
    assert names() == [f"{name}/{effort}" for name in built_in for effort in ("quick", "normal")]
    assert names(effort="max") == ["mobilenetv2/max", "resnet50/max"]
    pruned = ["resnet50-dlmc-0.90", "resnet50-dlmc-0.98"]
    assert names(data=shared / "data", effort="quick") == [
        f"{name}/quick" for name in built_in + pruned]
    file = shared / "models" / "squeezenet_pruned.onnx.gz"
    assert names(models=[file]) == ["squeezenet_pruned/quick", "squeezenet_pruned/normal"]
