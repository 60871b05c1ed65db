"""Products that compute queries, keys and values become one, and the results stay."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

DEPTH = CHANNELS * SIZE
"""Length of a token. An image has as many tokens as rows."""


def product(build: Builder, x: str, columns: int, bias: bool = True, function: str = "") -> str:
    y = build.add("matmul", [x, build.constant(DEPTH, columns)])
    if bias:
        y = build.apply("add", y, build.constant(columns))
    return build.apply(function, y) if function else y


def heads(build: Builder, x: str, columns: int, order: Sequence[int] = (0, 2, 1, 3)) -> str:
    return build.add("transpose", [build.add("reshape", [x], shape=(0, SIZE, 2, columns // 2))],
                     permutation=tuple(order))


def attention(build: Builder, q: str, k: str, v: str, columns: int) -> None:
    """Adds attention of two heads, whose values have `columns` columns."""
    weights = build.add("softmax", [build.add("matmul", [
        heads(build, q, 12), heads(build, k, 12, (0, 2, 3, 1))])], axis=-1, log=False)
    build.add("transpose", [build.add("matmul", [weights, heads(build, v, columns)])], "y",
              permutation=(0, 2, 1, 3))


def tokens(build: Builder) -> str:
    return build.apply("relu", build.add("reshape", ["x"], shape=(0, SIZE, DEPTH)))


def products(build: Builder) -> int:
    return sum(node.op == "gemm" for node in check(build, for_gpu=True))


@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("columns", (12, 20))
@pytest.mark.parametrize("function", ("", "tanh"))
def test_three_products_become_one(build: Builder, bias: bool, columns: int,
                                   function: str) -> None:
    x = tokens(build)
    q, k, v = (product(build, x, each, bias, function) for each in (12, 12, columns))
    attention(build, q, k, v, columns)
    assert products(build) == 1


def test_queries_of_another_value_stay(build: Builder) -> None:
    x = tokens(build)
    q = product(build, build.apply("tanh", x), 12)
    attention(build, q, product(build, x, 12), product(build, x, 12), 12)
    assert products(build) == 2


def test_another_epilogue_stays(build: Builder) -> None:
    x = tokens(build)
    attention(build, product(build, x, 12, function="sigmoid"), product(build, x, 12, bias=False),
              product(build, x, 12), 12)
    assert products(build) == 3


def test_a_result_that_is_read_elsewhere_stays() -> None:
    build = Builder(("y", "z"))
    x = tokens(build)
    v = product(build, x, 12)
    attention(build, product(build, x, 12), product(build, x, 12), v, 12)
    build.add("softmax", [v], "z", axis=-1, log=False)
    assert products(build) == 2


def test_one_head_without_transposes_stays(build: Builder) -> None:
    x = tokens(build)
    q, k, v = (product(build, x, 12) for _ in range(3))
    scores = build.add("matmul", [q, build.add("transpose", [k], permutation=(0, 2, 1))])
    build.add("matmul", [build.add("softmax", [scores], axis=-1, log=False), v], "y")
    assert products(build) == 3
