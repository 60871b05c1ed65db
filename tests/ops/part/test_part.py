"""ONNX Runtime on parts: each op that it takes, against the float64 reference."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from gossamer.device.registry import find
from gossamer.errors import InputError, UnsupportedError
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.model.opset.normalisation import AFFINE
from gossamer.ops.algorithm import Epilogue, Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.problem import CopyProblem, expand, slice_, transpose
from gossamer.ops.elementwise.problem import ElementwiseProblem, cast
from gossamer.ops.fused.problem import PartProblem, ReshapeProblem, Source, entry
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.part import OP
from gossamer.ops.part.host import made_session, model_of, problem_times
from gossamer.ops.pool.problem import PoolProblem
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.tensor import Format, default_spec
from tests.ops.harness import check, random_array
from tests.ops.problems import PROBLEMS

HOST = find("host")
IMAGE = default_spec((2, 4, 7, 6))
BIAS_AND_SUM = Epilogue(Expression(3, (ExpressionStep("add", (0, 1)), ExpressionStep("relu", (3,)),
                                       ExpressionStep("add", (4, 2)))), ("channel", "tensor"))
SCALE_AND_BIAS = Epilogue(Expression(3, (ExpressionStep("mul", (0, 1)),
                                         ExpressionStep("add", (3, 2)))), ("channel", "channel"))
BIAS_TWICE = Epilogue(Expression(2, (ExpressionStep("add", (1, 0)),
                                     ExpressionStep("mul", (2, 0)))), ("channel",))


def alone(problem: Problem) -> PartProblem:
    """Return a problem as a part of its own."""
    return PartProblem((problem,), (tuple(entry(i) for i in range(len(problem.inputs))),),
                       tuple((0, i) for i in range(len(problem.outputs))))


def chain(*problems: Problem) -> PartProblem:
    """Return problems of one input each that follow one another, as a part."""
    sources: list[tuple[Source, ...]] = [(entry(0),)]
    sources += [((index, 0),) for index in range(len(problems) - 1)]
    return PartProblem(problems, tuple(sources), ((len(problems) - 1, 0),))


def operators_of(problem: PartProblem) -> list[str]:
    """Return the operators of the nodes that a part is written as."""
    return [node.op_type for node in onnx.load_from_string(model_of(problem)).graph.node]


NORM_OF_SUM = Epilogue(Expression(6, (
    ExpressionStep("add", (0, 1)), ExpressionStep("sub", (2, 3)), ExpressionStep("mul", (7, 4)),
    ExpressionStep("add", (8, 5)), ExpressionStep("add", (6, 9)))),
    ("channel", "tensor", "channel", "channel", "channel"))
_CHANNELS = default_spec((4, 1, 1))
BATCH_NORM = ElementwiseProblem((IMAGE, _CHANNELS, _CHANNELS, _CHANNELS),
                                AFFINE.then(apply("relu")), constants=(1, 2, 3))

MORE: Sequence[Problem] = [
    BATCH_NORM, replace(BATCH_NORM, constants=(1, 2)),
    replace(BATCH_NORM, operands=(default_spec((3, 4)), *[default_spec((4,))] * 3)),
    Conv2dProblem(2, 4, 7, 6, 6, (3, 3), (2, 1), (1, 0, 1, 2), (1, 1), 2, BIAS_AND_SUM),
    Conv2dProblem(1, 3, 5, 5, 4, (3, 2), dilation=(2, 1), epilogue=SCALE_AND_BIAS),
    Conv2dProblem(2, 3, 5, 6, 4, (1, 1), epilogue=NORM_OF_SUM),
    GemmProblem(3, 5, 7, BIAS_AND_SUM), GemmProblem(3, 5, 7, SCALE_AND_BIAS),
    GemmProblem(1, 5, 7, BIAS_TWICE),
    *(PoolProblem(IMAGE, kind, (3, 3), (2, 2), pads, ceil_mode=True, count_include_pad=counts)
      for kind, pads, counts in [("max", (0, 0, 0, 0), False), ("max", (1, 1, 1, 1), False),
                                 ("average", (1, 1, 1, 1), False),
                                 ("average", (1, 0, 0, 1), True)]),
    PoolProblem(IMAGE, "max", (2, 2), dilation=(2, 3)),
    ReduceProblem(IMAGE, "mean", (2, 3), False), ReduceProblem(IMAGE, "mean", (1,)),
    ReduceProblem(IMAGE, "sum", (1, 3), False), ReduceProblem(IMAGE, "max", (0, 2), False),
    LayerNormProblem(IMAGE, (3,), 1e-3), LayerNormProblem(IMAGE, (1, 3)),
    LayerNormProblem(IMAGE, (2, 3), centred=False), LayerNormProblem(IMAGE, (1, 2, 3)),
    slice_(IMAGE, [5, -1], [-99, 0], [2, 3], [-2, -3]),
    expand(default_spec((4, 1, 6)), (2, 4, 7, 6)),
    transpose(default_spec((2, 3, 4), "int64"), (2, 0, 1)),
    CopyProblem(default_spec((3, 4, 5)), default_spec((5, 2, 3)), (2, None, 0), (1, 1, 1),
                (0, 2, 0)),
    *(ResizeProblem(IMAGE, size, scales, *rules) for size, scales in [
        ((14, 12), (2.0, 2.0)), ((10, 9), (1.5, 1.5)), ((5, 11), (5 / 7, 11 / 6))]
      for rules in [("nearest", "asymmetric", "floor"), ("linear", "half_pixel"),
                    ("linear", "align_corners"), ("nearest", "half_pixel", "round_prefer_ceil")]),
    *(ResizeProblem(default_spec((1, 1, size, other)), (other, size), (
        other / size, size / other), "nearest", *rule)
      for size, other in ((28, 4), (49, 7), (28, 48), (20, 6), (14, 19), (7, 38), (7, 2))
      for rule in [("asymmetric", "floor"), ("pytorch_nearest", "floor"),
                   ("half_pixel", "round_prefer_ceil"), ("half_pixel", "round_prefer_floor")]),
    cast(default_spec((5,), "int64"), "int32"), cast(default_spec((5,)), "int64"),
    ElementwiseProblem((IMAGE, default_spec((4, 1, 1))), apply("prelu"), constants=(1,)),
    ElementwiseProblem((default_spec((4, 1, 1)), IMAGE), apply("prelu")),
    ElementwiseProblem((default_spec((3, 1)), default_spec((2,))),
                       Expression(2, (ExpressionStep("exp", (0,)),), (2, 0)), ("float32",) * 2),
    ElementwiseProblem((default_spec((3,), "bool"), default_spec((3,), "int64"),
                        default_spec((3,), "int64")), apply("where"), ("int64",)),
]
"""Problems with forms of their own beside those that build each kernel."""


def is_taken(problem: Problem) -> bool:
    return OP.algorithms[0].supports(alone(problem), HOST) is None


@pytest.mark.parametrize("problem", [
    problem for op, problems in PROBLEMS.items() if op != "gather" for problem in problems
    if is_taken(problem)] + list(MORE), ids=lambda problem: f"{problem.op} {problem.describe()}")
def test_problems_are_computed_as_the_reference_does(problem: Problem) -> None:
    check(alone(problem), HOST)


def test_gathering_takes_constants_and_indices_in_range() -> None:
    problem = alone(GatherProblem(default_spec((5, 3)), default_spec((4,), "int32"), 0, (0,)))
    (indices,) = problem.example_inputs(np.random.default_rng(0))
    assert check(problem, HOST, inputs=[indices])


def test_most_ops_are_taken() -> None:
    taken = {op for op, problems in PROBLEMS.items() if any(map(is_taken, problems))}
    assert taken == {"pool", "reduce", "softmax", "resize", "pad", "copy", "concat", "gather",
                     "matmul", "conv_transpose2d", "elementwise", "layer_norm"}


def test_a_part_of_several_problems() -> None:
    problem = chain(Conv2dProblem(2, 3, 6, 5, 4, (3, 3)), ReduceProblem(
        default_spec((2, 4, 4, 3)), "mean", (2, 3)), ReshapeProblem(default_spec((2, 4, 1, 1)),
                                                                    (2, 4)), GemmProblem(2, 3, 4))
    assert check(problem, HOST)
    assert problem.first_images(1).outputs[0].shape == (1, 3)
    assert problem.describe() == "part of the network, 4 layers"
    assert replace(problem, whole=True).describe() == "whole network, 4 layers"


def test_bytes_of_photos_are_read_as_they_lie() -> None:
    spec = default_spec((1, 3, 4, 5))
    problem = alone(ElementwiseProblem((spec,), Expression(1, (
        ExpressionStep("constant", (), (1 / 255,)), ExpressionStep("mul", (0, 1)))),
        formats=(Format("NHWC", "uint8"),)))
    assert check(problem, HOST, inputs=[random_array(
        np.random.default_rng(0), spec.shape, "uint8")])


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("kind", ["mean", "max", "sum"])
@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_reductions_along_any_axes(rank: int, kind: str, keepdims: bool) -> None:
    """One part computes the reductions of one tensor along all sets of axes."""
    spec = default_spec((2, 3, 4, 2, 3)[:rank])
    problems = [ReduceProblem(spec, kind, axes, keepdims) for count in range(rank + 1)
                for axes in itertools.combinations(range(rank), count)]
    part = PartProblem(tuple(problems), ((entry(0),),) * len(problems),
                       tuple((index, 0) for index in range(len(problems))))
    check(part, HOST)
    if kind == "mean":
        assert operators_of(part).count("GlobalAveragePool") == (rank == 4)


def test_what_has_no_form_is_refused_by_name() -> None:
    packed = Format("packed32", "bits")
    with pytest.raises(UnsupportedError, match="has no ONNX equivalent"):
        model_of(alone(cast(default_spec((0, 2)), "int32")))
    with pytest.raises(UnsupportedError, match="packed32 has no ONNX equivalent"):
        model_of(alone(CopyProblem(replace(IMAGE, format=packed), IMAGE, (0, 1, 2, 3), (1,) * 4,
                                   (0,) * 4)))
    with pytest.raises(UnsupportedError, match="bfloat16 NHWC has no ONNX equivalent"):
        model_of(alone(ElementwiseProblem((IMAGE,), Expression(1),
                                          formats=(Format("NHWC", "bfloat16"),))))
    with pytest.raises(UnsupportedError, match=r"pads \(0, 0, 2, 0\) that are not smaller than"):
        model_of(alone(PoolProblem(default_spec((1, 3, 8, 8)), "max", (2, 2), (3, 1),
                                   dilation=(3, 1), ceil_mode=True)))
    with pytest.raises(UnsupportedError, match="a padding of int16 has no ONNX equivalent"):
        model_of(alone(PadProblem(default_spec((2, 3), "int16"), (0, 1, 0, 0))))
    integers = default_spec((3,), "int64")
    assert OP.algorithms[0].supports(
        alone(ElementwiseProblem((integers, integers), apply("div"), ("int64",))), HOST) == (
        "div of int64 has no ONNX equivalent")


@pytest.mark.parametrize(("problem", "operators"), [
    (BATCH_NORM, ["Reshape", "Reshape", "Reshape", "BatchNormalization", "Relu"]),
    (replace(BATCH_NORM, constants=(1, 2)), ["Sub", "Mul", "Add", "Relu"]),
    (replace(BATCH_NORM, operands=(IMAGE, *[default_spec((1, 6))] * 3)),
     ["Sub", "Mul", "Add", "Relu"]),
    (replace(BATCH_NORM, operands=(default_spec((3, 4)), *[default_spec((4,))] * 3)),
     ["Reshape", "Reshape", "Reshape", "BatchNormalization", "Relu"]),
    (Conv2dProblem(2, 3, 5, 6, 4, (1, 1), epilogue=NORM_OF_SUM),
     ["Conv", *["Reshape"] * 6, "BatchNormalization", "Add"]),
])
def test_a_batch_norm_of_images_is_one_node(problem: Problem,
                                            operators: list[str]) -> None:
    assert operators_of(alone(problem)) == operators


@pytest.mark.parametrize("also", [(), (5,), (6,)], ids=["last", "difference", "product"])
@pytest.mark.parametrize("added", [0, 1, 5, 6])
@pytest.mark.parametrize("scaled", [0, 1, 5])
def test_only_a_chain_of_steps_is_a_batch_norm(scaled: int, added: int,
                                               also: tuple[int, ...]) -> None:
    """The steps are those of a batch norm, and may read other values and have further results.

    scaled, added: the value that is scaled, and the value to which the shift is added. Values 0 and
    1 are images, 5 is the difference, and 6 the product.
    also: results beside the last step's.
    """
    outputs = (*also, 7)
    problem = ElementwiseProblem(
        (IMAGE, IMAGE, *[_CHANNELS] * 3),
        Expression(5, (ExpressionStep("sub", (0, 2)), ExpressionStep("mul", (scaled, 3)),
                       ExpressionStep("add", (added, 4))), outputs),
        ("float32",) * len(outputs), constants=(2, 3, 4))
    check(alone(problem), HOST)
    is_norm = (scaled, added, also) == (5, 6, ())
    assert ("BatchNormalization" in operators_of(alone(problem))) == is_norm


@pytest.mark.parametrize(("images", "operand", "is_norm"), [
    ((2, 4, 7, 6), (4, 1, 1), True), ((2, 4, 7, 6), (1, 4, 1, 1), True),
    ((2, 4, 7, 6), (4, 7, 6), False), ((2, 4, 7, 6), (1, 1, 1), False),
    ((2, 4, 7, 6), (6,), False), ((2, 4, 7, 4), (4,), False), ((2, 4, 7, 6), (), False),
    ((2, 4, 3, 2, 2), (4, 1, 1, 1), True), ((2, 4, 4, 2, 2), (4, 1, 1), False),
    ((3, 4, 5), (4, 1), True), ((3, 4), (4,), True), ((3, 4), (1, 4), True),
    ((3, 4), (3, 1), False), ((3, 4), (3, 4), False), ((4,), (4,), False)])
def test_a_batch_norm_has_a_number_for_each_channel(
        images: tuple[int, ...], operand: tuple[int, ...], is_norm: bool) -> None:
    problem = replace(BATCH_NORM, operands=(default_spec(images), *[default_spec(operand)] * 3))
    check(alone(problem), HOST)
    assert ("BatchNormalization" in operators_of(alone(problem))) == is_norm


_INTEGERS = default_spec((4, 3), "int64")
_SQUARE = Expression(1, (ExpressionStep("mul", (0, 0)),))


@pytest.mark.parametrize(("problem", "operators"), [
    (ElementwiseProblem((default_spec((4, 3)),), _SQUARE), ["Pow"]),
    (ElementwiseProblem((_INTEGERS,), _SQUARE, ("int64",)), ["Mul"]),
    (ElementwiseProblem((_INTEGERS, _INTEGERS), apply("mul"), ("int64",)), ["Mul"]),
    (ElementwiseProblem((IMAGE, _CHANNELS), apply("prelu")), ["PRelu"]),
    (ElementwiseProblem((_CHANNELS, IMAGE), apply("prelu")), ["Less", "Mul", "Where"])])
def test_steps_are_the_nodes_that_onnxruntime_knows(problem: Problem,
                                                    operators: list[str]) -> None:
    check(alone(problem), HOST)
    assert operators_of(alone(problem)) == operators


def test_a_batch_norm_after_a_step_of_another_shape() -> None:
    problem = ElementwiseProblem(
        (IMAGE, *[_CHANNELS] * 4),
        Expression(5, (ExpressionStep("relu", (4,)), ExpressionStep("sub", (0, 1)),
                       ExpressionStep("mul", (6, 2)), ExpressionStep("add", (7, 3)),
                       ExpressionStep("add", (8, 5)))), constants=(1, 2, 3, 4))
    check(alone(problem), HOST)
    assert "BatchNormalization" in operators_of(alone(problem))


def test_each_problem_has_a_time_of_its_own() -> None:
    problem = chain(Conv2dProblem(1, 16, 30, 30, 16, (3, 3)), PoolProblem(
        default_spec((1, 16, 28, 28)), "average", (2, 2)))
    algorithm = OP.algorithms[0]
    variant = next(iter(algorithm.variants(problem, HOST)))
    weights = {"0.weight": np.ones((16, 16, 3, 3), np.float32)}
    times = problem_times(problem, weights, variant, [np.ones((1, 16, 30, 30), np.float32)])
    assert len(times) == 2 and times[0] > 0


def test_fused_nodes_have_the_time_of_their_problem() -> None:
    relu = Epilogue(Expression(1, (ExpressionStep("relu", (0,)),), (1,)))
    problem = chain(GemmProblem(2, 64, 64, relu))
    variant = next(iter(OP.algorithms[0].variants(problem, HOST)))
    weights = {"0.weight": np.ones((64, 64), np.float32)}
    (us,) = problem_times(problem, weights, variant, [np.ones((2, 64), np.float32)])
    assert us > 0


def test_times_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    session = made_session(chain(GemmProblem(2, 3, 3)), {"0.weight": np.eye(3, dtype=np.float32)},
                           Variant((("threads", 1),), (), ()), profiled=True)
    session.run([np.ones((2, 3), np.float32)])
    whole = Path.read_text
    monkeypatch.setattr(Path, "read_text", lambda path: whole(path)[:-20])
    with pytest.raises(InputError, match=r"could not write the times of layers to .* free space"):
        session.node_times()


@pytest.mark.parametrize("sizes", [(7, 5), (5, 7)])
def test_problems_of_other_numbers_of_images_are_compared_whole(sizes: Sequence[int]) -> None:
    parts = tuple(SoftmaxProblem(default_spec((size, 3)), 1) for size in sizes)
    problem = PartProblem(parts, ((entry(0),), (entry(1),)), ((0, 0), (1, 0)))
    assert problem.first_images(1) == problem.first_images(6) == problem
    assert check(problem, HOST)


class _Session:
    """A session whose nodes take longer in each run."""

    def __init__(self) -> None:
        self.runs = 0

    def run(self, inputs: object) -> None:
        self.runs += 1

    def node_times(self) -> list[tuple[str, float]]:
        return [node for run in range(self.runs) for node in (
            ("0/1", 10.0 * run), ("added by the library", 500.0), ("0/2", 1.0), ("2/7", 3.0))]


def test_the_median_of_runs_without_the_first_two(monkeypatch: pytest.MonkeyPatch) -> None:
    session = _Session()
    monkeypatch.setattr("gossamer.ops.part.host.made_session", lambda *parts, profiled: session)
    spec = default_spec((2, 3))
    problem = chain(*[ReduceProblem(spec, "max", ())] * 3)
    times = problem_times(problem, {}, Variant((), (spec,), (spec,)), [np.zeros((2, 3))])
    # of runs 2 to 8 the median is run 5; the second problem has no node of its own
    assert times == [51.0, 0.0, 3.0]
    assert session.runs == 9
