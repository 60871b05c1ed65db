"""Two convolutions of single pixels as one kernel of NVIDIA GPUs, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from gossamer.device.base import Device
from gossamer.expression import apply
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.fused.pointwise_pair import BOTH, LAST, PointwisePairMma
from gossamer.ops.fused.problem import ENTRY, FusionProblem, Source, entry
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_RELU,
    BIAS_RESIDUAL,
    BIAS_RESIDUAL_RELU,
    BIAS_SILU,
    changed,
)
from tests.ops.harness import check_variants, random_weights
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = PointwisePairMma()


def pair(batch: int, channels: int, wide: int, out_channels: int, size: tuple[int, int], *,
         first: Epilogue = BIAS_RESIDUAL_RELU, second: Epilogue = BIAS_RELU,
         exits: tuple[Source, ...] = BOTH) -> FusionProblem:
    """Return two convolutions of single pixels."""
    expands = Conv2dProblem(batch, channels, *size, wide, (1, 1), epilogue=first)
    projects = Conv2dProblem(batch, wide, *size, out_channels, (1, 1), epilogue=second)
    added = (entry(1),) * first.tensor_count
    return FusionProblem((expands, projects), ((ENTRY, *added), ((0, 0),)), exits)


PROBLEMS = {
    "one slice more": pair(1, 64, 192, 64, (11, 13)),
    "resnet": pair(2, 64, 256, 64, (13, 17)),
    "group 2": pair(1, 128, 512, 128, (13, 11)),
    "group 3": pair(1, 256, 1024, 256, (10, 13)),
    "unlike widths": pair(1, 128, 384, 192, (8, 17), first=BIAS_RESIDUAL, second=BIAS_SILU),
    "nothing added": pair(3, 64, 128, 64, (9, 10), first=BIAS_SILU, second=BIAS),
    "nothing else read": pair(3, 64, 128, 64, (9, 10), second=Epilogue(), exits=LAST),
    "few pixels": pair(1, 64, 128, 64, (1, 1), exits=LAST, first=Epilogue()),
}


def check(problem: FusionProblem, device: Device, variants: Sequence[Variant]) -> None:
    """Compare the outputs of variants, all in float16, with the reference.

    Products are such that results have numbers like others.
    """
    assert ALGORITHM.recognises(problem)
    assert {variant.precision for variant in variants} == {"fp16"}
    arrays = random_weights(problem)
    for part, layer in enumerate(problem.parts):
        assert isinstance(layer, Conv2dProblem)
        arrays[f"{part}.weight"] /= layer.channels ** 0.5
    check_variants(ALGORITHM, problem, device, variants, arrays)


@pytest.mark.sanitize
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_both_layers_on_cuda(cuda: Device, name: str) -> None:
    if not cuda.limits.wgmma:
        pytest.skip("the device has no wgmma")
    check(PROBLEMS[name], cuda, list(ALGORITHM.variants(PROBLEMS[name], cuda)))


@pytest.mark.parametrize("name", ["resnet", "group 2", "group 3"])
def test_work_groups_that_take_several_tiles_on_cuda(
        cuda: Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    if not cuda.limits.wgmma:
        pytest.skip("the device has no wgmma")
    problem = PROBLEMS[name]
    more = replace(problem, parts=tuple(replace(part, batch=9) for part in problem.parts))
    monkeypatch.setattr(cuda, "limits", replace(cuda.limits, compute_units=3))
    check(more, cuda, list(ALGORITHM.variants(more, cuda)))


def test_it_builds_without_spills() -> None:
    check_kernels_build(ALGORITHM, PROBLEMS.values())


def test_tiles_fit_the_shared_memory_and_weights_are_kept_where_they_fit(
        recorder: RecordingDevice) -> None:
    kept = {}
    for name, problem in PROBLEMS.items():
        variants = list(ALGORITHM.variants(problem, recorder))
        assert 0 < len(variants) <= 3
        kept[name] = variants[0]["weight_slots"] == 0
    assert kept["resnet"] and not kept["group 2"] and not kept["group 3"]


RESNET = PROBLEMS["resnet"]
TWO_TENSORS = Epilogue(apply("add").then(apply("add")), ("tensor", "tensor"))


@pytest.mark.parametrize(("problem", "reason"), [
    (replace(RESNET, exits=((0, 0),)), "the second layer's result is not read"),
    (changed(RESNET, 1, stride=(2, 1)),
     "the second convolution has stride (2, 1) and pads (0, 0, 0, 0); needs stride 1 and no pads"),
    (pair(1, 64, 192, 64, (5, 5), first=TWO_TENSORS),
     "supports at most one added tensor in the first layer and none in the second"),
    (pair(1, 64, 136, 64, (5, 5)), "needs multiples of 64 channels, not (64, 136, 64)"),
    (pair(1, 64, 640, 320, (5, 5)), "needs at most 256 output channels, not 320"),
    (pair(1, 512, 1024, 64, (5, 5)),
     "512 and 64 channels of 128 pixels do not fit shared memory"),
])
def test_what_it_does_not_compute_gives_a_reason(problem: FusionProblem, reason: str) -> None:
    assert ALGORITHM.recognises(problem)
    assert ALGORITHM.supports(problem, RecordingDevice()) == reason


def test_it_needs_tensor_cores_that_read_shared_memory(recorder: RecordingDevice) -> None:
    recorder.limits = replace(recorder.limits, wgmma=False)
    assert "sm_90a" in (ALGORITHM.supports(RESNET, recorder) or "")


def test_other_layers_are_not_recognised() -> None:
    windows = changed(RESNET, 1, kernel=(3, 3), pads=(1, 1, 1, 1))
    narrow = pair(1, 64, 64, 64, (5, 5))
    assert not any(map(ALGORITHM.recognises, (windows, narrow)))
