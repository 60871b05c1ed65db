"""The peak rates of a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.limits import PeakRates
from gossamer.device.registry import find
from gossamer.errors import OutOfMemoryError
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune import rates
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
from tests.fixtures import is_slow


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
