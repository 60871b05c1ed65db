"""Sums of products of integers are exact in float32, in as few slices as can be."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.errors import UnsupportedError
from gossamer.model.readers.onnx.quantised_products import slices

NODE, EXACT = SimpleNamespace(unsupported=UnsupportedError), 2**24


@pytest.mark.parametrize("bounds", [(0, 255), (-128, 127), (-255, 0), (3, 9), (-2**15, 2), (0, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 9), (3, 70, 9), (2, 600, 1), (4, 97, 1), (1, 2, 64)])
@pytest.mark.parametrize("low", [127, -128, None, (EXACT + 1) // 97])
def test_slices(shape: tuple[int, int, int], bounds: tuple[int, int], low: int | None) -> None:
    weight = np.random.default_rng(5).integers(*((-128, 128) if low is None else (low, low + 1)),
                                               shape)
    ends = weight[..., None] * np.array([*bounds, 0])
    # the sums of each channel, for the inputs that make them largest and smallest
    sums = np.stack([ends.max(axis=3).sum(axis=2), -ends.min(axis=3).sum(axis=2)])
    if sums.max() > EXACT:
        with pytest.raises(UnsupportedError, match="has sums for one input channel that"):
            slices(NODE, weight.astype(np.float32), bounds)
        return
    begins, found = [0], slices(NODE, weight.astype(np.float32), bounds)
    for channel in range(shape[1]):
        if sums[..., begins[-1]:channel + 1].sum(axis=2).max() > EXACT:
            begins.append(channel)
    assert len(found) == len(begins) and [end for _, end in found[:-1]] == [
        begin for begin, _ in found[1:]] and (found[0][0], found[-1][1]) == (0, shape[1])
    assert max(sums[..., begin:end].sum(axis=2).max() for begin, end in found) <= EXACT
