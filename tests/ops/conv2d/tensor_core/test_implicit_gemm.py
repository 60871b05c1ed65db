"""Tests pointwise_mma and implicit_gemm_mma: packed weights and tables everywhere, and the kernel
where there is a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.conv2d.tensor_core.implicit_gemm import (
    ImplicitGemmMma,
    PointwiseMma,
    packed_lines,
    table_of_lines,
)
from gossamer.ops.conv2d.tensor_core.tiling import (
    MmaTile,
    stored_at_once,
    vector_of,
)
from tests.cubins import build_info
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, RESIDUAL_FIRST, problems
from tests.ops.harness import check_variants, random_inputs, random_weights
from tests.ops.recording import RecordingDevice
from tests.tolerances import normalised_error, tolerance

ALGORITHMS = (PointwiseMma(), ImplicitGemmMma())

POINTWISE = Conv2dProblem(3, 40, 5, 7, 40, (1, 1), epilogue=BIAS_RESIDUAL_RELU)
STRIDED = Conv2dProblem(2, 136, 9, 7, 36, (1, 1), (2, 2), epilogue=BIAS_CLIP)
ODD_CHANNELS = Conv2dProblem(1, 21, 9, 7, 35, (1, 1), epilogue=BIAS_RESIDUAL_RELU)
DEEP = Conv2dProblem(1, 520, 7, 7, 130, (1, 1), epilogue=RESIDUAL_FIRST)
WINDOWS = Conv2dProblem(2, 16, 9, 7, 40, (3, 3), (2, 1), (1, 0, 1, 2), epilogue=BIAS_RESIDUAL_RELU)
STEM = Conv2dProblem(2, 3, 11, 9, 32, (3, 3), (2, 2), (1, 1, 1, 1), epilogue=BIAS_CLIP)
GROUPS = Conv2dProblem(2, 48, 7, 7, 72, (3, 3), (1, 1), (1, 1, 1, 1), (1, 2), 3,
                       epilogue=BIAS_CLIP)
PADDED = Conv2dProblem(1, 8, 5, 6, 10, (1, 1), (1, 2), (1, 0, 0, 2))
PAIRS = Conv2dProblem(3, 58, 5, 7, 58, (1, 1), epilogue=BIAS_RESIDUAL_RELU)
FOURS = Conv2dProblem(1, 116, 7, 7, 116, (1, 1), epilogue=BIAS_CLIP)
ODD = Conv2dProblem(1, 19, 5, 7, 37, (1, 1), epilogue=BIAS_CLIP)
ODD_GROUPS = Conv2dProblem(2, 58, 5, 7, 38, (1, 1), groups=2, epilogue=BIAS_CLIP)
DEEP_PAIRS = Conv2dProblem(1, 1002, 3, 3, 1001, (1, 1))
PAIRS_OF_WINDOWS = Conv2dProblem(1, 58, 5, 6, 58, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_CLIP)
NARROW = (PAIRS, FOURS, ODD, ODD_GROUPS, DEEP_PAIRS, PAIRS_OF_WINDOWS)
"""Problems whose pixels have no whole pieces of 16 bytes."""
PATCHES = Conv2dProblem(2, 3, 32, 48, 40, (16, 16), (16, 16), epilogue=BIAS_CLIP)
SMALL_PATCHES = Conv2dProblem(1, 3, 8, 20, 24, (4, 4), (4, 4), epilogue=BIAS_CLIP)
ROWS_THAT_OVERLAP = Conv2dProblem(1, 7, 9, 12, 16, (3, 4), (1, 2), (1, 0, 1, 0))
ROWS = (PATCHES, SMALL_PATCHES, ROWS_THAT_OVERLAP)
"""Problems whose windows have rows of several columns that are copied at once."""
ON_A_GPU = (POINTWISE, STRIDED, ODD_CHANNELS, DEEP, WINDOWS, STEM, GROUPS, PADDED, *NARROW, *ROWS)


def algorithm_of(problem: Conv2dProblem, device: Device) -> PointwiseMma | ImplicitGemmMma:
    (algorithm,) = (a for a in ALGORITHMS if a.supports(problem, device) is None)
    return algorithm


def check(problem: Conv2dProblem, device: Device, chosen: Sequence[Variant]) -> None:
    """Compares the outputs of variants with the reference."""
    check_variants(algorithm_of(problem, device), problem, device, chosen)


def by_lines(problem: Conv2dProblem, arrays: dict[str, np.ndarray], x: np.ndarray,
             precision: str, layout: str) -> np.ndarray:
    """Returns the convolution that packed lines and the table of K describe, without its epilogue,
    in float64."""
    vector = vector_of(precision)
    spec = problem.inputs[0].with_format(layout=layout)
    lines = packed_lines(arrays, problem, precision)
    groups, stages, count, _ = lines.shape
    # takes the permutation of pieces back
    pieces = lines.reshape(groups, stages, -1, 8, 8, vector).astype(np.float64)
    eighth, piece = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    pieces = pieces[:, :, :, eighth, piece ^ eighth].reshape(groups, stages, count, -1)
    # and the order of channels: fragment, lane % 4, value of a pair
    ordered = pieces.reshape(groups, stages, -1, vector // 2, 4, 2, 8 * vector)
    order = (0, 2, 4, 3, 5, 1, 6) if stored_at_once(problem, precision) > 2 else (
        0, 2, 3, 4, 5, 1, 6)
    rows = ordered.transpose(order).reshape(groups, count, -1)
    table = table_of_lines(problem, spec, precision, 1)
    memory = np.transpose(x, (0, 2, 3, 1) if layout == "NHWC" else (0, 1, 2, 3)).reshape(-1)
    x_image, x_channel, x_row, x_column = spec.strides
    y = np.zeros(problem.outputs[0].shape)
    per_group = problem.out_channels // problem.groups
    for image, group, i, j in np.ndindex(problem.batch, groups, problem.out_height,
                                         problem.out_width):
        top = i * problem.stride[0] - problem.pads[0]
        left = j * problem.stride[1] - problem.pads[1]
        row, column = top + (table[:, 1] >> 16), left + (table[:, 1] & 0xffff)
        inside = (row >= 0) & (row < problem.height) & (column >= 0) & (column < problem.width)
        first = (image * x_image + group * problem.channels // problem.groups * x_channel
                 + top * x_row + left * x_column)
        values = np.where(inside, memory[np.where(inside, first + table[:, 0], 0)], 0.0)
        y[image, group * per_group:(group + 1) * per_group, i, j] = (
            rows[group] @ values)[:per_group]
    return y


@given(problem=problems(depthwise=False), precision=st.sampled_from(["tf32", "fp16"]),
       layout=st.sampled_from(["NHWC", "NCHW"]))
@settings(max_examples=40)
def test_lines_and_table_state_the_convolution(problem: Conv2dProblem, precision: str,
                                               layout: str) -> None:
    problem = replace(problem, epilogue=replace(problem.epilogue, expression=replace(
        problem.epilogue.expression, inputs=1, steps=(), outputs=(0,)), operands=()))
    arrays = random_weights(problem)
    x = random_inputs(problem)[0]
    (expected,) = reference(problem, [x], arrays)
    actual = by_lines(problem, arrays, x, precision, layout)
    assert normalised_error(actual, expected) <= tolerance("conv2d", precision)


def test_every_problem_has_one_algorithm_and_reasons_are_given(recorder: RecordingDevice) -> None:
    for problem in ON_A_GPU:
        reasons = [algorithm.supports(problem, recorder) for algorithm in ALGORITHMS]
        assert reasons.count(None) == 1
    depthwise = Conv2dProblem(1, 8, 9, 9, 8, (3, 3), groups=8)
    assert "per group" in str(ImplicitGemmMma().supports(depthwise, recorder))
    recorder.limits = replace(recorder.limits, mma=False)
    assert "tensor cores" in str(PointwiseMma().supports(POINTWISE, recorder))


def test_without_clusters_and_wgmma_only_other_tiles_are_offered(recorder: RecordingDevice) -> None:
    recorder.limits = replace(recorder.limits, cluster=1, wgmma=False,
                              shared_bytes_opt_in=99 * 1024)
    for precision in ("tf32", "fp16"):
        tiles = [sizes_of(MmaTile, variant)
                 for variant in PointwiseMma().variants_in(POINTWISE, recorder, (precision,))]
        assert tiles
        assert not any(tile.cluster > 1 or tile.wgmma for tile in tiles)
        assert all(tile.shared_bytes(1) <= 99 * 1024 for tile in tiles)


@pytest.mark.slow
@pytest.mark.parametrize("problem, first, step, architecture", [
    (POINTWISE, 0, 2, "sm_90"), (WINDOWS, 1, 4, "sm_90"), (STEM, 0, 6, "sm_90"),
    (PAIRS, 0, 7, "sm_90"), (PAIRS_OF_WINDOWS, 0, 6, "sm_90"), (POINTWISE, 1, 4, "sm_80")],
    ids=("pointwise", "windows", "stem", "pairs", "windows of pairs", "older"))
def test_kernels_build_without_spills(recorder: RecordingDevice, problem: Conv2dProblem, first: int,
                                      step: int, architecture: str) -> None:
    """Builds a part of the tiles: every one would take minutes."""
    pytest.importorskip("cuda.core")
    pytest.importorskip("gossamer.device.cuda.nvrtc")
    if architecture == "sm_80":
        recorder.limits = replace(recorder.limits, cluster=1, wgmma=False,
                                shared_bytes_opt_in=163 * 1024)
    algorithm = algorithm_of(problem, recorder)
    for variant in list(algorithm.variants(problem, recorder))[first::step]:
        (source,) = algorithm.kernel_sources(problem, variant, recorder)
        info = build_info(source, source.built_for(architecture))
        assert info.spill_bytes == 0, f"{variant.config_text} spills on {architecture}"
        assert "warning" not in info.log, info.log


@pytest.mark.parametrize("problem", ON_A_GPU, ids=Conv2dProblem.describe)
def test_every_tile_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    check(problem, cuda, list(algorithm_of(problem, cuda).variants(problem, cuda)))


def test_work_groups_that_take_several_tiles_on_cuda(cuda: Device,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "limits", replace(cuda.limits, compute_units=1))
    for problem, batch in ((POINTWISE, 20), (STEM, 9), (WINDOWS, 5)):
        problem = replace(problem, batch=batch)
        check(problem, cuda, list(algorithm_of(problem, cuda).variants(problem, cuda)))


@pytest.mark.sanitize
@pytest.mark.parametrize("problem", (POINTWISE, STEM, WINDOWS, PAIRS, ODD, PATCHES),
                         ids=Conv2dProblem.describe)
def test_some_tiles_on_cuda(cuda: Device, problem: Conv2dProblem) -> None:
    """Runs both precisions with and without clusters, warps that share K, weights that are kept or
    shared, and wgmma, and no more: a sanitizer is slow."""
    chosen = {(v.precision, v["cluster"] > 1, v["warps_k"] > 1, v["keeps_weights"],
               v["wgmma"]): v
              for v in algorithm_of(problem, cuda).variants(problem, cuda)}
    check(problem, cuda, list(chosen.values()))
