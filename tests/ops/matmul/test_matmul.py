"""Tests of matmul; matmul_mma offers everywhere, and runs where there is a GPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.matmul.mma import TILES, MmaMatmul
from gossamer.ops.matmul.problem import MatmulProblem, reference
from gossamer.ops.matmul.tiled import TiledMatmul, WideMatmul
from gossamer.tensor import default_spec
from tests.cubins import build_info
from tests.fixtures import is_slow
from tests.ops import harness
from tests.ops.harness import check, check_variants, random_inputs
from tests.ops.recording import RecordingDevice


def few(variants: list[Variant]) -> list[Variant]:
    """Returns the first variants: matmul_mma has many, each of which is compiled, and tests of its
    own."""
    return variants[:3]


def in_float32(variants: list[Variant]) -> list[Variant]:
    """Returns the first variants in float32. A sum of few products may be as small as the rounding
    of float16 and TF32."""
    return few([variant for variant in variants if variant.precision == "fp32"])


@given(data=st.data())
@settings(max_examples=15)
def test_any_batch(device: Device, data: st.DataObject) -> None:
    batch = data.draw(st.lists(st.integers(0, 3), max_size=4))

    def operand(rows: int, columns: int) -> tuple[int, ...]:
        rank = data.draw(st.integers(0, len(batch)))
        keeps = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        outer = (size if keep else 1 for size, keep in zip(batch[len(batch) - rank :], keeps,
                                                           strict=True))
        return (*outer, rows, columns)

    rows, inner, columns = (data.draw(st.integers(0, 5)) for _ in range(3))
    transposed = tuple(index for index in range(2) if data.draw(st.booleans()))
    a = operand(*((inner, rows) if 0 in transposed else (rows, inner)))
    b = operand(*((columns, inner) if 1 in transposed else (inner, columns)))
    check(MatmulProblem(default_spec(a), default_spec(b), transposed=transposed), device,
          taken=in_float32)


@pytest.mark.parametrize("shapes", [((7,), (7,)), ((7,), (7, 5)), ((3, 7), (7,)),
                                    ((2, 3, 7), (7,)), ((7,), (2, 7, 3))], ids=str)
def test_vectors(device: Device, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(MatmulProblem(*map(default_spec, shapes)), device, taken=few)


@pytest.mark.parametrize("transposed", [(), (0,), (1,), (0, 1)], ids=str)
def test_more_than_one_tile(device: Device, transposed: tuple[int, ...]) -> None:
    m, k, n = (17, 18, 19) if is_slow(device) else (70, 45, 131)
    a, b = (2, k, m) if 0 in transposed else (2, m, k), (n, k) if 1 in transposed else (k, n)
    check(MatmulProblem(default_spec(a), default_spec(b), transposed=transposed), device,
          taken=few)


@pytest.mark.parametrize("constants", [(0,), (1,)])
def test_constants(device: Device, constants: tuple[int, ...]) -> None:
    check(MatmulProblem(default_spec((3, 4, 5)), default_spec((5, 6)), constants), device,
          taken=few)
    check(MatmulProblem(default_spec((3, 5, 4)), default_spec((6, 5)), constants, (0, 1)), device,
          taken=few)


def test_a_transposed_operand_is_swapped_before_the_product() -> None:
    problem = MatmulProblem(default_spec((3, 5, 4)), default_spec((6, 5)), transposed=(0, 1))
    assert problem.outputs[0].shape == (3, 4, 6)
    assert problem.flops == 2 * 3 * 4 * 5 * 6
    a, b = random_inputs(problem)
    (product,) = reference(problem, [a, b], {})
    np.testing.assert_allclose(product, np.einsum("bki,jk->bij", a, b), rtol=1e-5, atol=1e-5)
    assert problem.describe() == (
        "3x5x4 float32 transposed @ 6x5 float32 transposed")


def test_a_vector_is_not_transposed() -> None:
    with pytest.raises(ValueError, match=r"operand 1 of .* is a vector"):
        MatmulProblem(default_spec((3, 4)), default_spec((4,)), transposed=(1,))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no matrix product"):
        MatmulProblem(default_spec((3, 4)), default_spec((3, 4)))


@pytest.mark.parametrize(("rows", "columns", "tiles", "vectors"), [
    (32, 33, [16, 64], [2, 1]), (33, 32, [16, 64], [2, 1]), (33, 33, [64, 16], [2, 1]),
    (33, 17, [16, 64], [2, 1]), (33, 16, [16, 64], [1, 2])])
def test_small_matrices_try_the_small_tile_first(recorder: RecordingDevice, rows: int, columns: int,
                                                 tiles: list[int], vectors: list[int]) -> None:
    problem = MatmulProblem(default_spec((3, rows, 8)), default_spec((8, columns)))
    assert [variant["tile"] for variant in TiledMatmul().variants(problem, recorder)] == tiles
    assert [variant["vectors"] for variant in WideMatmul().variants(problem, recorder)] == vectors


ALGORITHM = MmaMatmul()


def product(a: tuple[int, ...], b: tuple[int, ...], transposed: tuple[int, ...] = ()
            ) -> MatmulProblem:
    return MatmulProblem(default_spec(a), default_spec(b), transposed=transposed)


SCORES = product((2, 3, 37, 24), (2, 3, 41, 24), (1,))
"""Queries by keys, whose lines are whole copies of 16 bytes."""
VALUES = product((2, 3, 37, 41), (2, 3, 41, 24))
"""Attention by values; in float16 the numbers of an attention are loaded one by one."""
CHANNELS = product((1, 4, 22, 784), (1, 4, 22, 784), (1,))
"""Attention between channels: few results, and a long K."""
COLUMNS = product((2, 75, 38), (2, 75, 44), (0,))
"""Both operands have the numbers along K in different lines."""
BOTH = product((3, 130, 72), (70, 130), (0, 1))
BROADCAST = product((3, 1, 20, 50), (2, 50, 34))
EMPTY_SUMS = product((2, 5, 0), (0, 7))
VECTORS = product((90,), (2, 90, 1))
PROBLEMS = {"scores": SCORES, "values": VALUES, "channels": CHANNELS, "columns": COLUMNS,
            "both": BOTH, "broadcast": BROADCAST, "empty sums": EMPTY_SUMS, "vectors": VECTORS}


def with_constants(problem: MatmulProblem) -> MatmulProblem:
    return replace(problem, constants=(1,))


variants_of = partial(harness.variants_of, ALGORITHM)


def check_not_finite(problem: MatmulProblem, device: Device, chosen: list[Variant]) -> None:
    """Compares the outputs of variants with the reference for inputs with infinities and a NaN,
    each of which reaches some results only."""
    a, b = random_inputs(problem)
    a[..., 1, 3], a[..., 2, 5] = np.inf, np.nan
    b[..., 0, 2] = -np.inf
    with np.errstate(invalid="ignore"):
        check_variants(ALGORITHM, problem, device, chosen, inputs=[a, b])


def test_reasons_are_given(recorder: RecordingDevice) -> None:
    assert all(ALGORITHM.supports(problem, recorder) is None for problem in PROBLEMS.values())
    assert "at most three" in str(ALGORITHM.supports(
        product((2, 1, 2, 1, 2, 3, 4), (2, 1, 2, 1, 4, 5)), recorder))
    doubles = MatmulProblem(default_spec((3, 4), "float64"), default_spec((4, 5), "float64"))
    assert "float64" in str(ALGORITHM.supports(doubles, recorder))
    recorder.limits = replace(recorder.limits, mma=False)
    assert "tensor cores" in str(ALGORITHM.supports(SCORES, recorder))


@pytest.mark.parametrize("name", PROBLEMS)
def test_precisions_and_formats(name: str) -> None:
    device, problem = RecordingDevice(), PROBLEMS[name]
    variants = list(ALGORITHM.variants(problem, device))
    forms = {(v.precision, v.inputs[0].dtype, v.outputs[0].dtype) for v in variants}
    assert forms == {("tf32", "float32", "float32"), ("fp16", "float16", "float16"),
                     ("fp16", "float16", "float32")}
    assert {v.config for v in variants} == {v.config for v in variants if v.precision == "tf32"}
    assert list(ALGORITHM.variants_in(problem, device, ["fp32"])) == []


def test_tiles_that_need_more_shared_memory_are_left_out(recorder: RecordingDevice) -> None:
    every = {variant.config for variant in ALGORITHM.variants(BOTH, recorder)}
    assert len(every) == len(TILES)
    recorder.limits = replace(recorder.limits, shared_bytes_opt_in=64 * 1024)
    some = {variant.config for variant in ALGORITHM.variants(BOTH, recorder)}
    assert some and some < every


def test_a_long_sum_of_few_results_is_shared_by_warps_first() -> None:
    assert next(iter(ALGORITHM.variants(CHANNELS, RecordingDevice())))["warps_k"] > 1


@pytest.mark.slow
@pytest.mark.parametrize("name, first, architecture", [
    ("scores", 0, "sm_90"), ("values", 1, "sm_90"), ("both", 2, "sm_90"), ("columns", 4, "sm_80"),
    ("channels", 3, "sm_80")])
def test_kernels_build_without_spills(name: str, first: int, architecture: str) -> None:
    """Builds a part of the variants: every one would take long."""
    pytest.importorskip("cuda.core")
    pytest.importorskip("gossamer.device.cuda.nvrtc")
    device, problem = RecordingDevice(), PROBLEMS[name]
    for variant in list(ALGORITHM.variants(problem, device))[first::5]:
        (source,) = ALGORITHM.kernel_sources(problem, variant, device)
        info = build_info(source, source.built_for(architecture))
        assert info.spill_bytes == 0, f"{variant.config_text} spills on {architecture}"
        assert "warning" not in info.log, info.log


@pytest.mark.parametrize("name", ("scores", "values", "columns"))
def test_every_tile_on_cuda(cuda: Device, name: str) -> None:
    check_variants(ALGORITHM, PROBLEMS[name], cuda)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_form_on_cuda(cuda: Device, name: str) -> None:
    """Runs every fourth variant, all three forms of precision and formats among them: every one
    would take long to compile."""
    problem = PROBLEMS[name]
    check_variants(ALGORITHM, problem, cuda, list(ALGORITHM.variants(problem, cuda))[::4])


def test_constants_on_cuda(cuda: Device) -> None:
    problem = with_constants(BOTH)
    check_variants(ALGORITHM, problem, cuda, list(ALGORITHM.variants(problem, cuda))[:3])


def test_numbers_that_are_not_finite_on_cuda(cuda: Device) -> None:
    for problem in (SCORES, VALUES):
        check_not_finite(problem, cuda, list(ALGORITHM.variants(problem, cuda))[::4])


@pytest.mark.sanitize
@pytest.mark.parametrize("name", ("scores", "values", "channels", "columns"))
def test_some_tiles_on_cuda(cuda: Device, name: str) -> None:
    """Runs both precisions with and without warps that share K, and no more: a sanitizer is slow.
    """
    problem = PROBLEMS[name]
    chosen = {(v.precision, v.outputs[0].dtype, v["warps_k"]): v
              for v in ALGORITHM.variants(problem, cuda)}
    check_variants(ALGORITHM, problem, cuda, list(chosen.values()))
