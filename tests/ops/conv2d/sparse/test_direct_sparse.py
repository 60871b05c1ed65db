"""Tests of direct_sparse, in its published forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Variant
from gossamer.ops.conv2d import OP
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.direct_sparse import DirectSparse, dealt
from gossamer.ops.conv2d.sparse.formats import DENSEST
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.tensor import pack, unpack
from gossamer_bench.sparse_files import read_sparse
from tests.fixtures import is_slow
from tests.ops.conv2d.sparse.sparse_weights import sparse
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU, small_problems
from tests.ops.harness import check_variants, random_inputs, random_weights
from tests.tolerances import normalised_error, tolerance

SMALL = 64


def of(weights: dict[str, np.ndarray], problem: Conv2dProblem) -> Conv2dProblem:
    """Returns the problem with the density of its weights."""
    nonzero = weights["weight"] != 0
    return replace(problem, weights_info=WeightsInfo(float(nonzero.mean()), "a pattern"))


def variants_of(problem: Conv2dProblem, device: Device, threads: int | None = None
                ) -> list[Variant]:
    """Returns the variants with `threads` work-items per work-group, by default all."""
    variants = list(DirectSparse().variants(problem, device))
    return [v for v in variants if threads in (None, dict(v.config).get("threads", threads))]


def check(problem: Conv2dProblem, weights: dict[str, np.ndarray], device: Device,
          variants: Sequence[Variant], inputs: Sequence[np.ndarray] | None = None,
          algorithm: Algorithm | None = None) -> None:
    """Compares the outputs of variants with the reference; the algorithm is
    direct_sparse by default."""
    check_variants(DirectSparse() if algorithm is None else algorithm, of(weights, problem),
                   device, variants, weights, inputs, supported=False)


problems = partial(small_problems, out_channels=[1, 4, 5])


@given(problem=problems(), density=st.sampled_from([0.0, 0.1, 0.4, 0.7]),
       choice=st.integers(0, 7))
@settings(max_examples=40)
def test_any_geometry(compiled_device: Device, problem: Conv2dProblem, density: float,
                      choice: int) -> None:
    variants = variants_of(problem, compiled_device, SMALL)
    check(problem, sparse(problem, density), compiled_device, [variants[choice % len(variants)]])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11])
def test_kernel_sizes(compiled_device: Device, size: int) -> None:
    problem = Conv2dProblem(1, 3, 13, 12, 4, (size, size), pads=(size // 2,) * 4)
    check(problem, sparse(problem, 0.2), compiled_device,
          variants_of(problem, compiled_device, SMALL)[:4])


@pytest.mark.sanitize
def test_every_form(compiled_device: Device) -> None:
    """Some rows are longer than the smallest tile, and the outputs do not fill a work-group."""
    problem = Conv2dProblem(3, 16, 7, 6, 6, (3, 3), (2, 1), (1, 0, 1, 2), groups=2,
                            epilogue=BIAS_RESIDUAL_RELU)
    if is_slow(compiled_device):
        problem = replace(problem, batch=1, out_channels=2, epilogue=BIAS_CLIP)
    variants = variants_of(problem, compiled_device)
    forms = {(v["variant"], v["threads"], dict(v.config).get("points")) for v in variants}
    assert {("tiled", 256, 1), ("tiled", 256, 4), ("untiled", 256, None)} <= forms
    assert {v.precision for v in variants} == {"fp32", "fp16"}
    assert {v.inputs[0].layout for v in variants} == {"NCHW", "CHWN"}
    if compiled_device.api != "cuda":
        # a build takes half a second: layouts share one, and 16-bit floats change no loop
        variants = [v for v in variants if v.precision == "fp32" or v["threads"] == SMALL]
    check(problem, sparse(problem, 0.6), compiled_device, variants)


@pytest.mark.parametrize("batch", [1, 3, 5, 64, 67, 128])
def test_odd_batches_and_those_that_fill_lines(compiled_device: Device, batch: int) -> None:
    if is_slow(compiled_device) and batch > 5:
        pytest.skip("Oclgrind interprets: small shapes only")
    problem = Conv2dProblem(batch, 4, 5, 5, 3, (3, 3), pads=(1, 1, 1, 1))
    check(problem, sparse(problem, 0.3), compiled_device,
          variants_of(problem, compiled_device, SMALL))


@pytest.mark.parametrize("parts", [1, 3, 5, 12])
def test_rows_are_dealt_to_parts_of_similar_work(parts: int) -> None:
    lengths = np.random.default_rng(0).integers(0, 36, 24)
    weight = np.zeros((24, 36), np.float32)
    for row, length in zip(weight, lengths, strict=True):
        row[:length] = 1
    order = dealt(2, parts, {"weight": weight.reshape(24, 4, 3, 3)})
    for first, group in zip((0, 12), order.reshape(2, -1), strict=True):
        assert sorted(group) == list(range(first, first + 12))
        dealt_to = [lengths[rows] for rows in np.split(
            group, np.cumsum([-(-(12 - part) // parts) for part in range(parts - 1)]))]
        assert all((np.diff(part) <= 0).all() for part in dealt_to)
        assert np.ptp([part.sum() for part in dealt_to]) <= lengths.max()


@pytest.mark.parametrize("problem", [
    Conv2dProblem(7, 4, 8, 8, 75, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(3, 2, 20, 20, 4, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RESIDUAL_RELU)],
    ids=["more groups than units", "large images with a residual"])
def test_larger_layers(quick_compiled: Device, problem: Conv2dProblem) -> None:
    check(problem, sparse(problem, 0.4), quick_compiled,
          variants_of(problem, quick_compiled, SMALL)[:4])


def test_weights_without_zeros_are_refused_but_computed(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 4, 6, 6, 5, (3, 3))
    dense = random_weights(problem)
    assert "density 1.00" in (DirectSparse().supports(of(dense, problem), compiled_device) or "")
    check(problem, dense, compiled_device, variants_of(problem, compiled_device, SMALL))
    info = WeightsInfo(DENSEST, "a pattern")
    assert DirectSparse().supports(replace(problem, weights_info=info), compiled_device) is None


def stretched(problem: Conv2dProblem, weights: dict[str, np.ndarray],
              device: Device) -> np.ndarray:
    """Returns the columns of the weights, as the kernel of layout NCHW reads them."""
    variant = next(v for v in DirectSparse().variants(problem, device)
                   if v.inputs[0].layout == "NCHW")
    state = DirectSparse().prepare(Weights(weights, device), problem, variant, device)
    columns = np.empty(np.count_nonzero(weights["weight"]), np.int32)
    device.read(state.data, columns)
    return columns


def test_columns_are_stretched_as_published(compiled_device: Device) -> None:
    """The published column is colidx = (c * H + r) * W + s over the padded input. Groups start at
    their channels."""
    problem = Conv2dProblem(1, 4, 6, 5, 3, (3, 2), pads=(1, 0, 2, 1))
    weights = sparse(problem, 0.5)
    height, width = 6 + 1 + 2, 5 + 0 + 1
    _, c, r, s = np.nonzero(weights["weight"])
    np.testing.assert_array_equal(stretched(problem, weights, compiled_device),
                                  (c * height + r) * width + s)
    problem = Conv2dProblem(1, 6, 4, 4, 4, (1, 1), groups=2)
    np.testing.assert_array_equal(
        stretched(problem, random_weights(problem), compiled_device) // 16,
        [0, 1, 2] * 2 + [3, 4, 5] * 2)


@pytest.mark.parametrize("layout", ["NCHW", "CHWN"])
def test_stretched_columns_serve_every_batch_size_where_they_can(
        compiled_device: Device, layout: str) -> None:
    problem = Conv2dProblem(2, 4, 6, 5, 3, (3, 3), pads=(1, 1, 1, 1))
    layer_weights = Weights(sparse(problem, 0.5), compiled_device)
    buffers = []
    for sized in (problem, replace(problem, batch=3)):
        variant = next(v for v in variants_of(sized, compiled_device)
                       if v.inputs[0].layout == layout and v.precision == "fp32")
        buffers.append(DirectSparse().prepare(layer_weights, sized, variant,
                                              compiled_device).data)
    assert (buffers[0] is buffers[1]) == (layout == "NCHW")
    first, second = (np.empty(buffer.nbytes // 4, np.int32) for buffer in buffers)
    compiled_device.read(buffers[0], first)
    compiled_device.read(buffers[1], second)
    if layout == "CHWN":
        np.testing.assert_array_equal(first // 2, second // 3)


def test_the_first_form_is_one_that_any_kernel_may_have(compiled_device: Device) -> None:
    """A device may run fewer work-items per work-group of one kernel than of others."""
    for batch in (1, 64):
        problem = Conv2dProblem(batch, 64, 28, 28, 64, (3, 3), pads=(1, 1, 1, 1))
        threads = [v["threads"] for v in variants_of(problem, compiled_device)]
        if compiled_device.api == "opencl":
            assert threads == sorted(threads, key=lambda count: count > 256)
        assert compiled_device.limits.work_group_size < 512 or max(threads) > 256


def test_only_padded_inputs_need_workspace(compiled_device: Device) -> None:
    plain = Conv2dProblem(2, 3, 5, 6, 4, (3, 3))
    padded = replace(plain, pads=(1, 2, 0, 1))
    assert {v.workspace for v in variants_of(plain, compiled_device)} == {0}
    assert {v.workspace for v in variants_of(padded, compiled_device)
            if v.precision == "fp32"} == {4 * 2 * 3 * (5 + 1) * (6 + 3)}


def test_a_workspace_that_was_not_asked_for_is_left_alone(compiled_device: Device) -> None:
    """A plan passes one workspace to all of its steps."""
    problem = Conv2dProblem(1, 8, 32, 32, 4, (1, 1))
    weights = sparse(problem, 0.4)
    (x,) = random_inputs(problem)
    for variant in variants_of(problem, compiled_device, SMALL)[:2]:
        assert variant.workspace == 0
        state = DirectSparse().prepare(Weights(weights, compiled_device), problem, variant,
                                       compiled_device)
        source = compiled_device.upload(pack(x, variant.inputs[0]), "an input")
        target = compiled_device.empty(variant.outputs[0].nbytes, "an output")
        DirectSparse().launch(state, [source], [target], compiled_device.empty(64, "a workspace"))
        stored = np.empty(variant.outputs[0].stored_shape, variant.outputs[0].stored_dtype)
        compiled_device.read(target, stored)
        (expected,) = OP.reference(problem, [x], weights)
        assert normalised_error(unpack(stored, variant.outputs[0]), expected) <= tolerance(
            "conv2d", variant.precision)


def test_the_host_has_no_kernels() -> None:
    problem = Conv2dProblem(1, 3, 5, 5, 4, (3, 3))
    reason = DirectSparse().supports(of(sparse(problem, 0.2), problem), find("host"))
    assert reason == "needs a device that compiles kernels"


def test_a_plan_that_does_not_measure_stays_dense(compiled_device: Device) -> None:
    problem = Conv2dProblem(1, 3, 5, 5, 4, (3, 3))
    pruned = of(sparse(problem, 0.2), problem)
    able = [algorithm for algorithm in OP.algorithms
            if algorithm.supports(pruned, compiled_device) is None]
    assert able[0].dense
    assert "direct_sparse" in {algorithm.name for algorithm in able}


def test_the_published_forms_come_in_every_size_that_fits(compiled_device: Device) -> None:
    problem = Conv2dProblem(64, 256, 13, 13, 384, (3, 3), pads=(1, 1, 1, 1))
    configs = {v.config_text for v in DirectSparse().variants(problem, compiled_device)}
    largest = compiled_device.limits.work_group_size
    for threads in (1024, 512, 256):
        assert (f"variant=tiled threads={threads} points=1" in configs) == (threads <= largest)
    assert "variant=untiled threads=256" in configs


REAL_LAYERS = (("conv2", 96, 2, 5), ("conv3", 256, 1, 3))
"""Name, input channels, groups and window of pruned layers of AlexNet."""


def real_layer(shared, name: str, channels: int, groups: int,
               kernel: int) -> tuple[Conv2dProblem, dict[str, np.ndarray]]:
    """Returns a pruned layer and its weights; the test is skipped where they are absent."""
    path = shared / "data" / "alexnet_pruned" / f"coo_{name}.mtx"
    if not path.exists():
        pytest.skip(f"no file {path}")
    weight = read_sparse(path).filters((kernel, kernel))
    assert weight.shape[1] == channels // groups
    return Conv2dProblem(1, channels, 13, 13, len(weight), (kernel, kernel),
                         pads=(kernel // 2,) * 4, groups=groups,
                         epilogue=Epilogue(apply("relu"))), {"weight": weight}


@pytest.mark.shared
@pytest.mark.parametrize("name, channels, groups, kernel", REAL_LAYERS)
def test_real_pruned_layers(quick_compiled: Device, shared, name: str, channels: int, groups: int,
                            kernel: int) -> None:
    problem, weights = real_layer(shared, name, channels, groups, kernel)
    check(problem, weights, quick_compiled, variants_of(problem, quick_compiled, SMALL)[::3])
