"""Tests direct_sparse_table: how weights are put into blocks, and every form of its kernel."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.direct_sparse_table import (
    FORMS,
    DirectSparseTable,
    TableForm,
)
from gossamer.ops.conv2d.sparse.formats import cluster, table
from gossamer.ops.weights import Weights, WeightsInfo
from tests.fixtures import is_slow
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.sparse.test_direct_sparse import (
    REAL_LAYERS,
    problems,
    real_layer,
)
from tests.ops.conv2d.sparse.test_direct_sparse import check as check_sparse
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.harness import random_inputs, random_weights, run_variant
from tests.ops.recording import RecordingDevice, check_kernels_build

ALGORITHM = DirectSparseTable()


form_of = partial(sizes_of, TableForm)


def is_form(variant: Variant, *numbers: int) -> bool:
    """Returns whether a variant's form is one of these in FORMS, masked or not."""
    return replace(form_of(variant), masked=0) in [FORMS[number] for number in numbers]


def variants_of(problem: Conv2dProblem, device: Device) -> list[Variant]:
    return list(ALGORITHM.variants(problem, device))


def a_few(problem: Conv2dProblem, device: Device) -> list[Variant]:
    """Returns a quick variant for every number of rows, in different layouts and precisions."""
    by_rows: dict[int, Variant] = {}
    for rows, form in ((1, 0), (4, 1), (2, 3), (8, 9)):
        able = [v for v in variants_of(problem, device) if is_form(v, form)]
        if able:
            by_rows[rows] = able[rows % len(able)]
    return list(by_rows.values())


check = partial(check_sparse, algorithm=ALGORITHM)


@given(problem=problems(), density=st.sampled_from([0.0, 0.1, 0.4, 0.7]),
       choice=st.integers(0, 75))
@settings(max_examples=40)
def test_any_geometry(compiled_device: Device, problem: Conv2dProblem, density: float,
                      choice: int) -> None:
    variants = variants_of(problem, compiled_device)
    check(problem, sparse(problem, density), compiled_device,
          [variants[choice % len(variants)]])


@pytest.mark.sanitize
@pytest.mark.parametrize("stride", [1, 2])
def test_every_form(compiled_device: Device, stride: int) -> None:
    """With stride 1 windows start one after the other; images are loaded singly and in fours."""
    if is_slow(compiled_device):
        problem = Conv2dProblem(4, 4, 5 * stride, 4 * stride, 9, (3, 3), (stride, stride),
                                (1, 1, 1, 0), epilogue=BIAS_CLIP)
    else:
        problem = Conv2dProblem(4, 10, 25 * stride, 22 * stride, 18, (3, 3), (stride, stride),
                                (1, 0, 1, 2), groups=2, epilogue=BIAS_RESIDUAL_RELU)
    variants = variants_of(problem, compiled_device)
    assert {v.precision for v in variants} == {"fp32", "fp16"}
    assert {v.inputs[0].layout for v in variants} == {"NCHW", "CHWN"}
    if not is_slow(compiled_device):
        assert {form_of(v) for v in variants} == {
            replace(form, masked=masked) for form in FORMS for masked in (0, 1)}
    if compiled_device.api != "cuda":  # a build takes half a second: each form with one stride
        few = 8 if is_slow(compiled_device) else 4
        variants = [v for i, v in enumerate(sorted(variants, key=lambda v: v.config_text))
                    if i % few == i // few % 4 and (i // few + i // few // 4) % 2 == stride - 1]
    check(problem, sparse(problem, 0.3), compiled_device, variants)


@pytest.mark.parametrize("size", [1, 2, 5, 7])
def test_kernel_sizes(compiled_device: Device, size: int) -> None:
    problem = Conv2dProblem(1, 3, 13, 12, 6, (size, size), pads=(size // 2,) * 4)
    variants = a_few(problem, compiled_device)
    if is_slow(compiled_device):
        variants = variants[size % 2:][:1]
    check(problem, sparse(problem, 0.2), compiled_device, variants)


@pytest.mark.parametrize("height, width, kernel", [(7, 7, 1), (7, 7, 3), (4, 8, 1), (3, 11, 1),
                                                   (1, 65, 1), (9, 7, 1), (8, 8, 1)])
def test_planes_that_two_points_a_work_item_overlap_on(compiled_device: Device, height: int,
                                                       width: int, kernel: int) -> None:
    """Every point is computed within the plane and stored by one work-item."""
    problem = Conv2dProblem(1, 3, height, width, 3, (kernel, kernel), pads=(kernel // 2,) * 4)
    of_two = [v for v in variants_of(problem, compiled_device) if is_form(v, 2)]
    assert bool(of_two) == (height * width > 32)
    if of_two:
        check(problem, sparse(problem, 0.6), compiled_device, of_two)


@pytest.mark.parametrize("columns", [1, 3, 4, 5, 9, 31, 33])
def test_blocks_with_fewer_columns_than_sets(compiled_device: Device, columns: int) -> None:
    problem = Conv2dProblem(1, 40, 5, 5, 6, (1, 1), epilogue=BIAS_CLIP)
    weights = random_weights(problem)
    weights["weight"][:, columns:] = 0
    weights["weight"][3] = 0
    check(problem, weights, compiled_device, a_few(problem, compiled_device))


@pytest.mark.parametrize("batch", [1, 3, 4, 5, 12])
def test_batches(compiled_device: Device, batch: int) -> None:
    """Images are loaded in fours where their number allows."""
    problem = Conv2dProblem(batch, 4, 6, 6, 5, (3, 3), pads=(1, 1, 1, 1))
    variants = [v for v in variants_of(problem, compiled_device)
                if form_of(v).points == 4 or is_form(v, 2)]
    innermost = [v for v in variants if v.inputs[0].layout == "CHWN"]
    assert bool(innermost) == (batch > 1)  # one image is the same in both layouts
    check(problem, sparse(problem, 0.4), compiled_device, (innermost or variants)[:3])


def test_one_image_in_either_layout_is_offered_once() -> None:
    problem = Conv2dProblem(1, 4, 6, 6, 5, (3, 3))
    (x, y) = problem.inputs[0], problem.outputs[0]
    for spec in (x, y):
        assert spec.with_format(layout="NCHW").same_memory(spec.with_format(layout="CHWN"))
    layouts = {v.inputs[0].layout for v in variants_of(problem, RecordingDevice())}
    assert layouts == {"NCHW"}


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_in_the_input_stays_in_the_blocks_it_meets(compiled_device: Device,
                                                                      value: float) -> None:
    """A channel that is alone in its block is reached where its weights are. Where one channel of a
    block is reached all are, as in a dense convolution; a block without that column is not."""
    problem = Conv2dProblem(1, 12, 12, 11, 8, (1, 1))
    weights = random_weights(problem)
    weights["weight"][:, 4] = 0
    weights["weight"][2, 4] = 2.0
    weights["weight"][4:, :6] = 0  # similar channels: 0 to 3, and 4 to 7
    weights["weight"][:4, 6:] = 0
    (x,) = random_inputs(problem)
    x[0, 4, 2, 3] = value
    variants = [v for v in variants_of(problem, compiled_device)
                if v.precision == "fp32" and is_form(v, 0, 1, 9)]
    assert len(variants) == 3
    for variant in variants:
        (y,) = run_variant(ALGORITHM, problem, variant, compiled_device,
                           Weights(weights, compiled_device), [x])
        reached = {int(channel) for channel in np.nonzero(~np.isfinite(y))[1]}
        assert reached == {1: {2}, 4: {0, 1, 2, 3}, 8: set(range(8))}[
            form_of(variant).rows]
        assert np.isfinite(np.delete(y.reshape(8, -1), 2 * 11 + 3, axis=1)).all()


def test_only_padded_inputs_need_workspace(compiled_device: Device) -> None:
    plain = Conv2dProblem(2, 3, 5, 6, 4, (3, 3))
    padded = replace(plain, pads=(1, 2, 0, 1))
    assert {v.workspace for v in variants_of(plain, compiled_device)} == {0}
    variants = variants_of(padded, compiled_device)
    size = 2 * 3 * (5 + 1) * (6 + 3)
    for precision, itemsize in (("fp32", 4), ("fp16", 2)):
        assert {(form_of(v).masked, v.workspace) for v in variants if v.precision == precision} == {
            (1, 0), (0, itemsize * size)}


def test_reasons(device: Device) -> None:
    problem = Conv2dProblem(1, 3, 5, 5, 4, (3, 3))
    sparse = replace(problem, weights_info=WeightsInfo(0.2, "a pattern"))
    if device.compiles:
        assert ALGORITHM.supports(sparse, device) is None
        assert "density 1.00" in (ALGORITHM.supports(problem, device) or "")
    else:
        assert "compiles kernels" in (ALGORITHM.supports(sparse, device) or "")


@st.composite
def masks(draw: st.DrawFn) -> np.ndarray:
    shape = draw(st.tuples(st.integers(1, 20), st.integers(1, 80)))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return rng.random(shape) < rng.random((shape[0], 1)) * draw(st.sampled_from([0.1, 1.0]))


@given(mask=masks(), rows=st.sampled_from([1, 2, 4, 8]))
def test_every_channel_is_in_one_block(mask: np.ndarray, rows: int) -> None:
    blocks = cluster(mask, rows)
    assert sorted(row for block in blocks for row in block) == list(range(len(mask)))
    assert {len(block) for block in blocks[:-1]} <= {rows}
    assert 0 < len(blocks[-1]) <= rows
    assert cluster(mask.copy(), rows) == blocks


def columns_of(mask: np.ndarray, blocks: list[list[int]]) -> int:
    return sum(int(mask[block].any(axis=0).sum()) for block in blocks)


@pytest.mark.parametrize("rows", [2, 4, 8])
def test_similar_channels_share_a_block(rows: int) -> None:
    """Shuffled copies of the same channels are put into the same blocks."""
    rng = np.random.default_rng(0)
    kinds = rng.random((6, 300)) < 0.1
    mask = np.repeat(kinds, 8, axis=0)[rng.permutation(48)]
    blocks = cluster(mask, rows)
    assert columns_of(mask, blocks) == kinds.sum() * 8 // rows
    in_order = [list(range(first, first + rows)) for first in range(0, 48, rows)]
    assert columns_of(mask, in_order) > 1.3 * columns_of(mask, blocks)


@pytest.mark.parametrize("groups, channels, rows", [(1, 13, 4), (2, 10, 4), (3, 9, 8), (1, 7, 1)])
def test_a_table_holds_the_weights(groups: int, channels: int, rows: int) -> None:
    rng = np.random.default_rng(1)
    weight = rng.standard_normal((channels, 5, 3, 2)).astype(np.float32)
    weight *= rng.random(weight.shape) < 0.3
    weight[1] = 0
    weight[2, 3, 1, 1] = np.nan
    packed = table(weight, groups, rows)
    lengths = np.diff(packed.starts)
    assert len(lengths) % 8 == 0 and (np.diff(lengths) <= 0).all()
    assert len(packed.columns) == len(packed.values) == 4 * (packed.starts[-1] + 1)
    assert sorted(packed.channels[packed.channels >= 0]) == list(range(channels))
    unpacked = np.zeros((channels, groups, weight[0].size), np.float32)
    for block, members in enumerate(packed.channels):
        span = slice(4 * packed.starts[block], 4 * packed.starts[block + 1])
        group, columns = np.divmod(packed.columns[span], weight[0].size)
        values = packed.values[span]
        for row, channel in enumerate(members):
            if channel < 0:
                assert not values[:, row].any()
            else:
                np.add.at(unpacked, (channel, group, columns), values[:, row])
                assert set(group) <= {channel // (channels // groups)}
    for channel, of_groups in enumerate(unpacked):
        own_group = channel // (channels // groups)
        np.testing.assert_array_equal(of_groups[own_group], weight[channel].reshape(-1))
        assert not np.delete(of_groups, own_group, axis=0).any()


def test_no_form_spills() -> None:
    """The forms with most sums and most addresses are built for several NVIDIA architectures."""
    check_kernels_build(
        ALGORITHM, [Conv2dProblem(4, 8, 40, 40, 16, (3, 3), (stride, stride),
                                  epilogue=BIAS_RESIDUAL_RELU) for stride in (1, 2)],
        taken=lambda *given: [variant for variant in variants_of(*given)
                              if form_of(variant).rows * form_of(variant).points >= 32],
        arrays=lambda problem: sparse(problem, 0.3), least=12)


@pytest.mark.shared
@pytest.mark.parametrize("name, channels, groups, kernel", REAL_LAYERS)
def test_real_pruned_layers(quick_compiled: Device, shared, name: str, channels: int,
                            groups: int, kernel: int) -> None:
    problem, weights = real_layer(shared, name, channels, groups, kernel)
    check(problem, weights, quick_compiled, variants_of(problem, quick_compiled)[:4])
    weight = weights["weight"]
    mask = weight[:len(weight) // groups].reshape(len(weight) // groups, -1) != 0
    in_order = [list(range(first, first + 4)) for first in range(0, len(mask), 4)]
    assert columns_of(mask, cluster(mask, 4)) < 0.95 * columns_of(mask, in_order)


def test_the_first_form_is_one_that_any_kernel_may_have(compiled_device: Device) -> None:
    """A device may run fewer work-items per work-group of one kernel than of others."""
    for batch in (1, 8, 64):
        problem = replace(Conv2dProblem(batch, 64, 28, 28, 64, (3, 3), pads=(1, 1, 1, 1)),
                          weights_info=WeightsInfo(0.1, "a pattern"))
        first = next(iter(DirectSparseTable().variants(problem, compiled_device)))
        if compiled_device.api == "opencl":
            assert first["lanes"] * first["blocks"] * first["splits"] <= 256
