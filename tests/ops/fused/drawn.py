"""Draws fusions: the kinds that algorithms were made for, with sizes at and beside the bounds of
their kernels, and the same with one change, which most algorithms do not compute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, integers
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.pointwise_pair.layers import BOTH, LAST
from gossamer.ops.fused.problem import ENTRY, FusionProblem, Source, entry
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.tensor import Format, TensorSpec, default_spec
from tests.ops import test_binary_fusions
from tests.ops.conv2d.binary.signs import BAND_SIGN, BATCH_NORM_BITS, BATCH_NORM_SIGN, EPILOGUES
from tests.ops.drawn import Draw, made_or_refused
from tests.ops.fused import test_first_convolution
from tests.ops.fused.blocks import (
    BIAS,
    BIAS_HARD_SIGMOID,
    BIAS_HARD_SWISH,
    BIAS_RELU,
    BIAS_RELU6,
    BIAS_RESIDUAL,
    BIAS_RESIDUAL_RELU,
    BIAS_SIGMOID,
    BIAS_SILU,
    QUOTIENT,
    block,
    excited,
    given_as,
    stem,
)
from tests.ops.fused.test_channel_attention import SUM, SUM_OF_FOUR, attention
from tests.ops.fused.test_convolution_pool_mma import pooled
from tests.ops.fused.test_pointwise_mean import head
from tests.ops.fused.test_pointwise_pair import pair
from tests.ops.fused.test_popcount_chain import LINEAR, SIGN, chain

ACTIVATIONS = (Epilogue(), BIAS, BIAS_RELU, BIAS_RELU6, BIAS_SILU, BIAS_HARD_SWISH, QUOTIENT)
_CHANNELS = (8, 16, 24, 32, 40, 64, 96, 160)
_HIDDEN = (16, 32, 40, 48, 96, 144, 192, 240, 480, 960)
_SIDES = (1, 3, 4, 6, 7, 8, 9, 13, 14, 16, 17, 28, 56)


def _sides(draw: Draw) -> tuple[int, int]:
    side = draw.pick(*_SIDES)
    return side, side if draw.happens() else draw.pick(*_SIDES)


def _block(draw: Draw, expands: bool) -> FusionProblem:
    kernel = draw.pick((3, 3), (3, 3), (3, 3), (5, 5), (7, 7), (1, 3), (5, 3), (4, 4), (8, 8))
    channels, hidden = draw.pick(*_CHANNELS, 20), draw.pick(*_HIDDEN)
    out_channels = draw.pick(channels, hidden, *_CHANNELS, 320)
    return block(draw.pick(1, 1, 2, 64, 0), channels, hidden, out_channels, _sides(draw),
                 kernel=kernel, stride=draw.pick((1, 1), (1, 1), (2, 2), (2, 1), (3, 3)),
                 activation=draw.pick(*ACTIVATIONS), expands=expands,
                 last=draw.pick(None, None, BIAS_RELU, BIAS_RESIDUAL_RELU, Epilogue()))


def _stem(draw: Draw) -> FusionProblem:
    hidden, kernel = draw.pick(16, 24, 32, 40), draw.pick((3, 3), (3, 3), (5, 5), (4, 2), (1, 1))
    size = draw.pick((9, 11), (18, 21), (32, 32), (65, 65))
    stride = draw.pick((2, 2), (1, 1), (2, 1))
    first = Conv2dProblem(1, 1, *size, 1, kernel, stride, (1,) * 4)
    behind = block(draw.pick(1, 2, 64), 0, hidden, draw.pick(8, 16, 20),
                   (first.out_height, first.out_width), kernel=draw.pick((3, 3), (5, 5)),
                   stride=draw.pick((1, 1), (2, 2)), expands=False,
                   activation=draw.pick(*ACTIVATIONS), last=BIAS)
    return _given(draw, stem(behind, draw.pick(1, 2, 3, 3, 4, 5), size, kernel=kernel,
                             stride=stride, activation=draw.pick(*ACTIVATIONS)))


def _given(draw: Draw, problem: FusionProblem) -> FusionProblem:
    """Returns the fusion as it is, or with a layer that computes its image."""
    if draw.happens():
        return problem
    return given_as(problem, Format(draw.pick("NCHW", "NHWC"), draw.pick(
        "uint8", "float16", "bfloat16", "float32", "int8")),
        draw.pick(None, apply("mul"), Expression(1)))


def _excited(draw: Draw) -> FusionProblem:
    inner = _block(draw, draw.happens())
    if any(part.inputs[0].shape[2] > 16 for part in inner.parts):
        raise ValueError("an image too large")
    return excited(inner, draw.pick(1, 4, 10, 16, 64), inner=draw.pick(*ACTIVATIONS),
                   gate=draw.pick(BIAS_HARD_SIGMOID, BIAS_SIGMOID, QUOTIENT),
                   scale=draw.pick(None, None, apply("div")), gates_first=draw.happens(),
                   pooled=draw.happens())


def _attention(draw: Draw) -> FusionProblem:
    return attention(draw.pick(1, 1, 2, 3, 64, 65535, 65536, 0),
                     draw.pick(8, 16, 24, 40, 72, 256, 264, 512, 2048, 2056, 4096, 12),
                     draw.pick(1, 5, 6, 16, 64, 128), draw.pick(
                         (1, 1), (7, 5), (7, 7), (9, 9), (14, 14), (56, 56), (95, 90), (112, 112)),
                     inner=draw.pick(*ACTIVATIONS), gate=draw.pick(BIAS_SIGMOID, QUOTIENT),
                     scale=draw.pick(None, None, SUM, SUM_OF_FOUR, apply("div")),
                     gate_first=draw.happens(), pooled=draw.happens())


def _head(draw: Draw) -> FusionProblem:
    return head(draw.pick(1, 1, 2, 3, 64, 65535, 65536, 0),
                draw.pick(8, 16, 24, 40, 64, 352, 960, 1280, 2048, 6984, 6992, 20),
                draw.pick(1, 7, 8, 9, 13, 16, 20, 64, 72, 1280), draw.pick(
                    (1, 1), (3, 5), (7, 7), (8, 8), (11, 13), (14, 14), (16, 16)),
                epilogue=draw.pick(*ACTIVATIONS, BIAS_RESIDUAL), pooled=draw.happens(),
                keepdims=draw.happens(), stride=draw.pick((1, 1), (1, 1), (1, 1), (2, 2)))


def _pair(draw: Draw) -> FusionProblem:
    channels, wide, out_channels = draw.pick(
        (64, 192, 64), (64, 256, 64), (128, 512, 128), (256, 1024, 256), (128, 384, 192),
        (64, 128, 64), (64, 2048, 64), (64, 2112, 64), (64, 2112, 256), (64, 640, 320),
        (128, 256, 192), (192, 512, 64), (512, 1024, 256), (64, 160, 64), (768, 1536, 256),
        (320, 640, 256))
    first = draw.pick(BIAS_RESIDUAL_RELU, BIAS_RESIDUAL_RELU, BIAS_RESIDUAL, *ACTIVATIONS,
                      Epilogue(apply("add").then(apply("add")), ("tensor", "tensor")))
    return pair(draw.pick(1, 1, 2, 3, 64, 0), channels, wide, out_channels, draw.pick(
        (1, 1), (9, 10), (10, 13), (8, 16), (56, 56), (128, 132), (129, 131)), first=first,
        second=draw.pick(*ACTIVATIONS, BIAS_RESIDUAL_RELU), exits=draw.pick(BOTH, LAST))


def _pool(draw: Draw) -> FusionProblem:
    kernel = draw.pick((7, 7), (3, 3), (3, 3), (5, 7), (2, 4), (4, 6), (8, 8), (3, 1), (3, 9))
    convolution = Conv2dProblem(
        draw.pick(1, 1, 2, 64, 0), draw.pick(1, 2, 3, 3, 4, 5),
        draw.pick(9, 13, 21, 29, 39, 224), draw.pick(6, 19, 30, 37, 70, 151, 224),
        draw.pick(8, 16, 24, 40, 48, 64, 128, 20), kernel,
        draw.pick((2, 2), (1, 1), (1, 3), (4, 4)), draw.pick((0,) * 4, (1,) * 4, (3, 1, 0, 2)),
        epilogue=draw.pick(*ACTIVATIONS, BIAS, BIAS_RELU, BIAS_RESIDUAL))
    window = draw.pick((3, 3), (2, 2), (2, 3), (2, 1), (3, 2), (4, 3), (5, 2))
    pads = tuple(draw.randrange(length) for length in window * 2) if draw.happens() else (0,) * 4
    return _given(draw, pooled(convolution, window, draw.pick((2, 2), (1, 1), (3, 2), (2, 1)), pads,
                               ceil_mode=draw.happens()))


def _first(draw: Draw) -> FusionProblem:
    convolution = Conv2dProblem(
        draw.pick(1, 2, 0), draw.pick(1, 3, 4, 8), draw.pick(9, 20), draw.pick(11, 33),
        draw.pick(8, 20, 32), draw.pick((3, 3), (1, 1), (7, 7)), draw.pick((1, 1), (2, 2)),
        (1,) * 4, epilogue=draw.pick(*ACTIVATIONS, BIAS_RESIDUAL))
    return test_first_convolution.fusion(
        convolution, Format(draw.pick("NCHW", "NHWC"), draw.pick(
            "uint8", "float16", "bfloat16", "float32")),
        draw.pick(None, apply("mul"), Expression(1)))


def _chain(draw: Draw) -> FusionProblem:
    count = draw.randint(1, 4)
    sizes = [draw.pick(1, 31, 32, 33, 64, 65, 128, 129, 256, 257, 1024, 4096)
             for _ in range(count + 1)]
    epilogues = [draw.pick(BATCH_NORM_SIGN, BATCH_NORM_BITS, BAND_SIGN)
                 for _ in range(count - 1)] + [
        draw.pick(LINEAR, Epilogue(), BATCH_NORM_SIGN, BATCH_NORM_BITS)]
    return chain(sizes, epilogues, rows=draw.pick(0, 1, 3, 64, 2**28 - 1, 2**28, 2**28 + 1),
                 known=draw.pick(TERNARY, TERNARY, PLUS_MINUS_ONE, REAL),
                 signs=draw.pick(None, SIGN, SIGN, apply("relu")))


def _binary(draw: Draw) -> FusionProblem:
    pad = draw.pick(None, -1.0, 0.0, 1.0, 1.0, 2.0)
    problem = test_binary_fusions.fusion(
        draw.pick(PLUS_MINUS_ONE, PLUS_MINUS_ONE, TERNARY, integers(0, 1), REAL),
        draw.pick(*EPILOGUES), pad=pad,
        pads=draw.pick((1, 0, 2, 1), (0,) * 4, (1,) * 4, (1, -1, 0, 1)),
        own=draw.randint(0, 1) if not pad or draw.happens(0.2) else 0, batch=draw.pick(1, 2),
        channels=draw.pick(1, 33, 64, 128), out_channels=draw.pick(5, 32, 33, 64, 128),
        groups=draw.pick(1, 1, 2), size=draw.pick(5, 8),
        signs=draw.pick(*test_binary_fusions.SIGNS, *[None] * (pad is not None)))
    *others, last = problem.parts
    if isinstance(last, ElementwiseProblem) and draw.happens():
        # the signs of a batch norm, which has two numbers for each channel
        y, numbers = last.operands
        last = replace(last, operands=(y, numbers, numbers), constants=(1, 2),
                       expression=apply("mul").then(apply("add")).then(apply("sign")))
        problem = replace(problem, parts=(*others, last))
    return problem


KINDS: dict[str, Callable[[Draw], FusionProblem]] = {
    "block": lambda draw: _block(draw, True), "separable": lambda draw: _block(draw, False),
    "stem": _stem, "excited": _excited, "attention": _attention, "head": _head, "pair": _pair,
    "pool": _pool, "first": _first, "chain": _chain, "binary": _binary}
"""A function for each kind of fusion that draws one; it raises ValueError where it is invalid."""


def changed(draw: Draw, problem: FusionProblem) -> FusionProblem:
    """Returns a fusion with a change of a layer, of what a layer reads, or of what others read.
    Raises ValueError or IndexError where the changed fusion is invalid."""
    parts, sources, exits = list(problem.parts), list(problem.sources), problem.exits
    kind = draw.pick("exits", "source", "source", "part", "part", "part", "part", "part", "less",
                     "more")
    index = draw.pick(0, len(parts) - 1, draw.randrange(len(parts)))
    if kind == "exits":
        values = [(number, 0) for number in range(len(parts))]
        exits = tuple(sorted(draw.sample(values, draw.randint(1, min(2, len(values))))))
    elif kind == "source":
        place = draw.randrange(len(sources[index]))
        other = draw.pick(entry(0), entry(1), *((number, 0) for number in range(index)))
        sources[index] = (*sources[index][:place], other, *sources[index][place + 1:])
    elif kind == "less":
        if not 0 < index == len(parts) - 1:
            raise ValueError("a layer that others read, or the only one")
        parts, sources = parts[:-1], sources[:-1]
        exits = ((len(parts) - 1, 0),)
    elif kind == "more":
        last = len(parts) - 1
        parts.append(ElementwiseProblem((parts[-1].outputs[0],), draw.pick(
            apply("relu"), Expression(1))))
        sources.append(((last, 0),))
        exits = ((last + 1, 0),)
    else:
        parts[index] = _changed_part(draw, parts[index])
        missing = len(parts[index].inputs) - len(sources[index])
        further = [draw.pick(ENTRY, ENTRY, entry(1), *((number, 0) for number in range(index)))
                   for _ in range(missing)]
        sources[index] = (*sources[index][:len(parts[index].inputs)], *further)
    return rebuilt(parts, sources, exits)


def _changed_part(draw: Draw, part: Problem) -> Problem:
    changes: list[dict[str, Any]] = [{}]
    if isinstance(part, Conv2dProblem):
        changes = [
            {"stride": (2, 1)}, {"stride": (1, 2)}, {"pads": (1, 1, 0, 0)}, {"dilation": (1, 2)},
            {"kernel": (3, 3), "pads": (1,) * 4}, {"kernel": (1, 1), "pads": (0,) * 4},
            {"kernel": (2, 1)}, {"groups": 2}, {"groups": part.channels}, {"groups": 1},
            {"out_channels": 2 * part.out_channels}, {"out_channels": part.out_channels + 4},
            {"epilogue": BIAS_RESIDUAL}, {"epilogue": BIAS_RESIDUAL}, {"epilogue": Epilogue()},
            {"epilogue": BIAS_SILU},
            {"channels": 1, "groups": 1}, {"facts": ()}]
    elif isinstance(part, GemmProblem):
        changes = [{"facts": ()}, {"epilogue": LINEAR}, {"epilogue": BATCH_NORM_SIGN}]
    elif isinstance(part, ReduceProblem):
        changes = [{"kind": "max"}, {"kind": "sum"}, {"axes": (2,)}, {"axes": (3, 2)},
                   {"axes": (1, 2)}, {"keepdims": not part.keepdims}]
    elif isinstance(part, PoolProblem):
        changes = [{"kind": "max"}, {"kind": "average"}, {"kernel": (1, 1)}, {"stride": (1, 1)},
                   {"pads": (0, 0, 1, 0)}, {"dilation": (2, 1)}, {"kernel": (2, 2)},
                   {"kernel": part.input.shape[2:], "stride": (1, 1)}]
    elif isinstance(part, PadProblem):
        changes = [{"mode": "edge"}, {"value": 0.5}, {"facts": ()},
                   {"pads": (0, 1, *part.pads[2:])}, {"pads": (1, *part.pads[1:])},
                   {"pads": (*part.pads[:4], 0, 1, *part.pads[6:])}]
    elif isinstance(part, ElementwiseProblem):
        count = part.expression.inputs
        swapped = Expression(count, tuple(
            ExpressionStep(step.function, step.arguments[::-1], step.constants)
            for step in part.expression.steps), part.expression.outputs)
        changes = [{"dtypes": ("int32",) * len(part.dtypes)}, {"expression": swapped},
                   {"constants": ()}, {"constants": (count - 1,)}, {"formats": ()},
                   {"operands": (*part.operands[:-1], default_spec(()))},
                   {"operands": (*part.operands[:-1], default_spec(part.shape))},
                   {"operands": tuple(default_spec(spec.shape, "int32")
                                      for spec in part.operands)},
                   *({"operands": (part.operands[0],) * 2, "expression": both,
                      "constants": constants, "formats": ()}
                     for both in (apply("mul"), apply("sub").then(apply("sign")))
                     for constants in ((), (1,)))]
    return replace(part, **draw.pick(*changes))


def rebuilt(parts: list[Problem], sources: list[tuple[Source, ...]], exits: tuple[Source, ...]
            ) -> FusionProblem:
    """Returns a fusion whose layers have the sizes of what they read."""
    done: list[Problem] = []
    for part, read in zip(parts, sources, strict=True):
        specs: list[TensorSpec | None] = [
            done[number].outputs[place] if number >= 0 else None for number, place in read]
        done.append(_of_sizes(part, specs))
        if isinstance(done[-1], Conv2dProblem) and (
                done[-1].channels % done[-1].groups or done[-1].out_channels % done[-1].groups):
            raise ValueError("groups that do not divide the channels")
    return FusionProblem(tuple(done), tuple(sources), exits)


def _of_sizes(part: Problem, specs: list[TensorSpec | None]) -> Problem:
    """Returns a layer that reads tensors of these specs; None stands for an entry."""
    if isinstance(part, ElementwiseProblem):
        found = iter(specs)
        return replace(part, operands=tuple(
            spec if index in part.constants else next(found, None) or spec
            for index, spec in enumerate(part.operands)))
    if not specs or specs[0] is None:
        return part
    shape = specs[0].shape
    if isinstance(part, Conv2dProblem):
        groups = shape[1] if part.groups == part.channels > 1 else part.groups
        batch, channels, height, width = shape
        return replace(part, batch=batch, channels=channels, height=height, width=width,
                       groups=groups)
    if isinstance(part, GemmProblem):
        return replace(part, rows=shape[0], depth=shape[1])
    if isinstance(part, PoolProblem) and part.kernel == part.input.shape[2:]:
        return replace(part, input=specs[0], kernel=shape[2:])
    if isinstance(part, PoolProblem | ReduceProblem | PadProblem):
        return replace(part, input=specs[0])
    return part


def fusions(kind: str, count: int) -> dict[str, FusionProblem | str]:
    """Returns so many fusions of a kind, every second one with a change, by the names of the cases;
    in the place of an invalid fusion stands the text of its error."""
    def made(index: int) -> FusionProblem:
        draw = Draw(f"{kind} {index}")
        problem = KINDS[kind](draw)
        return changed(draw, problem) if index % 2 else problem

    return {f"{kind} {index}": made_or_refused(lambda index=index: made(index))
            for index in range(count)}
