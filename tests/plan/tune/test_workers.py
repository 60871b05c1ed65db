"""Tests of processes that build candidates: what comes back, and what the caller is told."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device import kernel_cache
from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import CompileError, GossamerError
from gossamer.io.process_pool import NoProcessError, ProcessEndedError
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.program import BuiltElsewhere, build
from gossamer.plan.tune import workers as tune_workers
from gossamer.plan.tune.workers import BuildWorkers, WorkerPools
from tests.ops.conv2d.sparse.sparse_weights import BIAS_RESIDUAL_CLIP, H200, sparse, with_density
from tests.plan.tune.build_algorithms import (
    AbsentDevice,
    BuildableHost,
    Nothing,
    Scripted,
    VendorScripted,
    variant,
)
from tests.processes import SECONDS

WEIGHT = np.arange(6, dtype=np.float32)
PROBLEM: Any = Nothing()


def weights_of(device: Device, scale: float = 1) -> Weights:
    return Weights({"weight": scale * WEIGHT}, device, "layer1")


@pytest.fixture(scope="module")
def host() -> Device:
    return BuildableHost()


@pytest.fixture(scope="module")
def shared_workers(host: Device) -> Iterator[BuildWorkers]:
    with BuildWorkers(host, 1) as workers:
        yield workers


def submitted(workers: BuildWorkers, host: Device, chosen: Variant,
              **options: Any) -> Future[BuiltElsewhere]:
    return workers.build(Scripted(), PROBLEM, chosen, weights_of(host), **options)


def test_forms_come_back_and_are_used(shared_workers: BuildWorkers, host: Device) -> None:
    weights = weights_of(host)
    built = shared_workers.build(Scripted(), PROBLEM, variant(), weights).result(SECONDS)
    np.testing.assert_array_equal(built.forms["twice"], 2 * WEIGHT)
    assert built.forms["environment"].tolist() == [1, 1]
    assert built.seconds >= 0
    state, cost = build(Scripted(), weights, PROBLEM, variant(), host, built)
    # in this process the form would hold another number
    assert sorted(buffer.nbytes for buffer in state.packed) == [16, 24]
    assert cost.seconds >= built.seconds


@pytest.mark.parametrize("do, kind, message", [
    ("needs device", NoProcessError, "it runs a kernel"),
    ("fail", CompileError, "register 7 is missing"),
    ("fail oddly", GossamerError, "OddError: one and two"),
])
def test_errors_come_back(shared_workers: BuildWorkers, host: Device, do: str,
                          kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        submitted(shared_workers, host, variant(do)).result(SECONDS)


def test_what_libraries_print_does_no_harm(shared_workers: BuildWorkers, host: Device) -> None:
    assert submitted(shared_workers, host, variant("print")).result(SECONDS).forms


def test_candidates_that_only_this_process_builds(shared_workers: BuildWorkers,
                                                  host: Device) -> None:
    class Local(Scripted):
        pass

    weights = weights_of(host)
    with pytest.raises(NoProcessError, match="cannot be sent"):
        shared_workers.build(Local(), PROBLEM, variant(), weights).result(SECONDS)
    with (BuildWorkers(find("host"), 1, on_device=True) as workers,
          pytest.raises(NoProcessError, match="leaves nothing to other processes")):
        workers.build(VendorScripted(), PROBLEM, variant(), weights)


def test_a_process_that_ends_is_told_with_its_candidate(host: Device) -> None:
    with BuildWorkers(host, 1) as workers:
        with pytest.raises(ProcessEndedError, match=(
                "that built scripted do=die for layer layer1 was ended by signal 9: malloc")):
            submitted(workers, host, variant("die")).result(SECONDS)
        assert submitted(workers, host, variant()).result(SECONDS).forms
    with pytest.raises(NoProcessError, match="were closed"):
        submitted(workers, host, variant()).result(SECONDS)


class Sparse(Scripted):
    dense = False


def test_pools_that_were_ended_build_nothing_and_are_closed(
        host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_workers, "processors", lambda: 2)
    pools = WorkerPools()
    pools.start(host, [Sparse()])
    (workers,) = pools.pools.values()
    assert host.compilers is workers
    pools.end()
    assert host.compilers is None
    with pytest.raises(NoProcessError, match="they were closed"):
        submitted(workers, host, variant()).result(SECONDS)
    pools.close()
    assert not pools.pools


def test_the_compilers_of_another_plan_stay(host: Device) -> None:
    first = BuildWorkers(host, 1)
    with BuildWorkers(host, 1) as later:
        first.close()
        assert host.compilers is later
    assert host.compilers is None


@pytest.mark.parametrize(("count", "algorithms", "started"), [
    (1, [Sparse(), Scripted(), VendorScripted()], {}),
    (2, [Scripted()], {}),
    (5, [Sparse(), Scripted()], {False: 4}),
    (5, [VendorScripted(), Scripted()], {True: 4}),
    (6, [Scripted()], {False: 5}),
    (64, [VendorScripted(), Scripted()], {True: 5, False: 32}),
    (64, [], {}),
])
def test_pools_are_started_where_they_are_of_use(
        count: int, algorithms: list[Scripted], started: dict[bool, int],
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune_workers, "processors", lambda: count)
    monkeypatch.setattr(tune_workers, "BuildWorkers", lambda device, count, on_device: count)
    device = BuildableHost()
    device.limits = replace(device.limits, memory_bytes=2**40)
    pools = WorkerPools()
    pools.start(device, algorithms)
    assert pools.pools == started


def test_processes_stand_back_unless_a_library_is_asked(host: Device) -> None:
    own = os.getpriority(os.PRIO_PROCESS, 0)
    for on_device, added in ((False, 5), (True, 0)):
        with BuildWorkers(host, 1, on_device=on_device) as workers:
            pid = workers.submit(os.getpid, what="was asked").result(SECONDS)
            # the scheduler knows no more than 19
            assert os.getpriority(os.PRIO_PROCESS, pid) == min(own + added, 19)


def test_a_device_that_cannot_be_made_elsewhere() -> None:
    device = AbsentDevice()
    with (BuildWorkers(device, 1) as workers,
          pytest.raises(NoProcessError, match="does not start: no compiler is installed")):
        submitted(workers, device, variant()).result(SECONDS)


CONVOLUTION = with_density(Conv2dProblem(8, 16, 7, 7, 16, (3, 3), pads=(1, 1, 1, 1),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.2)


def test_this_process_builds_where_kernels_of_others_would_be_lost(
        shared_workers: BuildWorkers, host: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_cache, "_unwritten", OrderedDict(name=b"kernel"))
    with pytest.raises(NoProcessError, match="the kernel cache cannot be written"):
        submitted(shared_workers, host, variant())


@pytest.mark.slow
def test_kernels_and_forms_are_those_of_this_process(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build_only = pytest.importorskip("gossamer.device.cuda.build_only", exc_type=ImportError)
    device = build_only.BuildOnlyMaker(0, "H200 (sm_90)", "", H200, "sm_90", "H200")()
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))
    weights = Weights(sparse(CONVOLUTION, 0.2), device, "layer1")
    algorithms = [algorithm for algorithm in OPS["conv2d"].algorithms
                  if not algorithm.vendor and algorithm.supports(CONVOLUTION, device) is None]
    pairs = [(algorithm, next(iter(algorithm.variants(CONVOLUTION, device))))
             for algorithm in algorithms]
    with BuildWorkers(device, 1) as workers:
        futures = [workers.build(algorithm, CONVOLUTION, chosen, weights)
                   for algorithm, chosen in pairs]
        results = [future.result(SECONDS) for future in futures]
    assert len(pairs) >= 4 and all(built.seconds > 0 for built in results)
    assert not any(built.from_cache for built in results)

    def nothing(*arguments: Any, **options: Any) -> Any:
        raise AssertionError("it was built before")

    monkeypatch.setattr(build_only.nvrtc, "compile_cubin", nothing)
    monkeypatch.setattr(build_only.nvjitlink, "build", nothing)
    for (algorithm, chosen), built in zip(pairs, results, strict=True):
        here = tune_workers.KeptWeights(weights.arrays, device, "layer1")
        algorithm.prepare(here, CONVOLUTION, chosen, device)
        packed = {key: form for key, (_, form) in here.kept.items() if form is not None}
        assert packed.keys() == built.forms.keys(), algorithm.name
        for key, form in packed.items():
            assert form.dtype == built.forms[key].dtype
            np.testing.assert_array_equal(form, built.forms[key])
