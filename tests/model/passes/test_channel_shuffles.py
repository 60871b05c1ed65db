"""Shuffles of channels become gathers."""

from __future__ import annotations

import pytest

from tests.model.graph_builder import CHANNELS, SIZE, Builder, check

GROUPS = 2


def shuffled(build: Builder, x: str, output: str = "", height: int = SIZE,
             permutation: tuple[int, ...] = (0, 2, 1, 3, 4)) -> str:
    each = CHANNELS // GROUPS
    parted = build.add("reshape", [x], shape=(0, GROUPS, each, height, SIZE * SIZE // height))
    turned = build.add("transpose", [parted], permutation=permutation)
    return build.add("reshape", [turned], output, shape=(0, CHANNELS, SIZE, SIZE))


def test_a_shuffle_is_one_gather() -> None:
    build = Builder()
    build.pool(shuffled(build, build.pool("x")), output="y")
    check(build, ["pool", "gather", "pool"])


def test_each_part_of_a_shuffle_is_a_gather() -> None:
    build = Builder()
    mixed = shuffled(build, build.pool("x"))
    build.add("split", [mixed], "left", axis=1, sizes=(1, 3))
    build.graph.nodes[-1].outputs.append("right")
    build.add("concat", [build.pool("right"), build.pool("left")], "y", axis=1)
    check(build, ["pool", "gather", "gather", "pool", "pool", "concat"])


@pytest.mark.parametrize(("attributes", "ops"), [
    ({"starts": (1,), "ends": (4,), "axes": (1,), "steps": (2,)}, ["pool", "gather", "pool"]),
    ({"starts": (-3,), "ends": (9,), "axes": (-3,)}, ["pool", "gather", "pool"]),
    ({"starts": (1,), "ends": (4,), "axes": (2,)}, ["pool", "gather", "slice", "pool"]),
])
def test_slices(attributes: dict[str, tuple[int, ...]], ops: list[str]) -> None:
    build = Builder()
    part = build.add("slice", [shuffled(build, build.pool("x"))], **attributes)
    build.pool(part, output="y")
    check(build, ops)


def test_a_shuffle_of_pixels_too_stays_as_it_is() -> None:
    """A reshape that also changes the height, and a transposition of other dimensions, are no
    shuffles of channels."""
    for options in ({"height": 1}, {"permutation": (0, 2, 1, 4, 3)}):
        build = Builder()
        build.pool(shuffled(build, build.pool("x"), **options), output="y")
        check(build, ["pool", "reshape", "transpose", "reshape", "pool"])
