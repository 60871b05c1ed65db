"""What is taken where nothing is measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.ops.backprop.problem import BackpropProblem
from gossamer.train.choice import choose
from tests.ops.recording import RecordingDevice

PUBLISHED = (1024, 32, 10)


@pytest.mark.parametrize(("sizes", "settings", "expected"), [
    (PUBLISHED, {}, ("blocked", "pipeline")),
    (PUBLISHED, {"networks": 132}, ("blocked", "pipeline")),
    (PUBLISHED, {"velocity": True}, ("persistent", "registers")),
    (PUBLISHED, {"batch": 16}, ("persistent", "sparse")),
    ((784, 32, 16, 10), {}, ("persistent", "sparse")),
    ((784, 128, 10), {}, ("blocked", "launches")),
    ((784, 300, 100, 10), {}, ("blocked", "launches")),
    ((784, 300, 100, 10), {"batch": 16}, ("per_step", None)),
    ((784, 128, 10), {"velocity": True}, ("per_step", None))])
def test_on_an_nvidia_gpu(sizes: tuple[int, ...], settings: dict[str, Any],
                          expected: tuple[str, str | None]) -> None:
    assert _taken(RecordingDevice(), sizes, settings) == expected


@pytest.mark.parametrize(("sizes", "settings", "expected"), [
    (PUBLISHED, {}, ("blocked", "pipeline")),
    (PUBLISHED, {"velocity": True}, ("persistent", "local")),
    ((784, 128, 10), {}, ("persistent", "sparse")),
    ((784, 300, 100, 10), {}, ("blocked", "launches"))])
def test_on_a_processor_through_opencl(sizes: tuple[int, ...], settings: dict[str, Any],
                                       expected: tuple[str, str | None]) -> None:
    device = RecordingDevice()
    device.limits = replace(device.limits, subgroup_size=1, local_bytes=2**20,
                            local_bytes_opt_in=2**20)
    assert _taken(device, sizes, settings) == expected


def _taken(device: Device, sizes: tuple[int, ...],
           settings: dict[str, Any]) -> tuple[str, str | None]:
    """The algorithm, and its form."""
    problem = BackpropProblem(sizes, 60_000, 60_000, **settings)
    choice = choose(problem, device, None, None)
    config = dict(choice.variant(problem.of_samples(choice.samples)).config)
    form = config.get("form", config.get("weights"))
    return choice.algorithm.name, None if form is None else str(form)
