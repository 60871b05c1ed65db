"""Tests of the barriers by which warps that copy and warps that compute wait for one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.source import KernelSource
from tests.emulation.device import EmulatedDevice, KernelFault
from tests.emulation.test_faults import Emulate


def _source(**macros: int) -> KernelSource:
    return KernelSource.of(
        Path(__file__).with_name("barriers.cu"), "two_phases", {"EARLY": 0, "FORGETS": 0, **macros},
        architectures=("sm_90", "sm_100"))


def run(device: EmulatedDevice, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows, and what was written of them."""
    rows = np.arange(256, dtype=np.uint32).reshape(64, 4)
    written = np.zeros_like(rows)
    source, target = device.upload(rows, "rows"), device.upload(written, "what was written")
    device.launch(device.compile(_source(**macros)), (1,), (64,), (source, target))
    device.read(target, written)
    return rows, written


@pytest.mark.parametrize("mode, schedule", [("plain", 0), ("plain", 1), ("races", 2),
                                            ("bounds", 3)])
def test_each_phase_brings_its_own_bytes(emulate: Emulate, mode: str, schedule: int) -> None:
    rows, written = run(emulate(mode, schedule))
    np.testing.assert_array_equal(written, rows)


def test_a_copy_over_what_others_read_is_found(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match="data race"):
        run(emulate("races"), EARLY=1)


def test_a_phase_that_never_ends_is_reported(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match="waits for ever") as fault:
        run(emulate(), FORGETS=1)
    assert "work-items 32 to 63 wait at a barrier of copies" in str(fault.value)


def test_it_builds() -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for architecture in _source().architectures:
        _, info = nvrtc.compile_cubin(_source(), architecture)
        assert info.spill_bytes == 0
