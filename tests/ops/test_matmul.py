from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.tensor import default_spec
from tests.conftest import is_slow
from tests.ops.harness import check


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
    check(MatmulProblem(default_spec(operand(rows, inner)), default_spec(operand(inner, columns))),
          device)


@pytest.mark.parametrize("shapes", [((7,), (7,)), ((7,), (7, 5)), ((3, 7), (7,)),
                                    ((2, 3, 7), (7,)), ((7,), (2, 7, 3))], ids=str)
def test_vectors(device: Device, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    check(MatmulProblem(*map(default_spec, shapes)), device)


def test_more_than_one_tile(device: Device) -> None:
    m, k, n = (17, 18, 19) if is_slow(device) else (70, 45, 131)
    check(MatmulProblem(default_spec((2, m, k)), default_spec((k, n))), device)


@pytest.mark.parametrize("constants", [(0,), (1,)])
def test_constants(device: Device, constants: tuple[int, ...]) -> None:
    check(MatmulProblem(default_spec((3, 4, 5)), default_spec((5, 6)), constants), device)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="no matrix product"):
        MatmulProblem(default_spec((3, 4)), default_spec((3, 4)))
