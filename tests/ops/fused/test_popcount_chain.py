"""Products with matrices of signs, one after another in one kernel."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import Expression, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.popcount_chain import PopcountChain
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import default_spec
from tests.ops.conv2d.binary.signs import (
    BAND_SIGN,
    BATCH_NORM_BITS,
    BATCH_NORM_SIGN,
    RESIDUAL,
    SCALED,
)
from tests.ops.harness import check_every_bit
from tests.ops.recording import RecordingDevice, check_kernels_build

SIGN = apply("sign")
LINEAR = Epilogue(apply("mul").then(apply("add")), ("channel", "channel"))
LFC = ([784, 1024, 1024, 1024, 10], [BATCH_NORM_SIGN] * 3 + [LINEAR])


def chain(sizes: list[int], epilogues: list[Epilogue], *, rows: int = 1,
          known: ValueFacts = TERNARY, signs: Expression | None = None) -> FusionProblem:
    """Return products from sizes[0] numbers to sizes[-1], behind `signs` of floats."""
    parts, sources = [], []
    if signs is not None:
        parts.append(ElementwiseProblem((default_spec((rows, sizes[0])),), signs))
        sources.append((entry(0),))
    for depth, columns, epilogue in zip(sizes[:-1], sizes[1:], epilogues, strict=True):
        sources.append((entry(0) if not parts else (len(parts) - 1, 0),
                        *[entry(1)] * epilogue.tensor_count))
        parts.append(GemmProblem(rows, columns, depth, epilogue, SCALED, (known,)))
        known = PLUS_MINUS_ONE if epilogue == BATCH_NORM_BITS else TERNARY
    return FusionProblem(tuple(parts), tuple(sources), ((len(parts) - 1, 0),))


@st.composite
def chains(draw: st.DrawFn) -> FusionProblem:
    count = draw(st.integers(2, 4))
    sizes = [draw(st.sampled_from([1, 31, 64, 70, 200])) for _ in range(count + 1)]
    hidden = st.sampled_from([BATCH_NORM_SIGN, BATCH_NORM_BITS, BAND_SIGN])
    epilogues = [draw(hidden) for _ in range(count - 1)]
    epilogues.append(draw(st.sampled_from([LINEAR, Epilogue(), BATCH_NORM_SIGN, BATCH_NORM_BITS])))
    signs = draw(st.sampled_from([None, SIGN]))
    known = TERNARY if signs else draw(st.sampled_from([TERNARY, PLUS_MINUS_ONE]))
    return chain(sizes, epilogues, rows=draw(st.sampled_from([0, 1, 3])), known=known, signs=signs)


def arrays_of(problem: FusionProblem, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return weights of plus and minus a power of 2 a column, with scales of both signs and 0."""
    arrays = {}
    for name, shape in problem.weight_shapes.items():
        if name.endswith("weight"):
            alpha = rng.choice(np.float32([0.25, 1, 2]), (shape[0], 1))
            arrays[name] = rng.choice(np.float32([-1, 1]), shape) * alpha
        else:
            arrays[name] = rng.choice(np.float32([-1.5, -0.25, 0, 1, 3]), shape)
    return arrays


def check(problem: FusionProblem, variant: Variant, device: Device, seed: int = 0) -> None:
    """Fails unless the results of a variant equal those of integer arithmetic, every bit."""
    assert PopcountChain().supports(problem, device) is None
    rng = np.random.default_rng(seed)
    arrays = arrays_of(problem, rng)
    inputs = problem.example_inputs(rng)
    if problem.parts[0].op == "elementwise":
        inputs = [rng.choice(np.float32([-2.5, -0.0, 0, 1e-30, 3]), inputs[0].shape)]
    check_every_bit(PopcountChain(), problem, variant, device, arrays, inputs)


@given(problem=chains(), choice=st.integers(0, 99), seed=st.integers(0, 99))
@settings(max_examples=12)
def test_every_bit_of_any_chain(cuda: Device, problem: FusionProblem, choice: int,
                                seed: int) -> None:
    variants = list(PopcountChain().variants(problem, cuda))
    check(problem, variants[choice % len(variants)], cuda, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize("signs", [None, SIGN], ids=["words", "floats"])
def test_the_network_of_digits(cuda: Device, signs: Expression | None) -> None:
    """lfc_w1a1_mnist has these products."""
    problem = chain(*LFC, rows=2, signs=signs)
    for variant in PopcountChain().variants(problem, cuda):
        check(problem, variant, cuda)


@pytest.mark.slow
def test_it_builds_without_spills() -> None:
    check_kernels_build(
        PopcountChain(), (chain(*LFC, signs=SIGN), chain([70] * 3, [BAND_SIGN, BATCH_NORM_BITS])),
        arrays=lambda problem: arrays_of(problem, np.random.default_rng(0)))


@pytest.mark.parametrize(("problem", "reason"), [
    (chain([8, 8, 8], [LINEAR, LINEAR], known=REAL), "possible values: any floats"),
    (chain([8, 8, 8], [LINEAR, LINEAR], signs=apply("abs")), "does not compute signs"),
    (chain([8, 8, 8], [RESIDUAL, LINEAR]), "only the result of the previous layer"),
    (replace(chain([8, 8, 8], [BATCH_NORM_SIGN] * 2), exits=((0, 0), (1, 0))), "layers outside"),
    (chain([1, 8, 1], [BATCH_NORM_SIGN] * 2, rows=2**28), "at most 268435455 rows"),
    (chain([4096] * 4, [BATCH_NORM_SIGN] * 3), "bytes of shared memory")])
def test_other_chains_are_refused(problem: FusionProblem, reason: str) -> None:
    assert reason in (PopcountChain().supports(problem, RecordingDevice()) or "")


def test_weights_that_are_no_signs_are_refused() -> None:
    problem = chain([8, 8, 8], [BATCH_NORM_SIGN] * 2)
    parts = (problem.parts[0], replace(problem.parts[1], weights_info=WeightsInfo()))
    reason = PopcountChain().supports(replace(problem, parts=parts), RecordingDevice())
    assert reason is not None and "its weights have different magnitudes" in reason
