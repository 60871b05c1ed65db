from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.facts import PLUS_MINUS_ONE, TERNARY, integers
from gossamer.ops.algorithm import Algorithm, Epilogue
from gossamer.ops.gemm.binary import (
    BitTensorCoreGemm,
    HostDirectPopcountGemm,
    PopcountGemm,
)
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from tests.fixtures import is_slow
from tests.ops.conv2d.binary.signs import (
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    EPILOGUES,
    RESIDUAL,
    SCALED,
    check_exact,
)


def check(algorithm: Algorithm, problem: GemmProblem, device: Device, choice: int,
          seed: int) -> None:
    """Fails unless the results of the variant of a number equal those of integer arithmetic."""
    assert algorithm.supports(problem, device) is None
    variants = list(algorithm.variants(problem, device))
    check_exact(algorithm, problem, variants[choice % len(variants)], device, seed)


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    epilogue = draw(st.sampled_from(EPILOGUES))
    known = draw(st.sampled_from([PLUS_MINUS_ONE, TERNARY]))
    return GemmProblem(
        draw(st.sampled_from([0, 1, 3, 17, 40])), draw(st.sampled_from([1, 10, 65])),
        draw(st.sampled_from([1, 63, 64, 200])), epilogue, SCALED,
        (known, *[integers(-4, 4)] * epilogue.tensor_count))


@given(problem=problems(), choice=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=60)
def test_every_bit_of_any_product(problem: GemmProblem, choice: int, seed: int) -> None:
    algorithm = HostDirectPopcountGemm()
    if "llvmlite" in (algorithm.supports(problem, find("host")) or ""):
        pytest.skip("needs llvmlite")
    check(algorithm, problem, find("host"), choice, seed)


@given(problem=problems(), choice=st.integers(0, 19), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_every_bit_of_any_product_on_a_device(compiled_device: Device, problem: GemmProblem,
                                              choice: int, seed: int) -> None:
    if is_slow(compiled_device):
        problem = replace(problem, rows=min(3, problem.rows))
    check(PopcountGemm(), problem, compiled_device, choice, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize("epilogue", [BATCH_NORM_BITS, BATCH_NORM_SIGN, RESIDUAL])
def test_every_tile(compiled_device: Device, epilogue: Epilogue) -> None:
    slow = is_slow(compiled_device)
    problem = GemmProblem(3 if slow else 9, 33, 70, epilogue, SCALED,
                          (TERNARY, *[integers(-4, 4)] * epilogue.tensor_count))
    for choice in range(0, 20, 5 if slow else 2):
        check(PopcountGemm(), problem, compiled_device, choice, choice)


@given(problem=problems(), choice=st.integers(0, 199), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_every_bit_of_any_product_on_tensor_cores(cuda: Device, problem: GemmProblem, choice: int,
                                                  seed: int) -> None:
    check(BitTensorCoreGemm(), problem, cuda, choice, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize("epilogue", [BATCH_NORM_BITS, BATCH_NORM_SIGN, RESIDUAL])
def test_every_form_on_tensor_cores(cuda: Device, epilogue: Epilogue) -> None:
    problem = GemmProblem(9, 36, 1100, epilogue, SCALED,
                          (PLUS_MINUS_ONE, *[integers(-4, 4)] * epilogue.tensor_count))
    chosen = {(variant["instruction"], dict(variant.config).get("copiers"),
               dict(variant.config).get("halo"), variant.outputs):
              variant for variant in BitTensorCoreGemm().variants(problem, cuda)}
    for variant in chosen.values():
        check_exact(BitTensorCoreGemm(), problem, variant, cuda)


def test_the_reason_names_what_is_missing() -> None:
    algorithm, device = HostDirectPopcountGemm(), find("host")
    assert "any floats" in algorithm.supports(GemmProblem(1, 2, 3, weights_info=SCALED), device)
    problem = GemmProblem(1, 2, 3, weights_info=WeightsInfo(), facts=(TERNARY,))
    assert "its weights have different magnitudes" in algorithm.supports(problem, device)
