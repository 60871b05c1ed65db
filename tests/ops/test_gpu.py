"""The expected time of a launch follows from its work, its occupancy and its traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.gpu import MULTIPLY_ADDS, LaunchWork, copied_bytes, resident
from tests.simulated.device import H200

LIMITS = H200.limits
WORK = LaunchWork(groups=132, resident=2, operands="mma fp16", multiply_adds=4e6, copied=1e5,
                  stored=4096, stages=16, ahead=3, nbytes=0)


def us(**changes: object) -> float:
    return replace(WORK, **changes).expected_us(LIMITS)


@pytest.mark.parametrize("more", [
    {"groups": 133}, {"multiply_adds": 8e6}, {"stored": 8192}, {"stages": 32}, {"warps": 2},
    {"copied": 1e6}, {"nbytes": 1e9}, {"ahead": 1}, {"cluster": 12}])
def test_more_work_or_less_overlap_takes_longer(more: dict[str, object]) -> None:
    assert us(**more) > us() > 1


def test_a_long_launch_takes_the_time_of_its_products_on_all_multiprocessors() -> None:
    products = 132 * 1e9 / (132 * MULTIPLY_ADDS["wgmma fp16"] * 1750)
    assert us(operands="wgmma fp16", multiply_adds=1e9) == pytest.approx(products, rel=0.02)


def test_tensors_beyond_the_cache_take_the_time_of_device_memory() -> None:
    assert us(nbytes=20e6) == us()
    assert us(nbytes=4.26e9) == pytest.approx(1000, rel=0.02)


def test_waves_of_work_groups_wait_one_after_the_other() -> None:
    waiting = {"multiply_adds": 0, "copied": 0, "stored": 0}
    one, two = (us(groups=groups, **waiting) for groups in (264, 265))
    assert two - us(groups=0, stages=-1, **waiting) == pytest.approx(
        2 * (one - us(groups=0, stages=-1, **waiting)))


def test_eight_large_clusters_take_as_long_as_two_waves_of_an_h200() -> None:
    seven, eight, fourteen = (us(groups=12 * count, cluster=12, resident=1)
                              for count in (7, 8, 14))
    assert seven < eight == fourteen


def test_work_groups_are_held_while_shared_memory_and_registers_have_room() -> None:
    # CUDA reserves 1 KiB for each of them, and for each of the device's 228
    assert [resident(227 * 1024, kib * 1024, 4) for kib in (227, 113, 75, 56, 1)] == [1, 2, 3, 4, 4]
    assert resident(99 * 1024, 100 * 1024, 4) == 1


def test_narrow_copies_move_fewer_bytes_at_once() -> None:
    assert copied_bytes(1000, 16) == copied_bytes(1000, 8) == 1000
    assert copied_bytes(1000, 2) == 2 * copied_bytes(1000, 4) > 1000
