"""Peak rates are made of work that is really done."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.bench.peaks import CHAINS, GROUP_SIZE, STEPS, multiply_add
from gossamer.device.base import Device


@pytest.mark.sanitize
def test_multiply_adds_are_done(compiled_device: Device) -> None:
    result = compiled_device.upload(np.zeros(GROUP_SIZE, np.float32), "a test")
    flops = multiply_add(compiled_device, result, 1, 2, factor=1.0, term=0.5)
    sums = np.empty(GROUP_SIZE, np.float32)
    compiled_device.read(result, sums)
    assert flops == 2 * GROUP_SIZE * CHAINS * STEPS * 2
    starts = np.arange(GROUP_SIZE)[:, None] % 64 + np.arange(CHAINS)
    np.testing.assert_array_equal(sums, (starts + 0.5 * STEPS * 2).sum(axis=1))
