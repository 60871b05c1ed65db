"""Bottleneck blocks as one kernel of NVIDIA GPUs, on the GPU where there is one; elsewhere
tests/emulation/test_bottleneck_mma.py runs the kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, apply
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.fused.bottleneck.block import bottleneck_of
from gossamer.ops.fused.bottleneck.bottleneck_mma import BottleneckMma
from gossamer.ops.fused.bottleneck.tables import BottleneckTables
from gossamer.ops.fused.bottleneck.tiling import DEPTH, BottleneckTile, BottleneckTiling
from gossamer.ops.fused.problem import ENTRY, FusionProblem, entry
from gossamer.ops.weights import Weights
from tests.cubins import check_builds
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_HARD_SWISH,
    BIAS_RESIDUAL,
    BIAS_SILU,
    bottleneck,
)
from tests.ops.harness import check_variants, random_inputs, random_weights, run_variant
from tests.ops.recording import RecordingDevice

RESIDUAL = bottleneck(3, 40, (24, 24), 40, (9, 13))
ODD_CHANNELS = bottleneck(1, 24, (13, 21), 56, (11, 6), last=BIAS, activation=BIAS_SILU)
PROJECTED = bottleneck(1, 16, (20, 16), 48, (7, 9), adds=entry(1))
PLAIN = bottleneck(2, 72, (8, 40), 8, (5, 5), activation=Epilogue(Expression(1)),
                   last=Epilogue(apply("relu")))
LARGE_WINDOW = bottleneck(1, 32, (16, 16), 32, (10, 9), kernel=(5, 2), pads=(2, 0, 1, 3),
                          last=BIAS_HARD_SWISH)
NO_PADS = bottleneck(2, 8, (8, 8), 16, (6, 18), pads=(0, 0, 0, 0), last=BIAS)
WIDE = bottleneck(1, 144, (72, 72), 144, (8, 8), last=BIAS_RESIDUAL)
PROBLEMS = {"residual": RESIDUAL, "odd channels": ODD_CHANNELS, "projected": PROJECTED,
            "plain": PLAIN, "large window": LARGE_WINDOW, "no pads": NO_PADS, "wide": WIDE}
DENSITIES = (1e-4, 0.02, 0.1, 0.4, 1.0)


def pruned(problem: FusionProblem, density: float) -> dict[str, np.ndarray]:
    """Returns random constants of which a share of each layer's weights is left: of the first
    output channel all, of the second none."""
    rng = np.random.default_rng(3)
    arrays = random_weights(problem)
    for name, array in arrays.items():
        if name.endswith("weight"):
            array *= rng.random(array.shape) < density
            if density < 1:
                array[0], array[1] = rng.standard_normal(array[0].shape), 0
            array /= np.sqrt(max(1.0, density * array[0].size))
    return arrays


def variant_of(problem: FusionProblem, tile: BottleneckTile, device: Device) -> Variant:
    """Returns the variant of a tile, whether or not it is among those that are offered."""
    offered = next(iter(BottleneckMma().variants(problem, device)))
    return replace(offered, config=tuple(asdict(tile).items()))


def check(problem: FusionProblem, device: Device, variants: Sequence[Variant],
          density: float) -> None:
    """Compares the outputs of variants with the reference."""
    check_variants(BottleneckMma(), problem, device, variants, pruned(problem, density))


@pytest.mark.sanitize
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_it_computes_the_block_on_cuda(cuda: Device, name: str, density: float) -> None:
    problem = PROBLEMS[name]
    check(problem, cuda, list(BottleneckMma().variants(problem, cuda)), density)


@pytest.mark.parametrize("channels, inner, size", [
    (256, 64, 56), (512, 128, 28), (1024, 256, 14), (2048, 512, 7)])
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_it_computes_the_blocks_of_resnet_50(cuda: Device, channels: int, inner: int, size: int,
                                             density: float) -> None:
    problem = bottleneck(2, channels, (inner, inner), channels, (size, size), density=density)
    check(problem, cuda, list(BottleneckMma().variants(problem, cuda)), density)


def test_results_repeat_bit_by_bit(cuda: Device) -> None:
    problem = bottleneck(8, 256, (64, 64), 256, (28, 28), density=0.05)
    variant = next(iter(BottleneckMma().variants(problem, cuda)))
    weights = Weights(pruned(problem, 0.05), cuda)
    inputs = random_inputs(problem)
    first, *others = (run_variant(BottleneckMma(), problem, variant, cuda, weights, inputs)[0]
                      for _ in range(4))
    assert all(first.tobytes() == other.tobytes() for other in others)


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("density", DENSITIES)
@pytest.mark.parametrize("name", ["odd channels", "wide"])
def test_the_tables_have_each_weight_once(name: str, density: float, transposed: int) -> None:
    problem = PROBLEMS[name]
    block = bottleneck_of(problem)
    assert block is not None
    divided = BottleneckTiling(block, BottleneckTile(2, 1, 32, 2, 8, transposed))
    arrays = pruned(problem, density)
    parts = BottleneckTables(divided, arrays).parts
    starts = parts["starts"]
    assert starts[-1] * DEPTH == len(parts["columns"]) - DEPTH
    assert (np.diff(starts) >= 0).all()
    # the pairs of halves of a register do not matter for how often a value appears
    kept = parts["weights"].view(np.float16)
    expected = np.concatenate([array.reshape(-1) for array_name, array in arrays.items()
                               if array_name.endswith("weight")]).astype(np.float16)
    assert (np.sort(kept[kept != 0]) == np.sort(expected[expected != 0])).all()
    blocks = -(-problem.parts[0].outputs[0].shape[1] // 32)
    assert len(starts) - 1 == blocks * divided.chunks + sum(
        -(-part.outputs[0].shape[1] // 32) for part in problem.parts[1:])


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    device = RecordingDevice()
    for channels, inner, size, batch in ((256, 64, 56, 64), (1024, 256, 14, 64), (512, 128, 28, 1)):
        for density in (0.05, 1.0):
            problem = bottleneck(batch, channels, (inner, inner), channels, (size, size),
                                 density=density)
            weights = Weights(pruned(problem, density), device)
            for variant in list(BottleneckMma().variants(problem, device))[:2]:
                BottleneckMma().prepare(weights, problem, variant, device)
    assert len(device.sources) >= 8
    check_builds(device.sources)


def test_tiles_that_need_too_much_shared_memory_are_not_offered() -> None:
    device = RecordingDevice()
    problem = bottleneck(64, 1024, (256, 256), 1024, (14, 14), density=0.05)
    offered = list(BottleneckMma().variants(problem, device))
    block = bottleneck_of(problem)
    assert offered and block is not None
    for variant in offered:
        tile = BottleneckTile(**{key: int(value) for key, value in variant.config})
        assert BottleneckTiling(block, tile).shared_bytes <= device.limits.shared_bytes_opt_in


def test_fewer_weights_are_expected_to_take_less_time() -> None:
    device = RecordingDevice()
    expected = []
    for density in (1.0, 0.05, 0.01):
        problem = bottleneck(64, 512, (128, 128), 512, (28, 28), density=density)
        variant = next(iter(BottleneckMma().variants(problem, device)))
        expected.append(BottleneckMma().expected_us(problem, variant, device))
    assert expected == sorted(expected, reverse=True)


def _changed(problem: FusionProblem, part: int, **changes: object) -> FusionProblem:
    parts = list(problem.parts)
    parts[part] = replace(parts[part], **changes)
    return replace(problem, parts=tuple(parts))


STRIDED = bottleneck(1, 8, (8, 8), 8, (6, 6), last=BIAS)


@pytest.mark.parametrize("problem, reason", [
    (bottleneck(1, 12, (8, 8), 16, (6, 6), last=BIAS), "12 to 16 channels, takes multiples of 8"),
    (bottleneck(1, 8, (8192, 8192), 8, (6, 6), last=BIAS),
     "8192 and 8192 channels between the layers do not fit the shared memory and registers of a "
     "work-group"),
    (bottleneck(1, 8, (8, 8), 8, (6, 6), adds=(0, 0)),
     "adds a value of the block itself to its result"),
    (replace(STRIDED, exits=((0, 0), (2, 0))), "a value inside the block is read elsewhere"),
    (_changed(STRIDED, 1, dilation=(2, 2), pads=(2, 2, 2, 2)),
     "the convolution with windows has stride (1, 1) and dilation (2, 2), takes neither"),
])
def test_what_it_does_not_compute_gives_a_reason(problem: FusionProblem, reason: str) -> None:
    assert BottleneckMma().recognises(problem)
    assert BottleneckMma().supports(problem, RecordingDevice()) == reason


def test_no_images_launch_nothing() -> None:
    problem, device = bottleneck(0, 8, (8, 8), 8, (6, 6)), RecordingDevice()
    (variant,) = BottleneckMma().variants(problem, device)
    weights = Weights(random_weights(problem), device)
    assert not BottleneckMma().prepare(weights, problem, variant, device).launches


def test_other_layers_are_not_recognised() -> None:
    first, window, last = STRIDED.parts
    chained = ((ENTRY,), ((0, 0),), ((1, 0),))
    for parts in ((first, first, last), (window, window, last),
                  (first, replace(window, groups=8), last)):
        assert not BottleneckMma().recognises(FusionProblem(parts, chained, ((2, 0),)))
