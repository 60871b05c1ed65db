"""A short part of the comparison with ONNX Runtime's classes on many images (`make classes`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import pytest

import gossamer
from gossamer.device.base import Device
from tests.plan.same_classes import (
    NETWORKS,
    Outcome,
    compare,
    expected_outputs,
    forced,
    images_of,
    whole_photos,
)


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("name", NETWORKS)
def test_noise_and_photos_have_the_same_classes(name: str, quick_device: Device,
                                                shared_model: Callable[[str], Path]) -> None:
    path = shared_model(name)
    x = images_of(name, 8)
    expected = expected_outputs(onnx.load(path), x)
    plan = gossamer.compile(str(path), quick_device, only=forced(quick_device))
    assert replace(compare(plan, x, expected), outputs=0) == Outcome(24, 0, 0)


@pytest.mark.shared
def test_other_classes_and_outputs_are_counted(shared_model: Callable[[str], Path]) -> None:
    path = shared_model("lfc_w1a1_mnist")
    x = whole_photos("lfc_w1a1_mnist")
    expected = expected_outputs(onnx.load(path), x)
    wrong = expected[0].copy()
    wrong[0] = -wrong[0]
    wrong[1] *= 1.5
    plan = gossamer.compile(str(path), "host")
    outcome = compare(plan, x, [wrong, wrong])
    assert outcome == Outcome(8, 1, 2)
    assert compare(plan, x, [wrong, expected[1]]) == Outcome(8, 0, 0)
    assert str(outcome) == "8 images: 1 other classes, 2 other outputs than ONNX Runtime"
