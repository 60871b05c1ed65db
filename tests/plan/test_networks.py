"""The real networks through a plan, end to end, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest

import gossamer
from gossamer.device.base import Device
from tests.model.onnx_models import runtime
from tests.plan.photos import PREPARED, photos
from tests.tolerances import normalised_error, tolerance

pytestmark = pytest.mark.shared

BATCHES = (1, 3, 32)

Reference = Callable[[str, int], np.ndarray]


@pytest.fixture(scope="module")
def reference(shared_model: Callable[[str], Path]) -> Reference:
    """Returns a function: reference("mobilenetv2", 3) is the output of ONNX Runtime for that
    network's first 3 photos."""

    @cache
    def run(name: str, batch: int) -> np.ndarray:
        proto = onnx.load(shared_model(name))
        (output,) = runtime(proto, {proto.graph.input[0].name: photos(name, batch)})
        return output

    return run


@pytest.mark.parametrize("name", PREPARED)
def test_network_agrees_at_every_batch(name: str, quick_device: Device, reference: Reference,
                                       shared_model: Callable[[str], Path]) -> None:
    plan = gossamer.compile(str(shared_model(name)), quick_device)
    for batch in BATCHES:
        y = plan(photos(name, batch))
        error = normalised_error(y, reference(name, batch))
        assert error <= tolerance("network"), f"batch {batch}"
        layers = sum(not step.layer.inserted for step in plan.program(batch).steps)
        assert plan.report().notes == [f"{quick_device.name} ran all {layers} layers"]
