"""Fixtures: a case of one tiny network and its result, which all tests share."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from bench_tests import jax_stand_in
from bench_tests.networks import tiny
from gossamer.bench.rows import Stamp
from gossamer.bench.work import AbsentError, Setting, tuners
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer_bench import contest
from gossamer_bench.contender import Alternative
from gossamer_bench.peaks import Peaks
from gossamer_bench.suites.networks import network_case
from gossamer_bench.work import Case
from tests.bench.verb import device_name, quick_calls  # noqa: F401
from tests.cli.conftest import tiny as tiny_file  # noqa: F401


class NvidiaDevice(HostDevice):
    """The host as a device on which CUDA's libraries would run."""

    runs_cuda_libraries = True


PEAKS = Peaks("host", {"fp32": 1e12, "fp16": 4e12}, 1e11)


def absent(*_: object) -> list[Alternative]:
    raise AbsentError("not installed: pip install something")


def broken(*_: object) -> list[Alternative]:
    def make() -> None:
        raise ValueError("no such layer\nand more lines")

    return [Alternative("first", make), Alternative("second", make)]


def setting(device: Device, folder: Path, against: Sequence[str] = (),
            precisions: Sequence[str] = ("fp32",)) -> Setting:
    cache = TuningCache(device, folder)
    return Setting(device, tuners(device, "quick", kept=cache), tuple(against), tuple(precisions))


@pytest.fixture(scope="session")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """The tiny network at batch 3 on the host, with a peer that is absent and one that fails."""
    case = network_case("suite", tiny(), 3, setting(
        find("host"), tmp_path_factory.mktemp("tuning"), ["onnxruntime", "torch-eager"]))
    return dataclasses.replace(case, contenders={
        **case.contenders, "somebody": absent, "nobody": broken})


@pytest.fixture(scope="session")
def result(case: Case) -> contest.Result:
    stamp = Stamp.of(find("host"), "gossamer bench suite")
    with pytest.MonkeyPatch.context() as patch:
        # the fixture that makes messages independent of other programs is of single tests
        patch.setattr("gossamer.measure.SCATTERED", math.inf)
        return contest.run(case, PEAKS, stamp)


@pytest.fixture
def needs_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has tests run with JAX, or with the stand-in where JAX is not installed."""
    if find_spec("jax") is None:
        for name, module in jax_stand_in.modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    # it keeps JAX from allocating most of a GPU's memory
    import gossamer_bench.peers.jax_devices  # noqa: F401
