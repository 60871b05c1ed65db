"""Arithmetic with the moves around it as one kernel, on the GPU where there is one;
tests/emulation/test_fusions.py runs the kernel as CUDA has it anywhere."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer.device.base import Device
from gossamer.expression import Composer
from gossamer.ops.algorithm import Variant
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import slice_
from gossamer.ops.fused.gather_expression import GatherExpressionFusion
from gossamer.ops.fused.problem import FusionProblem, Source
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.tensor import default_spec
from tests.ops.fused.layers import Layers, operand
from tests.ops.harness import check_variants, one_layout_a_config, random_weights
from tests.ops.recording import check_kernels_build

ALGORITHM = GatherExpressionFusion()


def joined(p: Layers, axis: int, *values: Source) -> Source:
    return p.add(ConcatProblem(tuple(map(p.spec, values)), axis), *values)


def rotary(batch: int, heads: int, tokens: int, dim: int) -> FusionProblem:
    """A rotary position embedding of all tokens but the first one: pairs of neighbouring numbers
    are rotated."""
    p = Layers()
    x = p.transpose(p.reshape(p.input((batch, tokens, heads * dim)), batch, tokens, heads, dim),
                    0, 2, 1, 3)
    first, rest = p.slice(x, 2, 0, 1), p.slice(x, 2, 1, tokens)
    odd, even = (p.add(slice_(p.spec(rest), [start], [dim], [3], [2]), rest) for start in (1, 0))
    pairs = joined(p, 4, *(p.reshape(value, batch, heads, tokens - 1, dim // 2, 1)
                           for value in (p.compute(-operand("x"), x=odd), even)))
    turned = p.reshape(pairs, batch, heads, tokens - 1, dim)
    composer = Composer()
    a, b = map(composer.operand, ("a", "b"))
    rest = p.compute(a * "cosines" + b * "sines", a=rest, b=turned, cosines=(1, 1, tokens - 1, dim),
                     sines=(1, tokens - 1, dim))
    return p.fusion(joined(p, 2, first, rest))


def gated(batch: int, tokens: int, channels: int) -> FusionProblem:
    """A gated linear unit: one half of the channels times the sigmoid of the other half."""
    p = Layers()
    x = p.input((batch, tokens, 2 * channels))
    a, b = p.slice(x, 2, 0, channels), p.slice(x, 2, channels, 2 * channels)
    return p.fusion(p.compute(operand("b").apply("sigmoid") * "a", a=a, b=b))


def shuffled(batch: int, channels: int, size: int) -> FusionProblem:
    """The sum of one image with two that are concatenated and whose channels are interleaved."""
    p = Layers()
    parts = [p.input((batch, channels, size, size)) for _ in range(2)]
    x = p.reshape(joined(p, 1, *parts), batch, 2, channels, size, size)
    x = p.reshape(p.transpose(x, 0, 2, 1, 3, 4), batch, 2 * channels, size, size)
    y = p.input((batch, 2 * channels, size, size))
    return p.fusion(p.compute(operand("a") + "b", a=x, b=y))


def overlapping(batch: int, channels: int) -> FusionProblem:
    """Two windows of six pixels in each row of four, with zeros around it."""
    p = Layers()
    x = p.input((batch, channels, 3, 4))
    x = p.add(PadProblem(p.spec(x), (0, 0, 1, 2, 0, 0, 1, 2)), x)
    x = p.add(GatherProblem(p.spec(x), default_spec((2, 6), "int64"), 3, (1,)), x)
    x = p.reshape(p.transpose(x, 0, 3, 2, 4, 1), batch * 2, 5 * 6, channels)
    return p.fusion(p.slice(x, 2, 1, channels))


def resized(batch: int, channels: int, mode: str) -> FusionProblem:
    """The sum of an image and a smaller one that is padded and resized."""
    p = Layers()
    x, y = p.input((batch, channels, 3, 4)), p.input((batch, channels, 8, 7))
    x = p.add(PadProblem(p.spec(x), (0, 0, 0, 1, 0, 0, 1, 0)), x)
    x = p.add(ResizeProblem(p.spec(x), (8, 7), (2.0, 1.4), mode), x)
    return p.fusion(p.compute(operand("a") - "b", a=x, b=y))


PROBLEMS = {"rotary": rotary(2, 3, 5, 8), "gated": gated(2, 7, 12), "shuffled": shuffled(2, 6, 5),
            "gated, many": gated(5, 600, 96), "overlapping": overlapping(2, 5),
            "nearest": resized(2, 3, "nearest"), "linear": resized(2, 3, "linear")}


def check(problem: FusionProblem, device: Device, variants: list[Variant]) -> None:
    """Compare variants with the reference; some indices are negative, or out of range."""
    weights = random_weights(problem)
    for index, part in enumerate(problem.parts):
        if isinstance(part, GatherProblem):
            name, length = f"{index}.operand1", part.data.shape[part.axis]
            weights[name] = np.round(weights[name] * length).astype(np.int64)
    check_variants(ALGORITHM, problem, device, variants, weights)


@pytest.mark.parametrize("name", PROBLEMS)
def test_known_forms(compiled_device: Device, name: str) -> None:
    problem = PROBLEMS[name]
    assert ALGORITHM.recognises(problem)
    check(problem, compiled_device,
          one_layout_a_config(list(ALGORITHM.variants(problem, compiled_device))))


def test_kernels_build() -> None:
    check_kernels_build(ALGORITHM, [rotary(1, 3, 257, 64), gated(64, 257, 512),
                                    shuffled(64, 58, 28)])


def test_too_many_loads_are_left_to_layers() -> None:
    p = Layers()
    x = p.input((4, 6))
    for _ in range(6):
        # each value is read at two places
        x = p.compute(operand("a") + "b", a=x, b=p.transpose(p.reshape(x, 6, 4), 1, 0))
    assert not ALGORITHM.recognises(p.fusion(x))


def test_discontinuous_arithmetic_is_left_to_layers() -> None:
    p = Layers()
    x = p.slice(p.input((4, 6)), 1, 2, 5)
    assert not ALGORITHM.recognises(p.fusion(p.compute(operand("x").apply("floor"), x=x)))


def random_fusion(rng: np.random.Generator) -> FusionProblem:
    """Moves and arithmetic in any order, of one to three inputs; every value is used."""
    p = Layers()
    values = [p.input(tuple(int(size) for size in rng.integers(1, 6, rng.integers(1, 5))))
              for _ in range(rng.integers(1, 4))]

    def moved(x: Source) -> Source:
        shape = p.spec(x).shape
        axis = int(rng.integers(len(shape)))
        match rng.integers(6):
            case 0:
                return p.transpose(x, *map(int, rng.permutation(len(shape))))
            case 1:
                start, end = sorted(map(int, rng.permutation(shape[axis] + 1)[:2]))
                step = int(rng.integers(1, 3))
                if rng.integers(2):
                    start, end, step = end - 1, start - 1 if start else -shape[axis] - 1, -step
                return p.add(slice_(p.spec(x), [start], [end], [axis], [step]), x)
            case 2:
                factors = [size for size in (2, 3, 5) if shape[axis] % size == 0] or [1]
                inner = int(rng.choice(factors))
                wanted = [*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1:]]
                start = int(rng.integers(len(wanted) - 1))
                joins = bool(rng.integers(2)) or len(wanted) > 5
                return p.reshape(x, *([*wanted[:start], wanted[start] * wanted[start + 1],
                                       *wanted[start + 2:]] if joins else wanted))
            case 3:
                # negative pads crop
                pads = rng.integers(-1, 3, (2, len(shape)))
                pads[:, [size < 3 for size in shape]] = 0
                return p.add(PadProblem(p.spec(x), tuple(map(int, pads.ravel())), value=0.5), x)
            case 4:
                indices = default_spec(tuple(map(int, rng.integers(1, 3, rng.integers(3)))),
                                       "int64")
                if len(shape) + len(indices.shape) > 6:
                    return x
                return p.add(GatherProblem(p.spec(x), indices, axis, (1,)), x)
            case _:
                return p.expand(x, (int(rng.integers(1, 4)), *shape)) if len(shape) < 5 else x

    for _ in range(rng.integers(2, 8)):
        index = int(rng.integers(len(values)))
        x = values[index]
        shape = p.spec(x).shape
        if not shape:
            continue
        match rng.integers(5):
            case 0:
                values[index] = p.compute(operand("x").apply("tanh") * 2.0, x=x)
            case 1:
                constant = tuple(int(rng.choice([1, size])) for size in shape)
                constant = constant if len(constant) != 2 else (1, *constant)
                values[index] = p.compute(operand("x") * "y", x=x, y=constant)
            case 2:
                other = moved(x)
                axis = int(rng.integers(len(shape)))
                fits = len(p.spec(other).shape) == len(shape) and all(
                    a == b for dim, (a, b) in enumerate(zip(
                        p.spec(other).shape, shape, strict=True)) if dim != axis)
                parts = [x, other] if fits else [x, x]
                values[index] = joined(p, axis, *[parts[i] for i in rng.permutation(2)])
                if not fits:
                    values.append(other)
            case _:
                values[index] = moved(x)
    # all values as one tensor
    flat = [p.reshape(x, p.spec(x).size) for x in values]
    return p.fusion(p.compute(operand("x") + 1.0, x=joined(p, 0, *flat)))


@settings(max_examples=8)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_fusion(compiled_device: Device, seed: int) -> None:
    problem = random_fusion(np.random.default_rng(seed))
    if ALGORITHM.recognises(problem):
        variants = list(ALGORITHM.variants(problem, compiled_device))
        check(problem, compiled_device, variants[seed % len(variants):][:1])
