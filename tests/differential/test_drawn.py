"""Random networks of a few seeds."""

from __future__ import annotations

import pytest

from tests.differential.check import cause, differences
from tests.differential.network import drawn


@pytest.mark.parametrize("seed", [1, 2])
def test_a_few_networks(seed: int) -> None:
    assert drawn(seed)[0] == drawn(seed)[0]
    assert not [str(found) for found in differences(seed, ["host"]) if not cause(found)]
