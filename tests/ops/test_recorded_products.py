"""Records what the algorithms of matrix products and of transposed convolutions offer for drawn
problems, and what they prepare."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, integers
from gossamer.ops.algorithm import Problem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.weights import WeightsInfo
from gossamer.tensor import default_spec
from tests.ops.candidates import recorded as offers
from tests.ops.candidates import stated, supported
from tests.ops.conv2d.binary import signs
from tests.ops.conv2d.drawn import EPILOGUES, numbers
from tests.ops.harness import check
from tests.recorded import Recorded

Layers = Iterator[tuple[Problem, Mapping[str, np.ndarray] | None]]
_ROWS = (0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 31, 32, 33, 64, 127, 128, 129, 256, 384)
_SIZES = (*_ROWS[1:], 12, 20, 24, 48, 63, 65, 96, 100, 130, 132, 192, 255, 260)


def _gemms(count: int, seed: int) -> Layers:
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        rows, columns, depth = rng.choice(_ROWS), rng.choice(_SIZES), rng.choice(_SIZES)
        if number % 8 == 7:
            rows, columns = rng.choice((127, 128, 129, 256)), rng.choice((124, 128, 132, 256))
            depth = rng.choice((4, 8, 12, 18, 64))
        elif number % 16 == 9:
            rows, columns = 1, 1
        problem = GemmProblem(rows, columns, depth, rng.choice(EPILOGUES))
        arrays = {name: numbers(shape, number + index)
                  for index, (name, shape) in enumerate(problem.weight_shapes.items())}
        if number % 4 == 1:
            density = rng.choice((0.0, 0.1, 0.3, 0.74, 0.76))
            arrays["weight"][np.random.default_rng(number).random((columns, depth)) > density] = 0
            density = np.count_nonzero(arrays["weight"]) / arrays["weight"].size
            problem = replace(problem, weights_info=WeightsInfo(density, "mask"))
        elif number % 4 == 2:
            epilogue = rng.choice(signs.EPILOGUES)
            problem = replace(
                problem, epilogue=epilogue, weights_info=signs.SCALED,
                facts=(rng.choice((PLUS_MINUS_ONE, TERNARY)), *[REAL] * epilogue.tensor_count),
                result=rng.choice((REAL, TERNARY)))
            arrays = {name: numbers(shape, number) if name != "weight"
                      else np.sign(numbers(shape, number)) * np.float32(0.5)
                      for name, shape in problem.weight_shapes.items()}
        elif number % 8 == 4:
            problem = replace(problem, facts=(integers(0, 255),) * len(problem.inputs),
                              weights_info=WeightsInfo(facts=integers(-127, 127)))
        yield problem, arrays


def _matmuls(count: int, seed: int) -> Layers:
    for number in range(count):
        rng = random.Random(f"{seed} {number}")
        sizes = _SIZES if number % 3 else (0, *range(1, 10))
        rows, inner, columns = (rng.choice(sizes) for _ in range(3))
        if number % 11 == 10:
            rows, columns = 1, 1
        batch = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.choice((0, 0, 1, 2, 3, 4))))
        batches = [tuple(1 if rng.random() < 0.3 else size for size in batch)[skipped:]
                   for skipped in rng.choices((0, 0, 1), k=2)]
        transposed = tuple(i for i in range(2) if rng.random() < 0.4)
        shapes = [(*batches[0], rows, inner), (*batches[1], inner, columns)]
        if number % 10 == 9:
            index = rng.randrange(2)
            shapes[index] = (inner,)
            transposed = tuple(i for i in transposed if i != index)
        for index in transposed:
            shapes[index] = (*shapes[index][:-2], shapes[index][-1], shapes[index][-2])
        dtype = "int32" if number % 15 == 14 else "float32"
        problem = MatmulProblem(*(default_spec(shape, dtype) for shape in shapes),
                                rng.choice(((), (), (0,), (1,), (1,), (0, 1))), transposed)
        yield problem, {name: numbers(shape, number).astype(dtype)
                        for name, shape in problem.weight_shapes.items()}


def _transposed_convolutions(count: int, seed: int) -> Layers:
    for number in range(count):
        rng = random.Random(f"{seed} {number}")

        def pair(*choices: int, rng: random.Random = rng) -> tuple[int, int]:
            return rng.choice(choices), rng.choice(choices)

        groups, size = rng.choice((1, 1, 2, 3)), pair(1, 2, 3, 5, 8)
        stride = pair(1, 2, 3)
        kernel = pair(3, 4, 5)
        problem = ConvTranspose2dProblem(
            default_spec((rng.choice((0, 1, 2, 3)), groups * rng.choice((1, 2, 3, 8)),
                          *size)), groups * rng.choice((1, 2, 5)), kernel, stride,
            (*pair(0, 1), *pair(0, 1)), pair(1, 1, 2), pair(0, 0, 1), groups,
            rng.random() < 0.5)
        yield problem, {name: numbers(shape, number)
                        for name, shape in problem.weight_shapes.items()}


@pytest.mark.slow
def test_gemm(recorded: Recorded) -> None:
    recorded("gemm", offers(_gemms(50, 1)))


@pytest.mark.slow
def test_matmul(recorded: Recorded) -> None:
    recorded("matmul", offers(_matmuls(90, 2), most=4))


def test_conv_transpose2d(recorded: Recorded) -> None:
    recorded("conv_transpose2d", offers(_transposed_convolutions(40, 3)))


def test_products_at_limits(recorded: Recorded) -> None:
    """Records which products of few or many numbers are supported."""
    problems: list[Problem] = [
        GemmProblem(rows, columns, depth, weights_info=weights)
        for weights in (WeightsInfo(), WeightsInfo(0.1, "mask"), signs.SCALED)
        for rows, columns, depth in (
            *((rows, 2**15 + more, 2**16) for rows in (1, 128) for more in (-4, 0, 4)),
            *((rows, 128, 128) for rows in (*range(10), 127, 128, 129)),
            (128, 124, 128), (128, 128, 0), (128, 130, 128), (128, 128, 130), (1, 0, 5),
            *((2**21 + more, columns, 2**10) for columns in (1, 2**10) for more in (-1, 0, 1)),
            *((64 * 65535 + more, 4, 4) for more in (0, 1)), (1, 2**31 - 1, 1), (1, 2**31, 1),
            (1, 4, 2**16), (1, 4, 2**16 + 1), (8, 4, 4), (9, 4, 4))]
    problems = [replace(problem, facts=(TERNARY,)) if isinstance(problem, GemmProblem) and (
        problem.weights_info.scaled_signs) else problem for problem in problems]
    problems += [MatmulProblem(default_spec((2**15 + a, 2**16)), default_spec((2**16, 2**15 + b)))
                 for a in (-1, 0) for b in (-1, 0)]
    problems += [MatmulProblem(default_spec((2**16, 2)), default_spec((2, 2**15 + more)))
                 for more in (-1, 0, 1)]
    recorded("product_limits", supported(problems, ("h200", "small", "processors", "host")))


@pytest.mark.slow
@pytest.mark.parametrize("layers", [_gemms, _matmuls, _transposed_convolutions])
def test_the_host(layers: Callable[[int, int], Layers]) -> None:
    for number, (problem, arrays) in enumerate(layers(60, 4)):
        if isinstance(problem, GemmProblem):
            # what is drawn about results and weights need not hold, and a result that is clipped
            # must not hide large sums
            problem = replace(
                problem, result=REAL, weights_info=replace(problem.weights_info, facts=REAL),
                facts=problem.facts if problem.weights_info.scaled_signs else ())
            arrays = {**arrays, "weight": arrays["weight"] / np.float32(8)}
        if isinstance(problem, MatmulProblem) and problem.matrix_a[-1] > 130:
            # sums of so many numbers, one after another, are less accurate
            continue
        check(problem, find("host"), weights=arrays, seed=number)


def test_refused(recorded: Recorded) -> None:
    """Records which problems are none, and why."""
    texts = {}
    for number in range(60):
        rng = random.Random(number)
        sizes = tuple(rng.choice((0, 1, 2, 4)) for _ in range(rng.choice((3, 4, 4, 4))))
        kernel, stride, before, after, dilation, extra = (
            (rng.choice(few), rng.choice(few)) for few in (
                (1, 2, 3), (1, 1, 1, 2), (0, 0, 1, 2), (0, 0, 1, 2), (1, 1, 1, 0), (0, 1)))
        texts[f"transposed convolution {number}"] = _made(
            ConvTranspose2dProblem, default_spec(sizes), rng.choice((1, 2, 3, 4)), kernel, stride,
            before + after, dilation, extra, rng.choice((1, 1, 2, 3)), True)
        a, b = (default_spec(tuple(rng.choice((1, 2, 3)) for _ in range(
            rng.choice((0, 1, 2, 2, 3, 4))))) for _ in range(2))
        texts[f"product {number}"] = _made(MatmulProblem, a, b, (), rng.choice(
            ((), (), (0,), (1,), (0, 1))))
    recorded("refused_products", texts)


def _made(kind: Callable[..., Problem], *arguments: object) -> str:
    """Returns a text of a problem, or of the error why there is none."""
    try:
        return stated(kind(*arguments))
    except ValueError as error:
        return str(error)
