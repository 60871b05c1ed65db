"""Draws problems of the simple ops: sizes at and beside the bounds of kernels, every option, and
some problems that are invalid."""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import gossamer
from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops.algorithm import Problem
from gossamer.ops.batch_norm.problem import BatchNormProblem
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.copy.problem import CopyProblem, convert, expand, slice_, split, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem, cast
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import COORDINATES, NEAREST_MODES, ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.tensor import Format, TensorSpec, default_spec

Made = TypeVar("Made")
CHANNELS = (1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 32, 33, 64, 96, 128)
SIDES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17)
BATCHES = (1, 1, 2, 3)
SIZES = (1, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17)
FACTS = (PLUS_MINUS_ONE, TERNARY, REAL, integers(0, 255), integers(-2048, 2048), integers(0, 2049),
         integers(-1, 0), integers(0, 1), ValueFacts(0.0, 1.0, 0.5))
REALS = ("float32", "float16")
DTYPES = ("float32", "float32", "int32", "int64", "uint8", "bool", "int8", "float16", "int16")
LAYOUTS = ("NCHW", "NHWC", "CHWN")


class Draw(random.Random):
    """Random choices of problems; the same in every process for the same text."""

    def pick(self, *choices: Any) -> Any:
        """Returns one of the choices."""
        return choices[self.randrange(len(choices))]

    def happens(self, share: float = 0.5) -> bool:
        return self.random() < share

    def image(self, dtype: str = "float32") -> TensorSpec:
        """Returns an image; now and then one of few elements or of none."""
        if self.happens(0.06):
            return default_spec([self.pick(0, 1, 1, 2) for _ in range(4)], dtype)
        shape = (self.pick(*BATCHES), self.pick(*CHANNELS), self.pick(*SIDES), self.pick(*SIDES))
        return default_spec(shape, dtype)

    def tensor(self, dtype: str = "float32", most: int = 5, least: int = 0) -> TensorSpec:
        """Returns an image, or a tensor of a rank from least to most, which is empty now and
        then."""
        if self.happens():
            return self.image(dtype)
        sizes = (*SIZES, 0) if self.happens(0.2) else SIZES
        return default_spec([self.pick(*sizes) for _ in range(self.randint(least, most))],
                            dtype)

    def facts(self) -> tuple[ValueFacts, ...]:
        return () if self.happens(0.4) else (self.pick(*FACTS),)

    def axes(self, rank: int, least: int = 0) -> tuple[int, ...]:
        """Returns some of the axes in ascending order, out of range now and then."""
        axes = sorted(self.sample(range(rank), self.randint(min(least, rank), rank)))
        return (*axes, rank) if self.happens(0.03) else tuple(axes)


def _pool(draw: Draw) -> Problem:
    kernel = draw.pick((1, 1), (2, 2), (3, 3), (2, 3), (3, 2), (5, 4))
    return PoolProblem(
        draw.image(), draw.pick("max", "max", "average"), kernel,
        (draw.randint(0 if draw.happens(0.02) else 1, 3), draw.randint(1, 3)),
        tuple(draw.randint(0, most) for most in kernel * 2) if draw.happens() else (0,) * 4,
        draw.pick((1, 1), (1, 1), (2, 1), (1, 3)), draw.happens(), draw.happens(), draw.facts())


def _pad(draw: Draw) -> Problem:
    spec = draw.tensor(draw.pick(*DTYPES), least=1)
    rank = len(spec.shape)
    if rank == 4 and draw.happens():
        sides = [draw.randint(-2, 3) for _ in range(4)]
        pads = (0, 0, *sides[:2], 0, 0, *sides[2:])
    else:
        pads = tuple(draw.pick(0, 0, 1, 2, -1) for _ in range(2 * rank + draw.happens(0.03)))
    mode = draw.pick("constant", "constant", "constant", "reflect", "edge")
    value = draw.pick(0.0, 1.0, -1.0, 2.5, float("-inf")) if spec.dtype in REALS else (
        draw.pick(0.0, 1.0, 3.0))
    return PadProblem(spec, pads, mode, value, draw.facts())


def _reduce(draw: Draw) -> Problem:
    if draw.happens(0.1):
        # four and five dimensions that are kept or reduced, none of them neighbours
        spec = default_spec((2, 3) * 4 + (2,) * draw.randint(0, 1))
        return ReduceProblem(spec, "max", draw.pick((0, 2, 4, 6), (1, 3, 5, 7),
                                                    tuple(range(0, len(spec.shape), 2))))
    if draw.happens(0.35):
        spec = default_spec(draw.pick(
            (1023, 257), (1024, 257), (5, 64), (5, 65), (7, 256), (257, 15), (64, 16), (3, 65, 17),
            (2, 300, 16, 3), (1024, 256)),
            draw.pick("float32", "int32", "int64", "uint8"))
    else:
        spec = draw.tensor(draw.pick("float32", "float32", "int32", "int64"))
    return ReduceProblem(spec, draw.pick("mean", "max", "sum"), draw.axes(len(spec.shape)),
                         draw.happens(), draw.facts())


def _softmax(draw: Draw) -> Problem:
    spec = draw.tensor() if draw.happens(0.7) else default_spec(draw.pick(
        (2, 1000), (3, 64), (3, 65), (3, 256), (1025, 257), (2, 63, 16), (2, 63, 15), (2, 65, 17)))
    return SoftmaxProblem(spec, draw.randint(0, max(len(spec.shape) - draw.happens(0.9), 0)),
                          draw.happens())


def _layer_norm(draw: Draw) -> Problem:
    if draw.happens(0.3):
        spec = draw.tensor()
        return LayerNormProblem(spec, draw.axes(len(spec.shape), 1), 1e-5, draw.happens())
    shape: tuple[int, ...] = (draw.pick(1, 7, 1023, 1024, 40000), draw.pick(
        1, 2, 3, 8, 9, 15, 16, 17, 31, 33, 36, 63, 64, 65, 128, 132, 255, 256, 257, 260, 511, 512,
        513, 516, 1023, 1024, 1025, 1028, 2047, 2048, 2049, 2052, 4096, 4100, 8192, 8200, 9001))
    if draw.happens(0.3):
        shape = (2, shape[1], draw.pick(1, 2, 16, 17))
    return LayerNormProblem(default_spec(shape), (1,), draw.pick(1e-5, 1e-3), draw.happens())


def _batch_norm(draw: Draw) -> Problem:
    dtype = "float32" if draw.happens(0.95) else "int32"
    return BatchNormProblem(draw.tensor(dtype), draw.pick(1e-5, 1e-3), draw.pick(None, 0.9, 0.5))


def _gather(draw: Draw) -> Problem:
    data = draw.tensor(draw.pick(*DTYPES), 4)
    if draw.happens(0.2):
        data = default_spec(draw.pick((4, 2), (4, 6), (6, 8), (9, 1), (5, 16)), draw.pick(*DTYPES))
    indices = default_spec(draw.pick((), (1,), (2,), (3,), (4,), (6,), (2, 2), (0,)),
                           draw.pick("int32", "int64", "int64", "int64", "uint8"))
    axis = draw.randint(0, max(len(data.shape) - draw.happens(0.95), 0))
    return GatherProblem(data, indices, axis, draw.pick((), (1,), (1,), (0,), (0, 1)))


def _resize(draw: Draw) -> Problem:
    spec = draw.image(draw.pick("float32", "float32", "float32", "int32"))
    size = (draw.pick(*SIDES), draw.pick(*SIDES))
    if 0 in spec.shape:
        return ResizeProblem(spec, draw.pick((1, 1), (1, 2), (0, 2)), (1.0, 1.0))
    scales = tuple(out / side for out, side in zip(size, spec.shape[2:], strict=True))
    if draw.happens(0.2):
        scales = draw.pick((2.0, 0.5), (1.5, 1.0), (3.0, 2.0), (0.0, 1.0), (-1.0, 1.0))
        if min(scales) > 0:
            size = tuple(int(side * scale)
                         for side, scale in zip(spec.shape[2:], scales, strict=True))
    mode = draw.pick("nearest", "linear", "cubic" if draw.happens(0.1) else "nearest")
    return ResizeProblem(spec, size, scales, mode if spec.dtype == "float32" else "nearest",
                         draw.pick(*COORDINATES), draw.pick(*NEAREST_MODES))


def _top_k(draw: Draw) -> Problem:
    spec = draw.tensor(draw.pick("float32", "float32", "int32", "int64", "uint8"))
    if draw.happens(0.3):
        spec = default_spec(draw.pick((3, 64), (3, 65), (2, 70, 15), (2, 70, 16), (2, 70, 17)))
    axis = draw.randint(0, max(len(spec.shape) - draw.happens(0.95), 0))
    most = spec.shape[axis] if axis < len(spec.shape) else 1
    return TopKProblem(spec, axis, draw.pick(0, 1, 1, 2, 5, 63, 64, 65, most, most, most + 1),
                       draw.happens(0.7), draw.happens(0.3))


def _concat(draw: Draw) -> Problem:
    first = draw.tensor(draw.pick(*DTYPES))
    rank = len(first.shape)
    axis = draw.randint(0, max(rank - draw.happens(0.95), 0))
    sizes = draw.pick(SIZES, (32, 64), (64,), (64, 128, 33), (4, 8, 2))
    parts = [default_spec([draw.pick(*sizes) if dim == axis else size
                           for dim, size in enumerate(first.shape)],
                          first.dtype if draw.happens(0.98) else "int32")
             for _ in range(draw.randint(1, 9 if draw.happens(0.2) else 4))]
    facts = tuple(draw.pick(PLUS_MINUS_ONE, PLUS_MINUS_ONE, TERNARY, *FACTS) for _ in parts)
    return ConcatProblem(tuple(parts), axis, draw.pick((), facts, (facts[0],) * len(parts)))


def _format(draw: Draw, dtype: str) -> Format:
    if draw.happens(0.45):
        return Format(draw.pick("packed32", "packed64"), draw.pick("bits", "trits"),
                      draw.pick(1, 1, 64, 128),
                      draw.pick((0,) * 4, (0,) * 4, (1, 2, 3, 1), (0, 1, 0, 0)))
    layout = draw.pick(*LAYOUTS)
    if layout == "NHWC" and draw.happens(0.4):
        return Format(layout, dtype, other_channels=draw.pick((4, 0), (3, 1), (0, 8), (8, 4)))
    return Format(layout, dtype, draw.pick(1, 1, 4, 8),
                  draw.pick((0,) * 4, (0,) * 4, (1, 2, 0, 1), (0, 0, 1, 0)))


def _copy(draw: Draw) -> Problem:
    kind = draw.pick("format", "format", "packed", "transpose", "slice", "split", "expand", "any")
    if kind == "format":
        image = draw.image()
        dtype, other = (draw.pick(*DTYPES),) * 2 if draw.happens() else (
            draw.pick(*REALS), draw.pick(*REALS))
        return convert(TensorSpec(image.shape, _format(draw, dtype)),
                       TensorSpec(image.shape, _format(draw, other)), draw.facts())
    if kind == "packed":
        shape = draw.pick(draw.image().shape, (draw.pick(1, 3), draw.pick(*CHANNELS)),
                          draw.pick((1, 64, 128, 128), (1, 64, 128, 129), (2, 32, 128, 130)))
        packed = Format(draw.pick("packed32", "packed64"), draw.pick("bits", "bits", "trits"),
                        border=draw.pick((0,) * 4, (1, 1, 1, 1), (2, 0, 1, 0)))
        plain = Format(draw.pick(*LAYOUTS) if len(shape) == 4 else "row", draw.pick(*REALS))
        if len(shape) == 4 and draw.happens(0.3):
            plain = _format(draw, draw.pick(*REALS))
        specs = [TensorSpec(shape, plain), TensorSpec(shape, packed)]
        if draw.happens(0.4):
            specs.reverse()
        return convert(*specs, (draw.pick(PLUS_MINUS_ONE, PLUS_MINUS_ONE, TERNARY, *FACTS),))
    spec = draw.tensor(draw.pick(*DTYPES), 7)
    rank = len(spec.shape)
    if kind == "transpose":
        if draw.happens(0.3):
            spec = default_spec(draw.pick((8, 9), (7, 32), (8, 7), (33, 65), (3, 8, 5, 9),
                                          (2,) * 7, (1, 2, 3, 4, 5, 1, 2)), spec.dtype)
        return transpose(spec, draw.sample(range(len(spec.shape)), len(spec.shape)))
    axes = draw.axes(rank)
    if kind == "slice":
        limits = (*range(-4, 5), 100, -100)
        return slice_(spec, [draw.pick(0, *limits) for _ in axes],
                      [draw.pick(100, *limits) for _ in axes], axes,
                      [draw.pick(1, 1, 2, -1, -2, 3, *[0] * draw.happens(0.05)) for _ in axes])
    if kind == "split" and rank:
        axis = draw.randrange(rank)
        first = draw.randint(0, spec.shape[axis])
        rest = spec.shape[axis] - first + draw.happens(0.05)
        return draw.pick(*split(spec, axis, (first, rest)))
    if kind == "any" and rank:
        dims = tuple(draw.pick(None, *range(rank)) for _ in range(draw.randint(0, 7)))
        sizes = tuple(draw.randint(1, 3) for _ in dims)
        steps = tuple(draw.pick(1, 1, -1, 2) for _ in dims)
        starts = [0] * rank
        for dim, size, step in zip(dims, sizes, steps, strict=True):
            if dim is not None and step < 0:
                starts[dim] += (size - 1) * -step + draw.happens(0.05)
        return CopyProblem(spec, default_spec(sizes, spec.dtype), dims, steps, tuple(starts))
    shape = [draw.pick(2, 3) if size == 1 and draw.happens() else size for size in spec.shape]
    return expand(spec, [*(draw.pick(1, 2, 3) for _ in range(draw.randint(0, 2))), *shape])


def expression(draw: Draw, inputs: int, integer: bool) -> Expression:
    """Returns an expression of up to five steps. integer: whether its inputs are integers."""
    names = ["add", "sub", "mul", "div", "min", "max", "less", "equal", "where", "neg", "abs",
             "relu", "clip", "not", "constant"]
    if not integer or draw.happens(0.1):
        names += ["sign", "leaky_relu", "prelu", "hard_sigmoid", "floor", "round", "fma", "sigmoid"]
    steps: list[ExpressionStep] = []
    for index in range(draw.pick(0, 1, 1, 2, 3, 5)):
        name = draw.pick(*names)
        large = () if integer else (2.0**100, 2.0**101, -(2.0**-100), 2.0**-101)
        numbers = {"clip": (-1.0, draw.pick(1.0, 6.0, 2.0**22, 2.0**23)), "leaky_relu": (0.125,),
                   "hard_sigmoid": (0.25, 0.5),
                   "constant": (draw.pick(2.0, 3.0, -1.0, 0.0, 0.75, *large),)}
        # the newest value is read again often, so that steps follow one another
        arguments = tuple(draw.pick(inputs + index - 1, draw.randrange(inputs + index))
                          for _ in range(FUNCTIONS[name].arity))
        steps.append(ExpressionStep(name, arguments, numbers.get(name, ())))
    last = inputs + len(steps) - 1
    return Expression(inputs, tuple(steps), draw.pick((last,), (last,), (last,), (last, 0)))


_GREATER = Expression(2, (
    ExpressionStep("greater", (0, 1)), ExpressionStep("constant", (), (2.0,)),
    ExpressionStep("mul", (2, 3)), ExpressionStep("constant", (), (1.0,)),
    ExpressionStep("sub", (4, 5))))
"""1 where the first input is greater, else -1."""


def _elementwise(draw: Draw) -> Problem:
    dtype = draw.pick("float32", "float32", "float32", "int32", "int64", "uint8", "bool")
    image = draw.image(dtype) if draw.happens(0.7) else draw.tensor(dtype, 7)
    kind = draw.pick("cast", "formats", "signs", "leaky", "any", "any", "any", "any")
    if kind == "cast":
        return cast(image, draw.pick("float32", "int32", "int64", "int8", "uint8", "int16",
                                     "uint16", "bool", "float64"))
    if kind == "leaky":
        return ElementwiseProblem((image,) * draw.pick(1, 1, 2),
                                  apply(*draw.pick(("leaky_relu", 0.1), ("relu",), ("prelu",))))
    of_channels = [(*image.shape[1:2], *(1,) * (len(image.shape) - 2)), (), (1,) * len(image.shape)]
    if kind == "signs":
        signs = draw.pick(
            apply("sign"), Expression(2, (ExpressionStep("sub", (0, 1)),
                                          ExpressionStep("sign", (2,)))),
            _GREATER, apply("relu"))
        shapes = [image.shape, draw.pick(*of_channels, image.shape, image.shape[1:])]
        order = draw.pick([0, 1], [0, 1], [1, 0])[:signs.inputs] if signs.inputs == 2 else [0]
        return ElementwiseProblem(
            tuple(default_spec(shapes[index], dtype) for index in order), signs, ("float32",),
            tuple(place for place, index in enumerate(order) if index == 1 and draw.happens(0.9)),
            facts=draw.facts(), result=draw.pick(REAL, TERNARY, PLUS_MINUS_ONE))
    if kind == "formats" and len(image.shape) == 4:
        makes = draw.pick(Expression(1), apply("mul"), apply("mul").then(apply("add")))
        numbers = default_spec((image.shape[1], 1, 1))
        layout = Format(draw.pick("NCHW", "NHWC"), draw.pick("uint8", "float16", "float32",
                                                             "bfloat16"))
        return ElementwiseProblem(
            (default_spec(image.shape), *(numbers,) * (makes.inputs - 1)), makes,
            constants=tuple(range(1, makes.inputs)),
            formats=draw.pick((layout,), (layout,), (None,), (layout, layout)))
    count = draw.pick(1, 2, 2, 3)
    shapes = [image.shape] + [draw.pick(image.shape, image.shape[1:], image.shape[2:], *of_channels,
                                        tuple(draw.pick(1, size) for size in image.shape))
                              for _ in range(count - 1)]
    draw.shuffle(shapes)
    kinds = [dtype if draw.happens(0.8) else draw.pick("float32", "int64", "uint8", "bool", "int16")
             for _ in shapes]
    steps = expression(draw, count, "float32" not in kinds)
    constants = tuple(index for index in range(count) if draw.happens(0.25) and count > 1)
    return ElementwiseProblem(
        tuple(map(default_spec, shapes, kinds)), steps,
        tuple(draw.pick("float32", "float32", *kinds, "bool", "uint8")
              for _ in steps.outputs[draw.happens(0.03):]),
        constants if len(constants) < count else ())


SIMPLE: dict[str, Callable[[Draw], Problem]] = {
    "batch_norm": _batch_norm, "concat": _concat, "copy": _copy, "elementwise": _elementwise,
    "gather": _gather, "layer_norm": _layer_norm, "pad": _pad, "pool": _pool, "reduce": _reduce,
    "resize": _resize, "softmax": _softmax, "top_k": _top_k}
"""A function for each op that draws a problem; it raises ValueError where the problem is invalid.
"""


def problems(op: str, count: int) -> dict[str, Problem | str]:
    """Returns so many problems of an op by the names of the cases; in the place of an invalid
    problem stands the text of its error."""
    return {f"{op} {index}": made_or_refused(lambda index=index: SIMPLE[op](
        Draw(f"{op} {index}"))) for index in range(count)}


def made_or_refused(make: Callable[[], Made]) -> Made | str:
    """Returns what a function makes, or the text of the error by which gossamer refuses it. Texts
    of errors of Python and NumPy are left out, as they differ between versions."""
    try:
        return make()
    except (ValueError, IndexError, TypeError, ZeroDivisionError) as error:
        raised_in = traceback.extract_tb(error.__traceback__)[-1].filename
        is_own = Path(gossamer.__file__).parent in Path(raised_in).parents
        return f"{type(error).__name__}, {error}" if is_own else "cannot be made"
