"""Where the time of planning goes, and the peak rates of a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.limits import PeakRates
from gossamer.device.registry import find
from gossamer.errors import OutOfMemoryError
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune import profile, rates
from gossamer.plan.tune.profile import CHECKING, OTHER, TIMING, TuningProfile
from gossamer.plan.tune.rates import (
    CHAINS,
    SOURCE,
    STEPS,
    WIDE_CHAINS,
    WIDE_SOURCE,
    WORK_GROUP_SIZE,
    know_rates,
    multiply_adds,
)
from gossamer.plan.tune.tuner import Tuner
from tests.fixtures import is_slow
from tests.plan.tune.paced import Paced, PacedDevice, layer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Returns a function that lets so many seconds pass."""
    now = [0.0]
    monkeypatch.setattr(profile, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def seconds_of(summary: dict[str, Any]) -> dict[str, float]:
    """Returns the seconds of each stage of a summary."""
    return {row["stage"]: row["seconds"] for row in summary["stages"]}


def test_stages_exclude_one_another_and_add_up(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    with tuning.whole():
        clock(1.0)
        with tuning.stage(CHECKING):
            clock(2.0)
            with tuning.stage(TIMING):
                clock(4.0)
            clock(1.0)
        with tuning.stage(TIMING):
            clock(2.0)
    clock(100.0)
    with tuning.whole():
        clock(5.0)
    summary = tuning.summary()
    assert (summary["elapsed_s"], summary["device_share"]) == (15.0, 9.0 / 15.0)
    assert seconds_of(summary) == {TIMING: 6.0, OTHER: 6.0, CHECKING: 3.0}
    assert sum(row["share"] for row in summary["stages"]) == pytest.approx(1.0)
    assert [row["seconds"] for row in summary["stages"]] == [6.0, 6.0, 3.0]


def test_stages_count_what_raises(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    with pytest.raises(KeyboardInterrupt), tuning.whole(), tuning.stage(TIMING):
        clock(5.0)
        raise KeyboardInterrupt
    assert (tuning.summary()["elapsed_s"], tuning.summary()["device_share"]) == (5.0, 1.0)


def test_a_profile_without_measuring_is_empty(clock: Callable[[float], None]) -> None:
    tuning = TuningProfile()
    assert tuning.summary() == {}
    with tuning.whole(), tuning.stage("listing configs"):
        clock(1.0)
    assert tuning.summary() == {}


def test_the_tuner_counts_its_stages(
        paced_device: PacedDevice, paced_tuner: Callable[..., Tuner],
        known: Callable[..., None]) -> None:
    algorithm = Paced("paced", 100.0, 90.0)
    known(algorithm)
    tuner = paced_tuner()
    with tuner.profile.whole():
        tuner.measure(layer(), [algorithm], paced_device)
    summary = tuner.profile.summary()
    assert {CHECKING, TIMING} <= seconds_of(summary).keys()
    assert 0 < summary["device_share"] < 1
    warm = paced_tuner()
    with warm.profile.whole():
        warm.measure(layer(), [algorithm], paced_device)
    assert warm.profile.summary() == {}


@pytest.mark.sanitize
def test_multiply_adds_are_done(compiled_device: Device) -> None:
    result = compiled_device.upload(np.zeros(WORK_GROUP_SIZE, np.float32), "a test")
    compiled_device.launch(compiled_device.compile(SOURCE), (1,), (WORK_GROUP_SIZE,),
                           (result, 1.0, 0.5, 2))
    sums = np.empty(WORK_GROUP_SIZE, np.float32)
    compiled_device.read(result, sums)
    starts = np.arange(WORK_GROUP_SIZE)[:, None] % 64 + np.arange(CHAINS)
    np.testing.assert_array_equal(sums, (starts + 0.5 * STEPS * 2).sum(axis=1))


@pytest.mark.sanitize
def test_multiply_adds_of_vectors_are_done(compiled_device: Device) -> None:
    result = compiled_device.upload(np.zeros((3, 16), np.float32), "a test")
    compiled_device.launch(compiled_device.compile(WIDE_SOURCE), (3,), (1,),
                           (result, 1.0, 0.5, 2))
    sums = np.empty((3, 16), np.float32)
    compiled_device.read(result, sums)
    starts = 0.5 * (np.arange(3)[:, None] + np.arange(WIDE_CHAINS))
    expected = (starts + 0.5 * STEPS * 2).sum(axis=1)
    np.testing.assert_array_equal(sums, np.repeat(expected[:, None], 16, axis=1))


def test_operations_are_those_of_the_launch(compiled_device: Device,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    launches: list[tuple[Any, ...]] = []
    monkeypatch.setattr(type(compiled_device), "launch", lambda self, *arguments, stream: (
        launches.append(arguments)))
    flops, compute = multiply_adds(compiled_device)
    compute(None)
    ((_, (groups,), (items,), (result, *_, rounds)),) = launches
    chains = WIDE_CHAINS if compiled_device.on_processors else CHAINS
    # each number of the result is the sum of some chains
    assert flops == 2 * (result.nbytes // 4) * chains * STEPS * rounds
    assert (result.nbytes // 4) // (groups * items) == (16 if compiled_device.on_processors else 1)


def forget(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a device as if nothing had been measured on it; skips where times mean nothing."""
    if is_slow(device):
        pytest.skip("Oclgrind interprets: its times say nothing")
    monkeypatch.setattr(device, "rates", None)


def test_rates_are_measured_once_and_kept(compiled_device: Device, tmp_path: Path,
                                          monkeypatch: pytest.MonkeyPatch) -> None:
    forget(compiled_device, monkeypatch)
    know_rates(compiled_device, TuningCache(compiled_device, tmp_path))
    known = compiled_device.rates
    assert known is not None and known.multiply_adds > 100 and known.nbytes > 10
    compiled_device.rates = None
    monkeypatch.setattr(rates, "_measured", lambda device: pytest.fail("measured again"))
    know_rates(compiled_device, TuningCache(compiled_device, tmp_path))
    assert compiled_device.rates == known
    # what this process measured goes into other caches too
    know_rates(compiled_device, TuningCache(compiled_device, tmp_path / "other"))
    compiled_device.rates = None
    know_rates(compiled_device, TuningCache(compiled_device, tmp_path / "other"))
    assert compiled_device.rates == known


def test_a_device_may_have_no_room_for_measuring(compiled_device: Device, tmp_path: Path,
                                                 monkeypatch: pytest.MonkeyPatch) -> None:
    forget(compiled_device, monkeypatch)

    def full(device: Device) -> PeakRates:
        raise OutOfMemoryError("no room")

    monkeypatch.setattr(rates, "_measured", full)
    know_rates(compiled_device, TuningCache(compiled_device, tmp_path))
    assert compiled_device.rates is None


def test_the_host_has_no_kernels_to_order(tmp_path: Path) -> None:
    know_rates(find("host"), TuningCache(find("host"), tmp_path))
    assert find("host").rates is None
