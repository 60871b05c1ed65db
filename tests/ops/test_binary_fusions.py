"""Convolutions of signs with the padding before them and the signs behind them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import Expression, apply
from gossamer.facts import (
    NONNEGATIVE,
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    integers,
)
from gossamer.ops.algorithm import Epilogue, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.binary import (
    BinaryFusion,
    BitTensorCoreFusion,
    HostDirectPopcountFusion,
    PopcountFusion,
)
from gossamer.ops.fused.problem import FusionProblem, entry
from gossamer.ops.pad.problem import PadProblem
from gossamer.tensor import TensorSpec, default_spec
from tests.fixtures import is_slow
from tests.ops.conv2d.binary.signs import (
    ABOVE,
    BATCH_NORM_SIGN,
    EPILOGUES,
    RESIDUAL,
    SCALED,
    weights_of,
)
from tests.ops.harness import check_every_bit
from tests.ops.recording import RecordingDevice

PLAIN = Epilogue()
SIGNS = [ABOVE, apply("sub").then(apply("sign"))]


def fusion(known: ValueFacts, epilogue: Epilogue = PLAIN, *, pad: float | None = None,
           pads: tuple[int, int, int, int] = (1, 0, 2, 1), own: int = 0, batch: int = 1,
           channels: int = 40, out_channels: int = 33, groups: int = 1, size: int = 5,
           signs: Expression | None = None) -> FusionProblem:
    """Return a convolution of signs, padded by `pad`, with `signs` after it."""
    shape = (batch, channels * groups, size, size + 1)
    parts, sources = [], []
    height, width = shape[2:]
    if pad is not None:
        parts.append(PadProblem(default_spec(shape), (0, 0, *pads[:2], 0, 0, *pads[2:]), "constant",
                                pad, (known,)))
        sources.append((entry(0),))
        height, width = parts[0].outputs[0].shape[2:]
        known = TERNARY if pad == 0 else known
    convolution = Conv2dProblem(
        batch, shape[1], height, width, out_channels * groups, (3, 2), (1, 2), (own,) * 4, (2, 1),
        groups, epilogue, SCALED, (known, *[integers(-4, 4)] * epilogue.tensor_count))
    parts.append(convolution)
    sources.append(((0, 0) if pad is not None else entry(0),
                    *[entry(1)] * epilogue.tensor_count))
    exits = [(len(parts) - 1, 0)]
    if signs is not None:
        y = convolution.outputs[0]
        parts.append(ElementwiseProblem((y, default_spec((1, y.shape[1], 1, 1))), signs,
                                        constants=(1,)))
        sources.append((exits[0],))
        exits.append((len(parts) - 1, 0))
    return FusionProblem(tuple(parts), tuple(sources), tuple(exits))


@st.composite
def fusions(draw: st.DrawFn) -> FusionProblem:
    signs = draw(st.sampled_from([None, *SIGNS]))
    pad = draw(st.sampled_from([-1.0, 0.0, 1.0] if signs is None else [None, -1.0, 0.0, 1.0]))
    return fusion(
        draw(st.sampled_from([PLUS_MINUS_ONE, TERNARY])), draw(st.sampled_from(EPILOGUES)), pad=pad,
        pads=tuple(draw(st.integers(0, 2)) for _ in range(4)),
        own=draw(st.integers(0, 1)) if not pad else 0, batch=draw(st.sampled_from([0, 1, 2])),
        channels=draw(st.sampled_from([1, 3, 33, 64, 70])),
        out_channels=64 if signs is not None else draw(st.sampled_from([5, 33, 64])),
        groups=draw(st.sampled_from([1, 1, 2])), signs=signs)


def check_exact(algorithm: BinaryFusion, problem: FusionProblem, device: Device, choice: int,
                seed: int) -> None:
    """Compare the variant of a number with integer arithmetic."""
    assert algorithm.supports(problem, device) is None
    variants = list(algorithm.variants(problem, device))
    if is_slow(device):
        variants = variants[-6:]
    check_variant(algorithm, problem, variants[choice % len(variants)], device, seed)


def check_variant(algorithm: BinaryFusion, problem: FusionProblem, variant: Variant, device: Device,
                  seed: int = 0) -> None:
    """Compare every bit of a variant with integer arithmetic."""
    rng = np.random.default_rng(seed)
    index = next(i for i, part in enumerate(problem.parts) if isinstance(part, Conv2dProblem))
    arrays = {f"{index}.{name}": array
              for name, array in weights_of(problem.parts[index], rng).items()}
    for name, shape in problem.weight_shapes.items():
        if name not in arrays:
            arrays[name] = rng.choice(np.float32([-6, -0.5, 0, 1, 7]), shape)
    inputs = problem.example_inputs(rng)
    check_every_bit(algorithm, problem, variant, device, arrays, inputs)


@pytest.mark.slow
@given(problem=fusions(), choice=st.integers(0, 3), seed=st.integers(0, 99))
@settings(max_examples=80)
def test_every_bit_of_any_fusion(problem: FusionProblem, choice: int, seed: int) -> None:
    algorithm = HostDirectPopcountFusion()
    if algorithm.supports(problem, find("host")) is None:
        check_exact(algorithm, problem, find("host"), choice, seed)


@given(problem=fusions(), choice=st.integers(0, 83), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_every_bit_of_any_fusion_on_a_device(quick_compiled: Device, problem: FusionProblem,
                                             choice: int, seed: int) -> None:
    check_exact(PopcountFusion(), problem, quick_compiled, choice, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
@pytest.mark.parametrize(("pad", "signs"), [(1.0, None), (-1.0, ABOVE), (None, SIGNS[1])])
def test_every_form(compiled_device: Device, known: ValueFacts, pad: float | None,
                    signs: Expression | None) -> None:
    slow = is_slow(compiled_device)
    problem = fusion(known, RESIDUAL if signs else BATCH_NORM_SIGN, pad=pad, signs=signs,
                     size=4 if slow else 5, pads=(0, 0, 1, 1))
    for choice in (3,) if slow else range(0, 84, 40):
        check_exact(PopcountFusion(), problem, compiled_device, choice, choice)


@given(problem=fusions(), choice=st.integers(0, 199), seed=st.integers(0, 99))
@settings(max_examples=40)
def test_every_bit_of_any_fusion_on_tensor_cores(cuda: Device, problem: FusionProblem, choice: int,
                                                 seed: int) -> None:
    assume(BitTensorCoreFusion().supports(problem, cuda) is None)
    check_exact(BitTensorCoreFusion(), problem, cuda, choice, seed)


@pytest.mark.sanitize
@pytest.mark.parametrize("known", [PLUS_MINUS_ONE, TERNARY], ids=["bits", "trits"])
@pytest.mark.parametrize(("pad", "signs"), [(1.0, None), (-1.0, ABOVE), (None, SIGNS[1])])
def test_every_form_on_tensor_cores(cuda: Device, known: ValueFacts, pad: float | None,
                                    signs: Expression | None) -> None:
    algorithm = BitTensorCoreFusion()
    for out_channels, precision in ((36, "fp32"), (40, "fp16")):
        problem = fusion(known, RESIDUAL if signs else BATCH_NORM_SIGN, pad=pad, signs=signs,
                         out_channels=out_channels, pads=(0, 0, 1, 1))
        chosen = {(variant["instruction"], dict(variant.config).get("copiers"),
                   dict(variant.config).get("halo"), variant.outputs):
                  variant for variant in algorithm.variants(problem, cuda)
                  if variant.precision == precision}
        assert chosen
        for variant in list(chosen.values())[::2]:
            check_variant(algorithm, problem, variant, cuda)


@pytest.mark.parametrize(("problem", "reason"), [
    (fusion(PLUS_MINUS_ONE, pad=2.0), "padding of rows and columns with -1, 0 or 1"),
    (fusion(PLUS_MINUS_ONE, pad=0.5), "padding of rows and columns with -1, 0 or 1"),
    (fusion(PLUS_MINUS_ONE, pad=1.0, pads=(-1, 0, 0, 0)), "rows and columns with -1, 0 or 1"),
    (fusion(PLUS_MINUS_ONE, pad=1.0, own=1), "pads with 0, and the layer before it with 1"),
    (fusion(integers(-2, 2), pad=1.0), "possible values: -2 to 2 "),
    (fusion(PLUS_MINUS_ONE, signs=apply("add")), "second result is not known to be -1, 0 or 1"),
    (replace(fusion(PLUS_MINUS_ONE, pad=1.0), exits=((0, 0), (1, 0))), "read the padded image"),
    (replace(fusion(PLUS_MINUS_ONE, signs=ABOVE), exits=((1, 0),)),
     "do not read both results")])
def test_other_fusions_are_refused(problem: FusionProblem, reason: str) -> None:
    assert reason in (HostDirectPopcountFusion().supports(problem, find("host")) or "")


def test_fusions_of_any_numbers_are_not_recognised() -> None:
    for known in (REAL, NONNEGATIVE):
        assert not PopcountFusion().recognises(fusion(known, pad=0.0, signs=ABOVE))
    assert PopcountFusion().recognises(fusion(TERNARY, pad=0.0, signs=ABOVE))


def test_signs_of_other_operands_are_refused() -> None:
    problem = fusion(PLUS_MINUS_ONE, signs=ABOVE)
    convolution, signs = problem.parts
    y, _ = signs.operands
    pixels = TensorSpec((1, *y.shape[1:]), y.format)
    two = (problem.sources[0], ((0, 0), entry(1)))
    for other, sources, reason in (
            (replace(signs, operands=(y, pixels)), problem.sources,
             "needs constants with one number per channel"),
            (replace(signs, operands=(y, y), constants=()), two, "tensors other than the sum")):
        refused = FusionProblem((convolution, other), sources, problem.exits)
        assert reason in (HostDirectPopcountFusion().supports(refused, find("host")) or "")


def test_words_of_several_groups_are_refused_on_devices(compiled_device: Device) -> None:
    problem = fusion(PLUS_MINUS_ONE, signs=ABOVE, groups=2, out_channels=32)
    assert "channels of several groups" in PopcountFusion().supports(problem, compiled_device)


def test_words_of_several_groups_are_refused_on_tensor_cores() -> None:
    problem = fusion(PLUS_MINUS_ONE, signs=ABOVE, groups=2, channels=64, out_channels=48)
    reason = BitTensorCoreFusion().supports(problem, RecordingDevice())
    assert reason == "a word of the second result would have channels of several groups"
    # words of 32 bits have whole groups, words of 64 have not
    problem = fusion(PLUS_MINUS_ONE, signs=ABOVE, groups=2, channels=64, out_channels=32)
    found = list(BitTensorCoreFusion().variants(problem, RecordingDevice()))
    assert {variant.outputs[1].layout for variant in found} == {"packed32"}
