from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.facts import BYTES
from gossamer.ops.reduce import TreeReduce
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import default_spec
from tests.fixtures import is_slow
from tests.ops.harness import candidates, check


@given(shape=st.lists(st.integers(1, 6), min_size=1, max_size=5), data=st.data())
@settings(max_examples=40)
def test_any_axes(device: Device, shape: list[int], data: st.DataObject) -> None:
    axes = data.draw(st.sets(st.integers(0, len(shape) - 1)).map(sorted))
    kind = data.draw(st.sampled_from(["mean", "max", "sum"]))
    keepdims = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from(["float32", "float32", "int32", "int64"]))
    check(ReduceProblem(default_spec(tuple(shape), dtype), kind, tuple(axes), keepdims), device)


@pytest.mark.parametrize("kind", ["mean", "max"])
@pytest.mark.parametrize("batch", [0, 1, 3])
def test_global_pooling(device: Device, kind: str, batch: int) -> None:
    shape = (batch, 5, 3, 3) if is_slow(device) else (batch, 130, 7, 7)
    check(ReduceProblem(default_spec(shape), kind, (2, 3), True), device)
    check(ReduceProblem(default_spec(shape), kind, (2, 3), False), device)


@pytest.mark.parametrize("shape", [(2, 3, 20, 20), (1, 1, 1000, 1), (700,)], ids=str)
def test_long_sums(device: Device, shape: tuple[int, ...]) -> None:
    axes = tuple(range(len(shape)))[-2:]
    check(ReduceProblem(default_spec(shape), "sum", axes), device)


def test_a_sum_of_nothing_is_zero(device: Device) -> None:
    check(ReduceProblem(default_spec((3, 0, 2)), "sum", (1,)), device)
    with pytest.raises(ValueError, match="has no value"):
        ReduceProblem(default_spec((3, 0, 2)), "max", (1,))


@pytest.mark.parametrize("kind", ["mean", "sum"])
def test_floats_of_16_bits_that_hold_integers_are_summed_to_floats(device: Device,
                                                                   kind: str) -> None:
    problem = ReduceProblem(default_spec((2, 9, 5, 7)), kind, (2, 3), facts=(BYTES,))
    ran = check(problem, device)
    mixed = [variant for _, variant in candidates(problem, device)
             if variant.inputs[0].dtype != variant.outputs[0].dtype]
    assert len(ran) > len(mixed)
    assert bool(mixed) == device.compiles
    assert {variant.precision for variant in mixed} <= {"fp32"}


def test_integers_have_no_variant_twice() -> None:
    problem = ReduceProblem(default_spec((2, 9, 5, 7), "int32"), "sum", (2, 3), facts=(BYTES,))
    variants = list(TreeReduce().variants(problem, find("host")))
    assert len(set(variants)) == len(variants)
