"""Tests of asynchronous copies and of ldmatrix, by which kernels for tensor cores read operands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.source import KernelSource
from tests.emulation.device import EmulatedDevice, KernelFault
from tests.emulation.test_faults import Emulate

_SOURCE = Path(__file__).with_name("copies.cu")
_TAKEN = 43


def run(device: EmulatedDevice, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows, and the values that the lanes of two warps loaded: (lane, matrix, side)."""
    rows = np.arange(1, 513, dtype=np.uint16).reshape(64, 8)
    loaded = np.zeros((64, 4, 2), np.uint16)
    source, target = device.upload(rows, "rows"), device.upload(loaded, "what was loaded")
    kernel = device.compile(KernelSource.of(
        _SOURCE, "matrices", {"LATE": 0, "EARLY": 0, "TRANSPOSED": 1, **macros},
        architectures=("sm_80", "sm_100")))
    device.launch(kernel, (1,), (64,), (source, target, _TAKEN))
    device.read(target, loaded)
    return rows, loaded


@pytest.mark.parametrize("mode", ["plain", "races", "bounds"])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded_as_stated(emulate: Emulate, mode: str, transposed: bool) -> None:
    rows, loaded = run(emulate(mode), TRANSPOSED=int(transposed))
    rows[_TAKEN:] = 0
    matrices = rows[::-1].reshape(2, 4, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(2, 3)
    expected = matrices.reshape(2, 4, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(64, 4, 2)
    np.testing.assert_array_equal(loaded, expected)


def test_what_was_not_waited_for_has_not_come(emulate: Emulate) -> None:
    _, loaded = run(emulate(), LATE=1)
    assert (loaded == 0xFFFF).all()


def test_a_copy_over_what_others_read_is_found(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match=r"data race[^$]*copies\.cu:\d+"):
        run(emulate("races"), EARLY=1)


def test_it_builds() -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for transposed in (0, 1):
        source = KernelSource.of(
            _SOURCE, "matrices", {"LATE": 0, "EARLY": 0, "TRANSPOSED": transposed},
            architectures=("sm_80", "sm_100"))
        for architecture in source.architectures:
            nvrtc.compile_cubin(source, architecture)
