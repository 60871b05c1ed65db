"""Tests of clusters, whose work-groups access one another's shared memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.source import KernelSource
from tests.emulation.device import EmulatedDevice, KernelFault
from tests.emulation.test_faults import Emulate

_CLUSTER, _GROUPS, _ITEMS = 4, 8, 64


def source(early: bool = False) -> KernelSource:
    return KernelSource.of(
        Path(__file__).with_name("clusters.cu"), "hand_on",
        {"CLUSTER": _CLUSTER, "EARLY": int(early)}, architectures=("sm_90", "sm_100"),
        dynamic_shared=True)


def handed(device: EmulatedDevice, early: bool = False, nbytes: int = 4 * _ITEMS) -> np.ndarray:
    result = np.zeros((_GROUPS, _ITEMS), np.int32)
    y = device.upload(result, "the result")
    device.launch(device.compile(source(early)), (_GROUPS,), (_ITEMS,), (y,), shared_bytes=nbytes)
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


def test_it_builds() -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    for architecture in source().architectures:
        nvrtc.compile_cubin(source(), architecture)
