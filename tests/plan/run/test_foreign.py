"""Which arrays count as arrays of other libraries."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.plan.run.foreign import is_foreign


@pytest.mark.parametrize(("array", "foreign"), [
    (SimpleNamespace(__dlpack__=None), True),
    (SimpleNamespace(__cuda_array_interface__={}), True),
    (SimpleNamespace(__array__=None), False),
    (np.zeros(2), False), ([1, 2], False)])
def test_foreign_arrays(array: object, foreign: bool) -> None:
    assert is_foreign(array) is foreign
