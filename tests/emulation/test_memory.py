"""Tests of copies, barriers and clusters, by which work-items hand values to one another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.source import KernelSource
from tests.emulation.device import Emulate, EmulatedDevice, KernelFault

_FOLDER = Path(__file__).parent
_TAKEN = 43


def copies(**macros: int) -> KernelSource:
    return KernelSource.of(
        _FOLDER / "copies.cu", "matrices", {"LATE": 0, "EARLY": 0, "TRANSPOSED": 1, **macros},
        architectures=("sm_80", "sm_100"))


def matrices(device: EmulatedDevice, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, and the values that the lanes of two warps loaded: (lane, matrix, side)."""
    rows = np.arange(1, 513, dtype=np.uint16).reshape(64, 8)
    loaded = np.zeros((64, 4, 2), np.uint16)
    source, target = device.upload(rows, "rows"), device.upload(loaded, "what was loaded")
    device.launch(device.compile(copies(**macros)), (1,), (64,), (source, target, _TAKEN))
    device.read(target, loaded)
    return rows, loaded


@pytest.mark.parametrize("mode", ["plain", "races", "bounds"])
@pytest.mark.parametrize("transposed", [False, True])
def test_matrices_are_loaded_as_stated(emulate: Emulate, mode: str, transposed: bool) -> None:
    rows, loaded = matrices(emulate(mode), TRANSPOSED=int(transposed))
    rows[_TAKEN:] = 0
    blocks = rows[::-1].reshape(2, 4, 8, 8)
    if transposed:
        blocks = blocks.swapaxes(2, 3)
    expected = blocks.reshape(2, 4, 8, 4, 2).transpose(0, 2, 3, 1, 4).reshape(64, 4, 2)
    np.testing.assert_array_equal(loaded, expected)


def test_what_was_not_waited_for_has_not_come(emulate: Emulate) -> None:
    _, loaded = matrices(emulate(), LATE=1)
    assert (loaded == 0xFFFF).all()


def test_a_copy_over_what_others_read_is_found(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match=r"data race[^$]*copies\.cu:\d+"):
        matrices(emulate("races"), EARLY=1)


def barriers(**macros: int) -> KernelSource:
    return KernelSource.of(
        _FOLDER / "barriers.cu", "two_phases", {"EARLY": 0, "FORGETS": 0, **macros},
        architectures=("sm_90", "sm_100"))


def two_phases(device: EmulatedDevice, **macros: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows, and what was written of them."""
    rows = np.arange(256, dtype=np.uint32).reshape(64, 4)
    written = np.zeros_like(rows)
    source, target = device.upload(rows, "rows"), device.upload(written, "what was written")
    device.launch(device.compile(barriers(**macros)), (1,), (64,), (source, target))
    device.read(target, written)
    return rows, written


@pytest.mark.parametrize("mode, schedule", [("plain", 0), ("plain", 1), ("races", 2),
                                            ("bounds", 3)])
def test_each_phase_brings_its_own_bytes(emulate: Emulate, mode: str, schedule: int) -> None:
    rows, written = two_phases(emulate(mode, schedule))
    np.testing.assert_array_equal(written, rows)


def test_a_copy_of_a_phase_over_what_others_read_is_found(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match="data race"):
        two_phases(emulate("races"), EARLY=1)


def test_a_phase_that_never_ends_is_reported(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match="waits for ever") as fault:
        two_phases(emulate(), FORGETS=1)
    assert "work-items 32 to 63 wait at a barrier of copies" in str(fault.value)


_CLUSTER, _GROUPS, _ITEMS = 4, 8, 64


def clusters(early: bool = False) -> KernelSource:
    return KernelSource.of(
        _FOLDER / "clusters.cu", "hand_on",
        {"CLUSTER": _CLUSTER, "EARLY": int(early)}, architectures=("sm_90", "sm_100"),
        dynamic_shared=True)


def handed(device: EmulatedDevice, early: bool = False, nbytes: int = 4 * _ITEMS) -> np.ndarray:
    result = np.zeros((_GROUPS, _ITEMS), np.int32)
    y = device.upload(result, "the result")
    device.launch(device.compile(clusters(early)), (_GROUPS,), (_ITEMS,), (y,), shared_bytes=nbytes)
    device.read(y, result)
    return result


@pytest.mark.parametrize("schedule", [0, 1, 2])
@pytest.mark.parametrize("mode", ["plain", "races", "bounds"])
def test_a_group_gets_what_another_hands_it(emulate: Emulate, mode: str, schedule: int) -> None:
    groups = np.arange(_GROUPS)
    before = groups // _CLUSTER * _CLUSTER + (groups - 1) % _CLUSTER
    np.testing.assert_array_equal(handed(emulate(mode, schedule)),
                                  before[:, None] * 100 + np.arange(_ITEMS))


def test_a_barrier_of_the_group_does_not_order_the_cluster(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match=r"data race[^$]*clusters\.cu:\d+"):
        handed(emulate("races"), early=True)


def test_a_word_behind_another_groups_memory_is_found(emulate: Emulate) -> None:
    with pytest.raises(KernelFault, match="overflow"):
        handed(emulate("bounds"), nbytes=4 * _ITEMS - 4)


@pytest.mark.parametrize("source", [
    copies(TRANSPOSED=0), copies(TRANSPOSED=1), barriers(), clusters()],
    ids=lambda source: source.function)
def test_it_builds_without_spills(source: KernelSource) -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for architecture in source.architectures:
        _, info = nvrtc.compile_cubin(source, architecture)
        assert info.spill_bytes == 0
