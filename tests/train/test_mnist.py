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
    """As published: pictures padded to 32 x 32 and binarised."""
    try:
        file = sources.mnist()[part]
    except InputError as error:
        pytest.skip(str(error))
    found = prepared(sources.load(file, limit=count)[0], Preparation(True, 0.5, (32, 32)))
    return found.x, found.y


def test_mnist_as_published(device: Device) -> None:
    """Squared error, sigmoid, one sample at a time in file order, from weights in +-0.05."""
    if device.api == "opencl":
        pytest.skip("a launch a step on the processor takes long")
    x, labels = _mnist(0, _SAMPLES)
    assert set(np.unique(x)) == {0.0, 1.0}
    mlp = MLP((1024, 32, 10), epochs=4, device=device).fit(x, labels)
    assert mlp.score(*_mnist(1, 1000)) >= 0.8
    assert mlp.loss_curve_ == sorted(mlp.loss_curve_, reverse=True)
