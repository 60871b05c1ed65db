"""Images are transposed before they become rows of tokens, and after rows have become images."""

from __future__ import annotations

import pytest

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

PIXELS = SIZE * SIZE


def test_tokens_of_an_image_and_an_image_of_tokens() -> None:
    build = Builder()
    columns = build.add("reshape", [build.pool("x")], shape=(0, CHANNELS, -1))
    tokens = build.add("transpose", [columns], permutation=(0, 2, 1))
    product = build.add("matmul", [tokens, build.constant(CHANNELS, CHANNELS)])
    turned = build.add("transpose", [product], permutation=(0, 2, 1))
    build.pool(build.add("reshape", [turned], shape=(0, CHANNELS, SIZE, SIZE)), output="y")
    nodes = check(build, ["pool", "transpose", "reshape", "gemm", "reshape", "transpose", "pool"],
                  channels_first=True)
    assert [node.attributes["permutation"] for node in nodes if node.op == "transpose"] == [
        (0, 2, 3, 1), (0, 3, 1, 2)]


@pytest.mark.parametrize("shape", [(0, SIZE, CHANNELS * SIZE), (0, 2, PIXELS * CHANNELS // 2)])
def test_other_reshapes_stay_as_they_are(shape: tuple[int, ...]) -> None:
    build = Builder()
    columns = build.add("reshape", [build.pool("x")], shape=shape)
    turned = build.add("transpose", [columns], permutation=(0, 2, 1))
    build.add("reshape", [build.apply("exp", turned)], "y", shape=(0, CHANNELS, SIZE, SIZE))
    check(build, ["pool", "reshape", "transpose", "elementwise", "reshape"], channels_first=True)


def test_tokens_of_several_rows_of_an_image_are_no_image() -> None:
    """The reshape to an image after the transposition has other channels than the tokens."""
    build = Builder()
    columns = build.add("reshape", [build.pool("x")], shape=(0, PIXELS, CHANNELS))
    turned = build.add("transpose", [columns], permutation=(0, 2, 1))
    build.pool(build.add("reshape", [turned], shape=(0, SIZE, SIZE, CHANNELS)), output="y")
    check(build, ["pool", "reshape", "transpose", "reshape", "pool"], channels_first=True)
