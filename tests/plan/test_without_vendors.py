"""The runner that compares plans with and without vendors' libraries."""

from __future__ import annotations

from gossamer.device.kernel_cache import cache_folder
from gossamer.ops.registry import OPS
from tests.plan.without_vendors import no_vendors


def vendors() -> set[str]:
    return {algorithm.name for op in OPS.values() for algorithm in op.algorithms
            if algorithm.vendor}


def test_vendors_algorithms_are_missing_meanwhile_only() -> None:
    before, folder = dict(OPS), cache_folder()
    assert vendors()
    with no_vendors():
        assert not vendors() and set(OPS) == set(before)
        assert cache_folder() != folder
    assert before == OPS and cache_folder() == folder
