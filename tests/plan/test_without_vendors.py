"""The runner that compares plans with and without vendors' libraries."""

from __future__ import annotations

from gossamer.ops.registry import OPS
from tests.plan.without_vendors import no_vendors


def vendors() -> set[str]:
    return {algorithm.name for op in OPS.values() for algorithm in op.algorithms
            if algorithm.vendor}


def test_vendors_algorithms_are_missing_meanwhile_only() -> None:
    before = dict(OPS)
    assert vendors()
    with no_vendors():
        assert not vendors() and set(OPS) == set(before)
    assert before == OPS
