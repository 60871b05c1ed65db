"""Tests of mma/ring.h: copies through a ring, and faults that are planted in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import gossamer
import tests.ops.conv2d.shifted.test_windows_fp16 as shifted
import tests.ops.conv2d.shifted.test_windows_fp16_sparse as shifted_sparse
import tests.ops.conv2d.tensor_core.test_implicit_gemm as mma
from gossamer.device.source import KernelSource
from gossamer.facts import PLUS_MINUS_ONE
from gossamer.ops.conv2d.binary.tensor_core.bit_tensor_core import BitTensorCore
from gossamer.ops.conv2d.binary.tensor_core.tiles import WgmmaTile
from gossamer.ops.conv2d.shifted.windows_fp16 import ShiftedTile
from gossamer.ops.conv2d.shifted.windows_fp16_sparse import SparseTile
from gossamer.ops.fused.pointwise_pair import PairTile
from tests.emulation import test_signs as signs
from tests.emulation.device import Emulate, EmulatedDevice, KernelFault
from tests.ops.conv2d.binary.signs import BATCH_NORM_BITS
from tests.ops.fused import test_pointwise_pair as pairs
from tests.ops.harness import variants_of, with_tile

_ROWS = 8
_CONSUMERS = 2

FAULTS = {
    "a slot is released before all have read it":
        ("mbarrier_init(ring.read + slot, reads)", "mbarrier_init(ring.read + slot, reads / 2)"),
    "a slot is filled again without a release": ("if (ring.round > 0)", "if (ring.round > 1)"),
    "the next phase is not waited for": ("ring.round++;", ""),
}
"""Code of mma/ring.h, and what replaces it."""


def written(device: EmulatedDevice, kept: int = 0, at_once: int = 1) -> tuple[np.ndarray, ...]:
    """Return the rows, and what each consumer wrote of them: (time, consumer, row, word)."""
    rows = np.arange(_ROWS * 128, dtype=np.uint32).reshape(_ROWS, 128)
    result = np.zeros((1 + kept, _CONSUMERS, *rows.shape), np.uint32)
    kernel = device.compile(KernelSource.of(
        Path(__file__).with_name("rings.cu"), "through_slots", {"KEPT": kept, "AT_ONCE": at_once},
        architectures=("sm_90", "sm_100")))
    x, y = device.upload(rows, "rows"), device.upload(result, "what was written")
    device.launch(kernel, (1,), (32 * (1 + _CONSUMERS),), (x, y, _ROWS))
    device.read(y, result)
    return rows, result


@pytest.mark.parametrize("kept, at_once", [(0, 1), (0, 2), (1, 1)])
@pytest.mark.parametrize("mode, schedule", [("plain", 0), ("plain", 1), ("races", 2),
                                            ("bounds", 3)])
def test_all_rows_arrive(emulate: Emulate, mode: str, schedule: int, kept: int,
                         at_once: int) -> None:
    rows, result = written(emulate(mode, schedule), kept, at_once)
    np.testing.assert_array_equal(result, np.broadcast_to(rows, result.shape))


def test_no_other_file_counts_phases() -> None:
    package = Path(gossamer.__file__).parent
    assert {path.name for suffix in ("cu", "h") for path in package.rglob(f"*.{suffix}")
            if "mbarrier_wait_parity(" in path.read_text()} == {"mbarrier.h", "ring.h"}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_ring_is_reported(emulate: Emulate, fault: str) -> None:
    device = emulate("races", 2)
    device.planted = FAULTS[fault]
    with pytest.raises(KernelFault, match=r"data race|waits for ever"):
        written(device)


def _implicit_gemm(device: EmulatedDevice) -> None:
    problem = mma.DEEP
    mma.check(problem, device, variants_of(mma.algorithm_of(problem, device), problem, device,
                                           "fp16", {"wgmma": 1, "cluster": 1})[:1])


def _shifted_gemm(device: EmulatedDevice) -> None:
    shifted.check(shifted.DEEP, device, [with_tile(
        shifted.ALGORITHM, shifted.DEEP, device, ShiftedTile(128, 2, 1, 64, 2, 4))])


def _shifted_sparse(device: EmulatedDevice) -> None:
    problem = shifted_sparse.PROBLEMS["same"]
    shifted_sparse.check(problem, device, [with_tile(
        shifted_sparse.ALGORITHM, problem, device, SparseTile(64, 1, 2, 2, 3))], "2:4")


def _pointwise_pair(device: EmulatedDevice) -> None:
    problem = pairs.PROBLEMS["resnet"]
    pairs.check(problem, device, [with_tile(pairs.ALGORITHM, problem, device, PairTile(1, 2, 2))])


def _bits_wgmma(device: EmulatedDevice) -> None:
    problem = replace(signs.borders(BATCH_NORM_BITS, PLUS_MINUS_ONE), batch=5, height=10, width=9)
    variant = signs.variant_of(problem, WgmmaTile(64, 1, 1, 2, 1), 64, "packed64")
    signs.check_exact(BitTensorCore(), problem, variant, device)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kernel", [_implicit_gemm, _shifted_gemm, _shifted_sparse,
                                    _pointwise_pair, _bits_wgmma])
def test_a_fault_of_a_ring_is_noticed_in_each_kernel(
        emulate: Emulate, kernel: Callable[[EmulatedDevice], None], fault: str) -> None:
    """A wrong result, or a barrier that nobody arrives at."""
    device = emulate("plain", 2, wgmma=True, compute_units=1)
    kernel(device)
    device.planted = FAULTS[fault]
    with pytest.raises((KernelFault, AssertionError)):
        kernel(device)
