from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.algorithm import Variant
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.matmul.reference import reference
from gossamer.ops.matmul.tiled import TiledMatmul, WideMatmul
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import check, random_inputs
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
def test_small_matrices_try_the_small_tile_first(rows: int, columns: int, tiles: list[int],
                                                 vectors: list[int]) -> None:
    problem = MatmulProblem(default_spec((3, rows, 8)), default_spec((8, columns)))
    device = RecordingDevice()
    assert [variant["tile"] for variant in TiledMatmul().variants(problem, device)] == tiles
    assert [variant["vectors"] for variant in WideMatmul().variants(problem, device)] == vectors
