from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import InputError
from gossamer.train import MLP, Preparation
from gossamer.train.data import sources
from gossamer.train.data.dataset import prepared

_SAMPLES = 2000


@cache
def _mnist(part: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns pictures that are padded to 32 x 32 and binarised, as published, and labels."""
    try:
        file = sources.mnist()[part]
    except InputError as error:
        pytest.skip(str(error))
    data = prepared(sources.load(file, limit=count)[0], Preparation(True, 0.5, (32, 32)))
    return data.x, data.y


def test_mnist_as_published(device: Device) -> None:
    """The published training takes squared error, sigmoid, one sample at a time in file order, and
    initial weights within +-0.05."""
    if device.api == "opencl":
        pytest.skip("one launch per step takes long on the processor")
    x, labels = _mnist(0, _SAMPLES)
    assert set(np.unique(x)) == {0.0, 1.0}
    mlp = MLP.published((1024, 32, 10), epochs=4, device=device).fit(x, labels)
    assert mlp.score(*_mnist(1, 1000)) >= 0.8
    assert mlp.loss_curve_ == sorted(mlp.loss_curve_, reverse=True)
