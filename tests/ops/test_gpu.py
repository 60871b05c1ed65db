"""The model of a launch on an NVIDIA GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gossamer.ops.gpu import LaunchWork, groups_per_unit
from tests.simulated.device import H200

UNITS = H200.limits.compute_units


@pytest.mark.parametrize(("kilobytes", "most", "held"), [
    (227, 4, 1), (113, 4, 2), (114, 4, 1), (56, 3, 3), (56, 9, 4), (300, 1, 1)])
def test_shared_memory_and_registers_bound_the_work_groups_of_a_multiprocessor(
        kilobytes: int, most: int, held: int) -> None:
    assert groups_per_unit(1024 * kilobytes, H200.limits, most) == held


def test_a_launch_takes_as_long_as_its_busiest_multiprocessor() -> None:
    work = LaunchWork(UNITS, 1, busy=5000.0, waited=1000.0)

    def us(groups: int, per_unit: int = 1) -> float:
        return replace(work, groups=groups, per_unit=per_unit).expected_us(H200.limits)

    assert us(1) == us(UNITS) < us(UNITS + 1) == us(2 * UNITS)
    # work-groups that wait at the same time begin once
    assert us(2 * UNITS, per_unit=2) < us(2 * UNITS)


def test_clusters_that_do_not_fit_the_processing_clusters_at_once_take_longer() -> None:
    work = LaunchWork(7 * 16, 1, busy=5000.0, waited=1000.0, cluster=16)
    more = replace(work, groups=8 * 16)
    assert work.expected_us(H200.limits) < more.expected_us(H200.limits)


def test_memory_bounds_a_launch_whose_tensors_do_not_stay_in_the_cache() -> None:
    work = LaunchWork(UNITS, 1, busy=100.0, waited=100.0, moved=4e8)
    assert work.expected_us(H200.limits) > 4e8 / 5e6
    assert replace(work, moved=4e5).expected_us(H200.limits) < 10
