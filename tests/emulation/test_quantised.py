"""Fusions of quantised layers are exact in emulation."""

from __future__ import annotations

import pytest

from gossamer.ops.algorithm import Variant
from tests.emulation.test_faults import Emulate
from tests.ops.fused.test_quantised import FUSIONS, quantised, weights_of
from tests.ops.harness import check


def first_in_float16(variants: list[Variant]) -> list[Variant]:
    return [variant for variant in variants if variant.precision == "fp16"][:1]


@pytest.mark.parametrize("name", FUSIONS)
def test_it_computes_integers(emulate: Emulate, name: str) -> None:
    problem = quantised(FUSIONS[name])
    check(problem, emulate("plain"), weights=weights_of(problem), taken=first_in_float16)
