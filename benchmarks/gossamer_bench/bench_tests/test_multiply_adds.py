"""The multiply-adds that show a device's peak rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer_bench.multiply_adds import (
    CHAINS,
    SOURCE,
    STEPS,
    WIDE_CHAINS,
    WIDE_SOURCE,
    WORK_GROUP_SIZE,
    multiply_adds,
)


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
    flops, compute = multiply_adds(compiled_device, "a test")
    compute(None)
    ((_, (groups,), (items,), (result, *_, rounds)),) = launches
    chains = WIDE_CHAINS if compiled_device.on_processors else CHAINS
    # each number of the result is the sum of some chains
    assert flops == 2 * (result.nbytes // 4) * chains * STEPS * rounds
    assert (result.nbytes // 4) // (groups * items) == (16 if compiled_device.on_processors else 1)
