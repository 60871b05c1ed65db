"""Tests which problems direct_sparse_compiled takes, what it offers and what it launches. The code
that it generates is tested in test_code.py."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.common import sizes_of
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.generated.code import generate
from gossamer.ops.conv2d.sparse.generated.configs import (
    _all,
    _tiles,
    configs,
    estimated_us,
    lines,
)
from gossamer.ops.conv2d.sparse.generated.direct_sparse_compiled import DirectSparseCompiled
from gossamer.ops.conv2d.sparse.generated.tiling import GeneratedConfig, GeneratedTiling
from gossamer.ops.weights import Weights, WeightsInfo
from tests.ops.conv2d.sparse.sparse_weights import (
    BIAS_RESIDUAL_CLIP,
    BIAS_SIGMOID,
    H200,
    SCALE_PRELU,
    sparse,
    with_density,
)
from tests.ops.harness import check_variants

DENSE = Conv2dProblem(64, 128, 14, 14, 128, (3, 3), pads=(1, 1, 1, 1))


class PtxDevice(Device):
    """A device that takes programs in PTX and records what is calls with their kernels."""

    api = "cuda"
    assembles_ptx = True

    def __init__(self, architecture: str = "sm_90") -> None:
        self.index, self.description, self.driver = 0, "records", ""
        self.limits, self.architecture = H200, architecture
        self.calls: list[tuple[Any, ...]] = []

    def assemble(self, name: str, key: Sequence[str], generate: Callable[[], Any]) -> Any:
        return generate()

    def compile(self, source: Any) -> Any:
        return source.function

    def launch(self, kernel: Any, groups: Any, work_group_size: Any, arguments: Any, *,
               shared_bytes: int = 0, stream: Any = None) -> None:
        self.calls.append(("launch", kernel, groups, stream))

    def _nothing(self, *arguments: Any, **options: Any) -> Any:
        return None

    def upload(self, array: np.ndarray, purpose: str) -> Any:
        return find("host").upload(array, purpose)

    empty = write = read = copy = synchronize = create_stream = time = _nothing


@pytest.mark.parametrize("problem, architecture, reason", [
    (DENSE, "sm_90", "density of at most 50%, has 100%"),
    (with_density(DENSE, 0.1), "sm_75", "sm_75"),
    (with_density(replace(DENSE, channels=4096, out_channels=4096), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, channels=65536, out_channels=65536, groups=65536), 0.3), "sm_90",
     "million instructions would take"),
    (with_density(replace(DENSE, kernel=(3, 3), dilation=(1, 2000), width=4100), 0.1), "sm_90",
     "no tile fits"),
    (with_density(replace(DENSE, height=4000, width=4000), 0.1), "sm_90", "2^31 elements"),
])
def test_reasons(problem: Conv2dProblem, architecture: str, reason: str) -> None:
    refusal = DirectSparseCompiled().supports(problem, PtxDevice(architecture))
    assert refusal is not None and reason in refusal


def test_only_cuda_takes_ptx(device: Device) -> None:
    refusal = DirectSparseCompiled().supports(with_density(DENSE, 0.1), device)
    if device.api == "cuda":
        assert refusal is None
    else:
        assert refusal is not None and "PTX" in refusal


def test_variants_fit_and_begin_in_float32() -> None:
    problem = with_density(DENSE, 0.1)
    variants = list(DirectSparseCompiled().variants(problem, PtxDevice()))
    assert variants[0].precision == "fp32"
    assert {variant.precision for variant in variants} == {"fp32", "fp16"}
    for variant in variants:
        halves = variant.precision == "fp16"
        division = GeneratedTiling(problem, sizes_of(GeneratedConfig, variant), halves)
        assert division.shared_bytes <= H200.shared_bytes_opt_in
        assert division.work_group <= 1024 and division.registers >= division.block
        assert {spec.layout for spec in (*variant.inputs, *variant.outputs)} == {"CHWN"}
        assert variant.inputs[0].dtype == ("float16" if halves else "float32")
        assert estimated_us(division, H200) > 0
    odd = DirectSparseCompiled().variants(replace(problem, batch=3), PtxDevice())
    assert {variant.precision for variant in odd} == {"fp32"}


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("problem", [
    with_density(replace(DENSE, out_channels=96), 0.1),
    with_density(replace(DENSE, batch=2, height=2, width=2), 0.05),
    with_density(replace(DENSE, channels=96, out_channels=96, groups=96), 0.3)])
def test_how_long_code_gets_is_known_before(problem: Conv2dProblem, halves: bool) -> None:
    arrays = sparse(problem, problem.weights_info.density)
    for config in configs(problem, H200, halves)[::6]:
        division = GeneratedTiling(problem, config, halves)
        # factors of float16 are moves, which the assembler drops
        count = sum(instruction.name != "mov.b32"
                    for instruction in generate(division, arrays).code.instructions)
        assert 0.7 < lines(division) / count < 1.4


def test_layers_of_one_shape_and_density_share_their_configs() -> None:
    one, other = (replace(DENSE, weights_info=WeightsInfo(0.1, mask)) for mask in ("one", "other"))
    assert configs(one, H200) is configs(other, H200)
    assert configs(one, H200) is not configs(with_density(one, 0.2), H200)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize(("channels", "entries"), [(128, {1, 4, 8}), (6, {1, 4}), (3, {1})])
def test_entries_are_staggered_within_a_stage(channels: int, entries: set[int],
                                              halves: bool) -> None:
    """Each number of staggered entries that a stage's input channels allow is offered."""
    problem = with_density(replace(DENSE, channels=channels), 0.1)
    offered = configs(problem, H200, halves)
    assert {config.staggered_entries for config in offered} == entries
    assert all(config.staggered_entries <= config.stage <= channels for config in offered)
    # before other numbers are tried, every sub-partition has an entry of its own where it can
    for config in _all(problem, H200, halves):
        is_staggered = config.k_groups == 1 and config.stage >= 4
        assert config.staggered_entries == (4 if is_staggered else 1)


@pytest.mark.parametrize("halves", [False, True])
def test_the_best_config_of_each_kind_comes_first(halves: bool) -> None:
    """The kinds are: k_groups, prefetch warps, and neither."""
    problem = with_density(DENSE, 0.1)

    def kind(config: GeneratedConfig) -> tuple[bool, int]:
        return config.k_groups > 1, config.prefetch_warps

    def expected(config: GeneratedConfig) -> float:
        return estimated_us(GeneratedTiling(problem, config, halves), H200)

    offered = configs(problem, H200, halves)
    assert len(set(offered)) == len(offered)
    assert sorted(map(kind, offered[:3])) == [(False, 0), (False, 1), (True, 0)]
    best = dict.fromkeys(map(kind, offered), math.inf)
    for config in _all(problem, H200, halves):
        best[kind(config)] = min(best[kind(config)], expected(config))
    assert list(map(expected, offered[:3])) == sorted(best.values())


def test_sizes_that_only_some_kinds_have() -> None:
    for halves, channels in itertools.product((False, True), (6, 128)):
        for config in configs(with_density(replace(DENSE, channels=channels), 0.1), H200, halves):
            if config.prefetch_warps:
                assert config.staggered_entries == 4 and config.stage < channels
                assert config.k_groups == config.blocks_per_unit == 1
            elif config.k_groups > 1:
                assert config.staggered_entries == 1 and config.k_groups <= config.stage


@pytest.mark.parametrize("halves", [False, True])
def test_three_tiles_of_each_size_are_tried(halves: bool) -> None:
    problem = with_density(DENSE, 0.1)
    sizes = Counter((images, GeneratedTiling(
        problem, GeneratedConfig(1, images, rows, columns, 1), halves).k_group // 128)
        for images, rows, columns in _tiles(problem, halves))
    assert max(sizes.values()) == 3 and {images for images, _ in sizes} == (
        {16, 32, 64} if halves else {8, 16, 32})


def test_tiles_that_read_least_beyond_their_pixels_come_first() -> None:
    """Tiles of 4 x 6 and of 2 x 12 pixels cover 12 x 12 pixels exactly. A window of 3 x 3 pixels
    reads 6 x 8 and 4 x 14 pixels for them."""
    problem = with_density(Conv2dProblem(32, 64, 14, 14, 64, (3, 3)), 0.1)
    assert list(_tiles(problem, False))[:3] == [(32, 4, 6), (32, 6, 4), (32, 2, 12)]


def test_long_code_is_no_candidate() -> None:
    """Small blocks take more instructions: large ones share more of them."""
    problem = with_density(Conv2dProblem(1, 2048, 1, 1, 1000, (1, 1)), 0.1)
    longest = max(lines(GeneratedTiling(problem, config)) for config in configs(problem, H200))
    offered = configs(problem, H200, most_lines=longest / 2)
    assert offered and all(lines(GeneratedTiling(problem, config)) <= longest / 2
                           for config in offered)


@pytest.mark.parametrize("halves", [False, True])
def test_the_config_with_the_shortest_code_is_among_them(halves: bool) -> None:
    problem = with_density(Conv2dProblem(2, 1024, 1, 1, 1000, (1, 1)), 0.1)
    shortest = min(lines(GeneratedTiling(problem, config, halves))
                   for config in _all(problem, H200, halves))
    assert min(lines(GeneratedTiling(problem, config, halves))
               for config in configs(problem, H200, halves)) <= shortest


@pytest.mark.parametrize("batch", [8, 33, 64])
def test_resident_groups_are_no_more_than_a_multiprocessor_holds(batch: int) -> None:
    problem = with_density(Conv2dProblem(batch, 64, 20, 17, 64, (3, 3), groups=4), 0.1)
    assert all(GeneratedTiling(problem, config).work_group * config.blocks_per_unit <= 2048
               for config in configs(problem, H200))


@pytest.mark.parametrize("halves", [False, True])
def test_resident_groups_share_the_memory_of_a_multiprocessor(halves: bool) -> None:
    """Each of several work-groups takes a kilobyte more than it asks for; one alone may have all of
    the memory."""
    problem = with_density(Conv2dProblem(32, 16, 56, 56, 16, (5, 5)), 0.1)
    needed: dict[bool, int] = {}
    for config in _all(problem, H200, halves):
        count = config.blocks_per_unit
        nbytes = count * (GeneratedTiling(problem, config, halves).shared_bytes
                          + 1024 * (count > 1))
        needed[count > 1] = max(nbytes, needed.get(count > 1, 0))
    assert needed.keys() == {False, True}
    assert max(needed.values()) <= H200.shared_bytes_opt_in, needed


def launched(problem: Conv2dProblem, **changes: int) -> PtxDevice:
    """Launches the first variant with a changed config and returns the device that recorded it."""
    device, algorithm = PtxDevice(), DirectSparseCompiled()
    variant = next(iter(algorithm.variants(problem, device)))
    variant = replace(variant, config=tuple({**dict(variant.config), **changes}.items()))
    weights = Weights(sparse(problem, 0.1), device)
    state = algorithm.prepare(weights, problem, variant, device)
    buffers: list[Any] = [None] * len(variant.inputs)
    algorithm.launch(state, buffers, buffers[:1], None, "main")
    return device


def test_a_long_epilogue_is_a_kernel_of_its_own() -> None:
    kernels = [call[1] for call in launched(with_density(replace(DENSE, epilogue=BIAS_SIGMOID),
                                                         0.1)).calls]
    assert len(kernels) == 2 and kernels[1] == "epilogue_pass"


def test_nothing_is_launched_for_nothing() -> None:
    assert launched(with_density(replace(DENSE, batch=0), 0.1)).calls == []


GPU_CASES = [(1, Epilogue()), (2, BIAS_RESIDUAL_CLIP), (5, BIAS_SIGMOID), (64, SCALE_PRELU)]
"""Batch sizes and epilogues of the tests on a GPU."""


def check_every(step: int, cuda: Device, batch: int, epilogue: Epilogue) -> None:
    """Checks every step-th variant of a convolution with strides, pads and groups."""
    algorithm = DirectSparseCompiled()
    problem = with_density(Conv2dProblem(batch, 12, 9, 7, 40, (3, 3), (1, 2), (1, 0, 1, 2),
                                         groups=2, epilogue=epilogue), 0.2)
    variants = list(algorithm.variants(problem, cuda))[::step]
    assert len(variants) >= 4
    check_variants(algorithm, problem, cuda, variants, sparse(problem, 0.2))


@pytest.mark.parametrize(("batch", "epilogue"), GPU_CASES)
def test_on_a_gpu(cuda: Device, batch: int, epilogue: Epilogue) -> None:
    check_every(1, cuda, batch, epilogue)


@pytest.mark.sanitize
@pytest.mark.parametrize(("batch", "epilogue"), GPU_CASES)
def test_few_variants_on_a_gpu(cuda: Device, batch: int, epilogue: Epilogue) -> None:
    check_every(6, cuda, batch, epilogue)


@pytest.mark.sanitize
def test_prefetch_warps_on_a_gpu(cuda: Device) -> None:
    algorithm = DirectSparseCompiled()
    problem = with_density(Conv2dProblem(32, 48, 9, 7, 40, (3, 3), pads=(1, 0, 1, 2),
                                         epilogue=BIAS_RESIDUAL_CLIP), 0.2)
    variants = [variant for variant in algorithm.variants(problem, cuda)
                if dict(variant.config).get("prefetch_warps")]
    assert len(variants) >= 4
    check_variants(algorithm, problem, cuda, variants, sparse(problem, 0.2))
