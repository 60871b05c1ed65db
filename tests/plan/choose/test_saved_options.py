"""Choices that were stored are found among the variants of their algorithms again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.ops.algorithm import PRECISIONS, Variant
from gossamer.ops.fused.inverted_residual.inverted_residual_mma import InvertedResidualMma
from gossamer.ops.registry import OPS
from gossamer.plan.choose import saved_options
from gossamer.plan.choose.network import LayerChoice
from gossamer.plan.program import Layer, Step
from tests.ops.fused.blocks import block
from tests.ops.recording import RecordingDevice

PROBLEM = block(1, 64, 384, 64, (14, 14))
LAYER = Layer("a block", ["x"], ["y"], PROBLEM, covers=("a", "b"))


def restored(variant: Variant, device: Device) -> LayerChoice | str:
    """Returns what is read of the choice of a variant that was stored."""
    (algorithm,) = (found for found in OPS["fused"].algorithms
                    if isinstance(found, InvertedResidualMma))
    step = Step(LAYER, algorithm, variant, device, ["x"], ["y"])
    return saved_options._restored(saved_options._stored(step, device), LAYER, device, None,
                                   exact=True)


@pytest.mark.slow
def test_tiles_that_were_listed_for_another_precision_are_found() -> None:
    """A plan in float16 has the tiles of float16 for its steps in TF32 too."""
    device = RecordingDevice()
    listed = list(InvertedResidualMma().variants_in(PROBLEM, device, PRECISIONS))
    assert {variant.precision for variant in listed} == set(PRECISIONS)
    for variant in listed:
        choice = restored(variant, device)
        assert isinstance(choice, LayerChoice) and choice.variant == variant


def test_other_precisions_are_not_listed_where_that_is_not_needed(
        monkeypatch: pytest.MonkeyPatch) -> None:
    def variants(*_: Any) -> Iterator[Variant]:
        raise AssertionError("all variants were listed")

    device = RecordingDevice()
    variant = next(iter(InvertedResidualMma().variants_in(PROBLEM, device, ("fp16",))))
    monkeypatch.setattr(InvertedResidualMma, "variants", variants)
    assert isinstance(restored(variant, device), LayerChoice)
