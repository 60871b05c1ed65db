"""How products of `batched` deal their tiles to work-items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.source import KernelSource
from tests.device.helpers import launched

SOURCE = KernelSource.of(Path(__file__).with_name("places.cl"), "places")


@pytest.mark.parametrize(("along", "across", "parts"), [
    (25, 13, 1), (7, 13, 4), (8, 6, 3), (2, 2, 2), (1, 9, 3), (6, 1, 2), (1, 1, 5)])
def test_neighbours_share_rows_or_columns(compiled_device: Device, along: int, across: int,
                                          parts: int) -> None:
    """Every tile of every part is dealt once, and work-items n, n ^ 1 and n ^ 2 of a square read
    the same words."""
    count = along * across * parts
    out = launched(compiled_device, SOURCE, (-(-count // 64),), (64,),
                   np.full((count, 3), -1, np.int32), along, across, parts)[0]
    assert sorted(map(tuple, out)) == [
        (i, j, part) for i in range(along) for j in range(across) for part in range(parts)]
    n = np.arange(along // 2 * (across // 2) * 4 * parts)
    first, other = out[n], out[n ^ 1]
    np.testing.assert_array_equal(first[:, 1:], other[:, 1:])
    np.testing.assert_array_equal(first[:, 0] ^ 1, other[:, 0])
    np.testing.assert_array_equal(first[:, [0, 2]], out[n ^ 2][:, [0, 2]])
