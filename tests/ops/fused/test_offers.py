"""Offers of algorithms are recorded for drawn fusions, and for fusions with one change."""

from __future__ import annotations

import pytest

from tests.ops.fused.drawn import fusions
from tests.ops.offers import texts
from tests.recorded import Recorded

COUNTS = {"block": 30, "separable": 30, "stem": 40, "excited": 50, "attention": 120, "head": 90,
          "pair": 100, "pool": 100, "first": 60, "chain": 90, "binary": 60}
"""Number of drawn fusions of each kind."""
DEVICES = {"binary": (("host",), ("h200",), ("processors",), ("sm_75", "host"))}
"""The devices of a kind that are not those of the others."""
OTHERS = (("h200", "opencl"), ("h200",), ("sm_80", "small"))


@pytest.mark.parametrize("kind", COUNTS)
def test_what_is_offered_for_drawn_fusions(kind: str, recorded: Recorded) -> None:
    recorded(f"fusions_{kind}", texts(fusions(kind, COUNTS[kind]), DEVICES.get(kind, OTHERS)))
