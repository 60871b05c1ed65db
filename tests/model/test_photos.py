"""Photos come to a network with the numbers that its metadata says, whoever normalises them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.io.images import Preprocessing
from gossamer.model.graph import Graph, ValueInfo
from gossamer.model.photos import PhotoReader, batch_as_taken, taking_photos

PHOTOS = [np.random.default_rng(seed).integers(0, 256, (4, 6, 3), np.uint8) for seed in range(2)]
PLAIN = Preprocessing((4, 6), scale=0.5, mean=(1.0, 2.0, 3.0), std=(2.0, 1.0, 4.0))


@pytest.mark.parametrize("prepare", [PLAIN, replace(PLAIN, channels="bgr"), Preprocessing(
    (4, 6), channels="grey"), Preprocessing((2, 2), 3), replace(PLAIN, rounding="signed8")])
def test_the_network_takes_the_same_numbers(prepare: Preprocessing) -> None:
    expected = prepare.batch(PHOTOS)
    graph = Graph("net", [ValueInfo("x", (None, *expected.shape[1:]))], [], [], {})
    (info,) = taking_photos(graph, prepare).inputs
    assert (info.given is None) == (prepare.rounding != "none")
    taken = batch_as_taken(prepare, info, PHOTOS)
    assert taken.dtype == ("uint8" if info.given else "float32")
    assert PhotoReader(prepare, info).form() == (taken[0].shape, taken.dtype)
    numbers = info.given.as_network_takes(taken) if info.given else taken
    np.testing.assert_allclose(numbers, expected, rtol=1e-5, atol=1e-5)
