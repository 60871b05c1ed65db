"""Convolutions that are drawn from a seed, with sizes at and beside the bounds of tiles, and their
constants."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
                change: Callable[[np.ndarray], np.ndarray] = lambda weight: weight,
                most: int = _MOST_WEIGHTS) -> Drawn:
    """Returns the problem with constants, and with the facts about them. change: changes the
    weights. most: the most weights with which the layer is prepared."""
    shapes = problem.weight_shapes
    if np.prod(shapes["weight"]) > most:
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


def one_number(problem: Conv2dProblem, channels: int) -> Conv2dProblem:
    """Returns a layer with the window of another one, whose output is one number."""
    height, width = problem.kernel
    return replace(problem, batch=1, channels=channels, groups=1, out_channels=1, height=height,
                   width=width, stride=(1, 1), pads=(0,) * 4, dilation=(1, 1))


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
        if number % 13 == 12:
            problem = one_number(problem, rng.choice((1, 3, 8)))
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
                return np.where((_ranks_in_fours(drawn) < 2) & (drawn < 0.9), weight, 0)
            if kind == 1:
                drawn = np.sort(drawn.reshape(-1)).reshape(weight.shape)
            return np.where(drawn < density, weight, 0)

        if number % 13 == 12:
            problem = one_number(problem, rng.choice((1, 3, 8)))
        yield with_arrays(problem, number, pruned)


def _ranks_in_fours(drawn: np.ndarray) -> np.ndarray:
    """Returns for each number how many of the numbers in its four of input channels are less."""
    fours = np.arange(drawn.shape[1]) // 4
    return np.stack([np.count_nonzero(np.moveaxis(drawn < drawn[:, channel:channel + 1], 1, -1)
                                      & (fours == four), axis=-1)
                     for channel, four in enumerate(fours)], axis=1)


def suited(count: int, seed: int) -> Iterator[Drawn]:
    """Yields layers that suit the kernels for tensor cores which take few kinds of layers: shifted
    pixels, dense and 2:4 sparse, with few fours that are crowded; few input channels; depthwise
    ones; and pruned layers of few and of many images."""
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        kind = (0, 1, 2, 3, 4, 1)[number % 6]
        problem = replace(geometry(rng, short=True, groups=1), batch=rng.choice((1, 1, 2, 3, 5)))
        density = 1.0
        crowded = rng.choice((0.0, 0.0, 0.003, 0.01, 0.1))
        eights = [8 * rng.choice((1, 2, 3, 4, 5, 8, 9, 12, 16)) for _ in range(2)]
        if kind < 2:
            window = rng.choice(((3, 3), (3, 3), (2, 2), (1, 3), (3, 1), (5, 5), (2, 3)))
            problem = replace(
                problem, channels=eights[0], out_channels=eights[1], kernel=window,
                height=problem.height + 8, width=problem.width + 8)
        elif kind == 2:
            problem = replace(problem, channels=rng.choice((1, 2, 3, 3, 4)), dilation=(1, 1),
                              out_channels=eights[0], height=problem.height + 8,
                              width=problem.width + 8)
        elif kind == 3:
            channels = 2 * rng.choice((1, 2, 3, 4, 8, 12, 16, 33, 48))
            problem = replace(problem, channels=channels, groups=channels, out_channels=channels,
                              height=problem.height + 8, width=problem.width + 8)
        else:
            groups, density = rng.choice((1, 1, 2)), rng.choice((0.03, 0.1, 0.2, 0.29))
            problem = replace(
                problem, groups=groups, channels=groups * rng.choice((3, 8, 16, 17, 40)),
                out_channels=groups * rng.choice((1, 15, 16, 17, 33, 64)),
                batch=rng.choice((1, 2, 3, 4, 5, 7, 8, 12, 16, 32)),
                height=problem.height + 8, width=problem.width + 8)

        def pruned(weight: np.ndarray, kind: int = kind, density: float = density,
                   crowded: float = crowded, seed: int = number) -> np.ndarray:
            drawn = np.random.default_rng(seed).random(weight.shape)
            if kind == 1:
                kept = (_ranks_in_fours(drawn) < 2) & (drawn < 0.9)
                return np.where(kept | (drawn > 1 - crowded), weight, 0)
            return np.where(drawn < density, weight, 0)

        yield with_arrays(problem, number, pruned, 150_000)


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
        if number % 13 == 12:
            problem = one_number(problem, rng.choice((1, 32, 65)))
        if np.prod(problem.weight_shapes["weight"]) > _MOST_WEIGHTS:
            yield Drawn(problem, None)
        else:
            yield Drawn(problem, signs.weights_of(problem, np.random.default_rng(number)))


def at_limits() -> Iterator[Conv2dProblem]:
    """Yields layers at and beyond the largest sizes that algorithms take; many are too large to
    be prepared."""
    plain = Conv2dProblem(1, 64, 8, 8, 64, (3, 3), pads=(1, 1, 1, 1))
    pointwise = replace(plain, kernel=(1, 1), pads=(0,) * 4)
    pruned = WeightsInfo(0.1, "mask", crowded=0.0)
    bits: dict[str, Any] = {"weights_info": signs.SCALED, "facts": (PLUS_MINUS_ONE,)}
    problems = [replace(plain, batch=0), replace(pointwise, batch=0, weights_info=pruned),
                replace(plain, batch=0, groups=64), replace(plain, batch=0, **bits),
                replace(plain, batch=0, channels=3)]
    for more in (-1, 0, 1):
        # 2^31 elements: of the input, of the padded input, of the weights
        problems += [replace(pointwise, batch=2**19 + more), replace(plain, batch=2**19 + more),
                     replace(plain, batch=2**19 + more, pads=(0, 0, 1, 2)),
                     replace(plain, batch=2**19 + more, **bits),
                     replace(plain, batch=2**19 + more, groups=64),
                     replace(pointwise, batch=2**19 + more, out_channels=128, groups=32),
                     replace(plain, batch=328965 + more, groups=2),
                     replace(plain, batch=(2**31 // (36 * 64 * 4)) + more),
                     replace(plain, batch=(2**31 // (16 * 64 * 16)) + more)]
        weights = replace(pointwise, height=1, width=1, channels=2**16, out_channels=2**15 + more)
        problems += [weights, replace(weights, weights_info=pruned),
                     replace(pointwise, channels=2**24 + more, height=1, width=1, **bits)]
        # windows and images of many rows or columns
        for distance in (2**15, 2**14, 65535):
            problems += [
                replace(plain, height=distance + 9, kernel=(distance + 1 + more, 1)),
                replace(plain, width=distance + 9, kernel=(1, 2), dilation=(1, distance + more)),
                replace(plain, height=distance - 2 + more, width=1, kernel=(3, 1)),
                replace(plain, height=distance - 3 + more, width=3, **bits),
                replace(pointwise, height=distance + more, width=2),
                replace(plain, batch=distance + more, height=1, width=1, channels=3),
                replace(plain, batch=1, height=distance + more, width=3, channels=3)]
        problems += [replace(plain, batch=1, groups=65535 + more, channels=65535 + more,
                             out_channels=65535 + more, height=2, width=2),
                     replace(pointwise, batch=2**22 + 64 * more, height=1, width=1,
                             channels=4, out_channels=4)]
    problems.append(replace(plain, channels=4096, out_channels=4096,
                            weights_info=WeightsInfo(0.5, "mask")))
    return iter(problems)


def windows() -> Iterator[Drawn]:
    """Yields layers whose windows reach the sizes for which registers and shared memory have no
    room; they are not prepared."""
    plain = Conv2dProblem(1, 64, 8, 8, 64, (3, 3), pads=(1, 1, 1, 1))
    pruned = WeightsInfo(0.1, "mask", crowded=0.0)
    bits: dict[str, Any] = {"weights_info": signs.SCALED, "facts": (PLUS_MINUS_ONE,)}
    problems: list[Conv2dProblem] = []
    for size in (*range(1, 13), 15, 17, 31, 33, 64, 100):
        # windows and distances for which registers and shared memory have no room
        wide = replace(plain, height=size + 5, width=2 * size + 9)
        problems += [
            replace(wide, kernel=(size, 1), groups=64), replace(wide, kernel=(1, size), groups=64),
            replace(wide, kernel=(size, size), groups=64, out_channels=64 * (1 + size % 2)),
            replace(wide, kernel=(3, size), groups=63, channels=63, out_channels=63),
            replace(wide, kernel=(size, size), channels=1 + size % 5),
            replace(wide, kernel=(2, 2), dilation=(size, 2 * size)),
            replace(wide, kernel=(2, 3), dilation=(size, size), **bits),
            replace(wide, kernel=(size, size), **bits)]
        problems += [replace(plain, kernel=(2, 2), dilation=(size, size), batch=batch,
                             height=size + 5, width=size + 7, weights_info=pruned)
                     for batch in (1, 8)]
    return (Drawn(problem, None) for problem in problems)


def pruned_networks() -> Iterator[Drawn]:
    """Yields layers of the sizes of pruned networks, which are too large to be prepared."""
    sizes = ((64, 56, 64, 3), (128, 28, 128, 3), (256, 14, 256, 3), (512, 7, 512, 3),
             (256, 14, 1024, 1), (96, 27, 256, 5), (512, 7, 2048, 1), (32, 112, 16, 1))
    for number, (channels, image, out_channels, window) in enumerate(sizes):
        for batch, density in ((1, 0.02), (16, 0.1), (64, 0.3), (15, 0.5), (32, 0.05)):
            if (number + batch) % 5 == 1:
                yield Drawn(Conv2dProblem(
                    batch, channels, image, image, out_channels, (window, window),
                    (1 + number % 2,) * 2, (window // 2,) * 4, epilogue=EPILOGUES[number],
                    weights_info=WeightsInfo(density, "mask", crowded=density)), None)
