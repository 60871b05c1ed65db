"""Convolutions that are drawn from a seed, with sizes at and beside the bounds of tiles, and their
constants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.weights import WeightsInfo
from tests.ops.conv2d.binary import signs

EPILOGUES = (
    Epilogue(), Epilogue(), Epilogue(apply("relu")), Epilogue(apply("add"), ("channel",)),
    Epilogue(apply("add"), ("tensor",)),
    Epilogue(apply("add").then(apply("relu")), ("channel",)),
    Epilogue(apply("add").then(apply("clip", 0.0, 6.0)), ("channel",)),
    Epilogue(apply("add").then(apply("add")).then(apply("relu")), ("channel", "tensor")),
    Epilogue(apply("add").then(apply("add")).then(apply("relu")), ("tensor", "channel")),
    Epilogue(apply("mul").then(apply("prelu")).then(apply("leaky_relu", 0.1)),
             ("channel", "channel")),
    Epilogue(Expression(3, (ExpressionStep("leaky_relu", (0,), (0.1,)),
                            ExpressionStep("mul", (3, 2)), ExpressionStep("add", (4, 1)))),
             ("tensor", "channel")),
    Epilogue(Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("sigmoid", (2,)),
                            ExpressionStep("mul", (2, 3)))), ("channel",)),
    Epilogue(apply("add").then(apply("add")).then(apply("tanh")).then(apply("abs")),
             ("tensor", "tensor")))
_MOST_WEIGHTS = 40_000
"""The most weights with which a layer is prepared."""
_SHORT = (*range(1, 10), 11, 12, 13, 15, 16, 17, 24, 31, 32, 33)
_LONG = (*_SHORT, 40, 47, 48, 49, 63, 64, 65, 80, 95, 96, 97, 112, 127, 128, 129, 160, 192, 255,
         256, 257, 320, 384, 512)
_BATCHES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64)
_IMAGES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 13, 14, 15, 16, 17, 27, 28, 29, 32, 33, 56, 112)


@dataclass(frozen=True)
class Drawn:
    """A layer.

    problem: the convolution.
    arrays: the constants; None where the layer is too large to prepare it.
    """

    problem: Conv2dProblem
    arrays: Mapping[str, np.ndarray] | None


def numbers(shape: Sequence[int], seed: int) -> np.ndarray:
    """Returns float32 numbers of both signs, none of them 0, that float16 and TF32 round; the same
    on every machine."""
    rng = np.random.default_rng(seed)
    return (rng.integers(1, 2**23, shape) * rng.choice([-1, 1], shape) / 2**20).astype(np.float32)


def with_arrays(problem: Conv2dProblem, seed: int,
                change: Callable[[np.ndarray], np.ndarray] = lambda weight: weight) -> Drawn:
    """Returns the problem with constants, and with the facts about them. change: changes the
    weights."""
    shapes = problem.weight_shapes
    if np.prod(shapes["weight"]) > _MOST_WEIGHTS:
        return Drawn(problem, None)
    arrays = {name: numbers(shape, seed + index)
              for index, (name, shape) in enumerate(shapes.items())}
    arrays["weight"] = weight = change(arrays["weight"]).astype(np.float32)
    density = np.count_nonzero(weight) / weight.size
    fours = np.add.reduceat(weight != 0, np.arange(0, weight.shape[1], 4), axis=1, dtype=np.uint8)
    info = replace(problem.weights_info, density=density, mask_hash="" if density == 1 else "mask",
                   crowded=1.0 if density == 1 else np.count_nonzero(fours > 2) / fours.size)
    return Drawn(replace(problem, weights_info=info), arrays)


def _pair(rng: random.Random, choices: Sequence[int]) -> tuple[int, int]:
    first = rng.choice(choices)
    return first, first if rng.random() < 0.6 else rng.choice(choices)


def geometry(rng: random.Random, *, short: bool, kernel: tuple[int, int] | None = None,
             groups: int = 0) -> Conv2dProblem:
    """Returns any convolution whose output has at least one pixel. short: whether it has few
    channels and small images. kernel: the window. groups: the number of groups, 0 for any."""
    sizes = _SHORT if short else _LONG
    while True:
        window = kernel or _pair(rng, (1, 2, 3, 3, 3, 4, 5, 7))
        stride = _pair(rng, (1, 1, 1, 2, 2, 3))
        dilation = _pair(rng, (1, 1, 1, 1, 2, 3))
        divided = groups or rng.choice((1, 1, 1, 1, 2, 3, 4))
        pads = tuple(rng.choice((0, 0, 1, 1, 2, 3)) for _ in range(4))
        if rng.random() < 0.3:
            pads = (pads[0],) * 4
        if window == (1, 1) and rng.random() < 0.6:
            pads, stride = (0,) * 4, (1, 1)
        height, width = _pair(rng, _IMAGES[:14] if short else _IMAGES)
        problem = Conv2dProblem(
            rng.choice(_BATCHES), divided * rng.choice(sizes), height, width,
            divided * rng.choice(sizes), window, stride, pads, dilation, divided,
            rng.choice(EPILOGUES))
        if min(problem.out_height, problem.out_width) >= 1 and (
                problem.batch * problem.height * problem.width <= 50_000) and (
                problem.out_channels * problem.depth <= _MOST_WEIGHTS or rng.random() < 0.05):
            return problem


def dense(count: int, seed: int) -> Iterator[Drawn]:
    """Yields layers with all kinds of windows: pointwise ones, 3 x 3 ones without stride, first
    layers with few channels, depthwise ones, and any other."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind, short = number % 6, rng.random() < 0.5
        if kind == 0:
            problem = geometry(rng, short=short, kernel=(1, 1))
        elif kind == 1:
            problem = replace(geometry(rng, short=short, kernel=(3, 3), groups=1), stride=(1, 1),
                              dilation=(1, 1))
        elif kind == 2:
            problem = replace(geometry(rng, short=short, groups=1), channels=rng.choice((1, 3, 4)))
        elif kind == 3:
            groups = rng.choice(_LONG[1:])
            problem = replace(geometry(rng, short=True, groups=1), channels=groups, groups=groups,
                              out_channels=groups * rng.choice((1, 1, 1, 2, 3)))
        else:
            problem = geometry(rng, short=short)
        if rng.random() < 0.2:
            problem = replace(problem, facts=(integers(0, 255),) * len(problem.inputs),
                              weights_info=WeightsInfo(facts=integers(-127, 127)),
                              result=rng.choice((REAL, integers(0, 255))))
        yield with_arrays(problem, number)


def sparse(count: int, seed: int) -> Iterator[Drawn]:
    """Yields layers whose weights were pruned: at random, to two of four channels, in whole rows,
    or to nothing."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        problem = replace(
            geometry(rng, short=rng.random() < 0.6,
                     kernel=rng.choice(((1, 1), (3, 3), (3, 3), (5, 5), (2, 3), None))),
            batch=rng.choice((1, 1, 2, 3, 4, 5, 8, 8, 9, 12, 16, 24, 32, 33, 64)))
        density = rng.choice((0.0, 0.02, 0.05, 0.1, 0.1, 0.15, 0.2, 0.25, 0.29, 0.45, 0.55, 0.8))

        def pruned(weight: np.ndarray, kind: int = number % 5, density: float = density,
                   seed: int = number) -> np.ndarray:
            drawn = np.random.default_rng(seed).random(weight.shape)
            if kind == 0:
                fours = np.arange(weight.shape[1]) // 4
                smaller = [np.count_nonzero(np.moveaxis(
                    drawn < drawn[:, channel:channel + 1], 1, -1) & (fours == four), axis=-1)
                           for channel, four in enumerate(fours)]
                return np.where((np.stack(smaller, axis=1) < 2) & (drawn < 0.9), weight, 0)
            if kind == 1:
                drawn = np.sort(drawn.reshape(-1)).reshape(weight.shape)
            return np.where(drawn < density, weight, 0)

        yield with_arrays(problem, number, pruned)


def binary(count: int, seed: int) -> Iterator[Drawn]:
    """Yields convolutions of signs."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        problem = geometry(rng, short=False, groups=rng.choice((1, 1, 1, 2, 3, 4)))
        groups = problem.groups
        known: ValueFacts = rng.choice((PLUS_MINUS_ONE, PLUS_MINUS_ONE, TERNARY, integers(0, 1),
                                        integers(-1, 0)))
        epilogue = rng.choice(signs.EPILOGUES)
        problem = replace(
            problem, channels=groups * rng.choice((1, 8, 31, 32, 33, 63, 64, 65, 96, 128, 192)),
            out_channels=groups * rng.choice((1, 7, 8, 9, 31, 32, 33, 64, 65, 96, 128)),
            epilogue=epilogue, weights_info=WeightsInfo(
                scaled_signs=rng.random() < 0.95, facts=rng.choice((REAL, PLUS_MINUS_ONE))),
            facts=(known, *[rng.choice((REAL, integers(-4, 4), integers(-4000, 4000)))]
                   * epilogue.tensor_count),
            result=rng.choice((REAL, REAL, PLUS_MINUS_ONE, TERNARY)))
        if np.prod(problem.weight_shapes["weight"]) > _MOST_WEIGHTS:
            yield Drawn(problem, None)
        else:
            yield Drawn(problem, signs.weights_of(problem, np.random.default_rng(number)))
