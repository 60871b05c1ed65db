"""Precisions that change nothing for the values of a problem."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import apply, identity
from gossamer.facts import (
    BYTES,
    NARROW,
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    in_float16,
    integers,
)
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.conv2d.dense.winograd import Winograd
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.plan.lower.state import shared_facts
from gossamer.tensor import default_spec

INTEGERS = WeightsInfo(facts=integers(-127, 127))
CONV = Conv2dProblem(2, 8, 6, 6, 4, (3, 3), weights_info=INTEGERS, facts=(integers(-100, 155),),
                     result=integers(0, 255))
SPEC = default_spec((2, 8, 6, 6))


@pytest.mark.parametrize(("change", "precision"), [
    ({}, "fp16"), ({"result": REAL}, "tf32"), ({"result": integers(0, 4096)}, "tf32"),
    ({"facts": ()}, "fp32"), ({"facts": (integers(-4000, 100),)}, "fp32"),
    ({"facts": (ValueFacts(-1.0, 1.0, 0.25),)}, "fp32"),
    ({"weights_info": WeightsInfo()}, "fp32"), ({"facts": (PLUS_MINUS_ONE,)}, "fp16"),
    ({"facts": (BYTES, REAL), "epilogue": Epilogue(apply("add"), ("tensor",))}, "tf32"),
    ({"facts": (BYTES, BYTES), "epilogue": Epilogue(apply("add"), ("tensor",))}, "fp16")])
def test_products_of_integers(change: dict[str, object], precision: str) -> None:
    assert replace(CONV, **change).exact_precision == precision  # type: ignore[arg-type]


def test_products_of_matrices_and_values_that_are_moved() -> None:
    known = (integers(-9, 9),)
    product = GemmProblem(3, 4, 5, weights_info=INTEGERS, facts=known, result=integers(0, 9))
    assert (product.exact_precision, product.sums_integers) == ("fp16", True)
    assert not replace(product, facts=(REAL,)).sums_integers
    assert not replace(product, weights_info=WeightsInfo()).sums_integers
    assert PoolProblem(SPEC, "max", (2, 2), facts=known).exact_precision == "fp16"
    assert PoolProblem(SPEC, "average", (2, 2), facts=known).exact_precision == "fp32"
    assert ConcatProblem((SPEC, SPEC), 1, known * 2).exact_precision == "fp16"
    assert ConcatProblem((SPEC, SPEC), 1, (*known, REAL)).exact_precision == "fp32"
    rounding = ElementwiseProblem((SPEC,), apply("round"), result=integers(0, 9))
    assert rounding.exact_precision == "fp16"
    assert replace(rounding, facts=(REAL,)).exact_precision == "fp32"
    assert ElementwiseProblem((SPEC,), identity()).exact_precision == "fp32"


def test_layers_share_what_is_known_of_their_values() -> None:
    assert shared_facts(integers(-100, 155)) == shared_facts(integers(0, 255)) == BYTES
    assert shared_facts(integers(-1000, 3)) == NARROW
    assert shared_facts(integers(0, 5000)) == integers(0, 5000)
    for few in (PLUS_MINUS_ONE, TERNARY, integers(0, 1), ValueFacts(-1.0, 1.0, 0.25)):
        assert shared_facts(few) == few
    assert shared_facts(ValueFacts(0.0, 1.0)) == REAL


def test_sums_of_integers_are_not_transformed(compiled_device: Device) -> None:
    assert Winograd().supports(replace(CONV, facts=()), compiled_device) is None
    assert "round sums of integers" in (Winograd().supports(CONV, compiled_device) or "")
    # cuDNN is asked for exact algorithms by the same property
    assert CONV.sums_integers and not replace(CONV, facts=()).sums_integers


@pytest.mark.parametrize("largest", [255, 2047, 2048, 2049, 2050, 4096])
def test_integers_are_exact_in_float16_where_it_has_all_of_them(largest: int) -> None:
    values = np.arange(-largest, largest + 1)
    is_exact = bool((values.astype(np.float16).astype(np.float64) == values).all())
    known = integers(-largest, 3)
    assert in_float16(known) == is_exact
    assert replace(CONV, facts=(known,)).exact_precision == ("fp16" if is_exact else "fp32")
