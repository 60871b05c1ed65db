"""Records of the ONNX models of drawn problems, and their results by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from gossamer import host_library
from gossamer.device.registry import find
from gossamer.errors import UnsupportedError
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv_transpose2d.problem import ConvTranspose2dProblem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.fused.problem import FusionProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.part.host import OnnxRuntime
from gossamer.ops.part.model import model_of, part_of_node
from gossamer.ops.part.problem import PartProblem, ReshapeProblem
from gossamer.tensor import default_spec
from tests.ops.drawn import SIMPLE, Draw, problems
from tests.ops.fused.drawn import fusions
from tests.ops.harness import check
from tests.ops.offers import exact_inputs, exact_weights, is_small, properties
from tests.ops.part.test_part import alone
from tests.ops.test_recorded_helpers import ALL_EPILOGUES
from tests.recorded import Recorded, digest

COUNTS = {"copy": 80, "elementwise": 120, "pool": 40, "reduce": 40, "pad": 30, "resize": 40,
          "gather": 30, "layer_norm": 20, "softmax": 6, "top_k": 2, "concat": 6, "batch_norm": 2}
"""Number of problems of each op."""
COMPUTED = 3
"""One in this number of problems is computed by ONNX Runtime."""
NORMS = (
    (), ((1, 2, 3), None), ((1, 2), None), ((2, 3), None), ((1, 3), None),
    ((1, 2, 3), ("sub", "mul", "sub")), ((1, 2, 3), ("add", "mul", "add")))


def _norms() -> Iterator[ElementwiseProblem]:
    """Yields batch norms (x - mean) * scale + shift, and what is nearly one."""
    image, matrix = default_spec((2, 4, 3, 2)), default_spec((3, 4))
    steps = (ExpressionStep("sub", (0, 1)), ExpressionStep("mul", (4, 2)),
             ExpressionStep("add", (5, 3)))
    changed = [steps, (*steps, ExpressionStep("relu", (6,))),
               (ExpressionStep("sub", (1, 0)), *steps[1:]),
               (steps[0], ExpressionStep("mul", (2, 4)), steps[2]),
               (steps[0], ExpressionStep("mul", (4, 4)), steps[2]),
               (*steps[:2], ExpressionStep("add", (4, 3))),
               (*steps[:2], ExpressionStep("sub", (5, 3))),
               (*steps, ExpressionStep("mul", (6, 5))), (*steps, ExpressionStep("mul", (6, 4))),
               (ExpressionStep("abs", (0,)), ExpressionStep("sub", (4, 1)),
                ExpressionStep("mul", (5, 2)), ExpressionStep("add", (6, 3)))]
    for number, each in enumerate(changed):
        last = 3 + len(each)
        for outputs in ((last,), (last, 5), (last, 4)):
            for constants in ((1, 2, 3), (1, 2), (2, 3)) if number < 2 else ((1, 2, 3),):
                for x, vector in ((image, (4, 1, 1)), (image, (1, 4, 1, 1)), (image, (4, 1, 2)),
                                  (image, ()), (matrix, (4,)), (matrix, (1, 4)),
                                  (default_spec((4,)), (4,))):
                    yield ElementwiseProblem(
                        (x, *(default_spec(vector),) * 3), Expression(4, each, outputs),
                        ("float32",) * len(outputs), constants)


def _products() -> Iterator[Problem]:
    epilogues = [*ALL_EPILOGUES, *(
        Epilogue(Expression(3, steps, outputs), kinds) for kinds in (
            ("channel", "tensor"), ("tensor", "channel"), ("channel", "channel"))
        for steps, outputs in (
            ((ExpressionStep("add", (1, 0)), ExpressionStep("mul", (3, 2))), (4,)),
            ((ExpressionStep("add", (0, 2)), ExpressionStep("sub", (3, 1))), (4,)),
            ((ExpressionStep("add", (0, 2)), ExpressionStep("sub", (3, 0))), (4,)),
            ((ExpressionStep("add", (0, 2)),), (3, 0)),
            ((ExpressionStep("add", (0, 0)), ExpressionStep("add", (3, 1))), (4,)),
            ((ExpressionStep("add", (1, 2)), ExpressionStep("mul", (3, 0))), (4,))))]
    for number, epilogue in enumerate(epilogues):
        yield Conv2dProblem(2, 4, 7, 6, 6, (3, 2), (2, 1), (1, 0, 1, 2), (1, 2), 1 + number % 2,
                            epilogue)
        yield GemmProblem(3, 5, 7, epilogue)
    for transposed in ((), (0,), (1,), (0, 1)):
        for constants in ((), (0,), (1,)):
            for dtype in ("float32", "int32"):
                yield MatmulProblem(
                    default_spec((2, 5, 4) if 0 in transposed else (2, 4, 5), dtype),
                    default_spec((3, 5) if 1 in transposed else (5, 3), dtype), constants,
                    transposed)
    for number in range(6):
        draw = Draw(f"transposed {number}")
        yield ConvTranspose2dProblem(
            default_spec((1, 4, 5, 6)), 2, (3, 2), (draw.pick(1, 2), 2), bias=draw.happens())
    yield ReshapeProblem(default_spec((2, 3, 4)), (6, 4))
    yield ReshapeProblem(default_spec((2, 3, 4), "int64"), (2, 12))


def cases() -> dict[str, PartProblem]:
    """Returns parts of one problem, and parts of the layers of fusions."""
    found: dict[str, Problem | str] = {}
    for op in SIMPLE:
        found.update(problems(op, COUNTS[op]))
    found.update({f"norm {number}": problem for number, problem in enumerate(_norms())})
    found.update({f"product {number}": problem for number, problem in enumerate(_products())})
    for kind in ("excited", "pool", "pair", "head", "attention", "stem"):
        found.update(fusions(kind, 10))
    return {case: PartProblem(problem.parts, problem.sources, problem.exits)
            if isinstance(problem, FusionProblem) else alone(problem)
            for case, problem in found.items() if not isinstance(problem, str)}


def text_of(model: onnx.ModelProto) -> str:
    """Returns the nodes of a model, and a digest with its inputs, outputs and constants."""
    graph = model.graph
    nodes = [(node.op_type, list(node.input), list(node.output), sorted(
        (attribute.name, helper.get_attribute_value(attribute)) for attribute in node.attribute))
        for node in graph.node]
    values = [(info.name, info.type.tensor_type.elem_type,
               [size.dim_value for size in info.type.tensor_type.shape.dim])
              for info in (*graph.input, *graph.output)]
    constants = [(tensor.name, numpy_helper.to_array(tensor)) for tensor in graph.initializer]
    versions = [model.ir_version, [entry.version for entry in model.opset_import]]
    return (f"{' '.join(node.op_type for node in graph.node)} "
            f"{digest([nodes, values, constants, versions])}")


def test_models_of_drawn_parts(recorded: Recorded) -> None:
    texts = {}
    for case, problem in cases().items():
        try:
            text = text_of(onnx.load_model_from_string(model_of(problem)))
        except UnsupportedError as error:
            text = f"({error})"
        texts[case] = f"{problem.parts[0].describe()}; {text}; {digest(properties(problem))}"
    texts |= {f"part of node {name}": str(part_of_node(name))
              for name in ("", "3", "3/", "3/4", "12/1", "a/1", "/1", "-1/2", "3/4/5")}
    recorded("part_models", texts)


@pytest.mark.skipif(not host_library.is_installed(), reason="ONNX Runtime is not installed")
def test_onnxruntime_computes_drawn_parts() -> None:
    host, computed = find("host"), 0
    for number, problem in enumerate(cases().values()):
        if number % COMPUTED or not is_small(problem) or OnnxRuntime().supports(
                problem, host) is not None:
            continue
        if any(part.op == "gather" and 1 not in part.constants for part in problem.parts):
            # ONNX Runtime refuses indices that are out of range
            continue
        inputs = exact_inputs(problem)
        with np.errstate(all="ignore"):
            check(problem, host, inputs=inputs, weights=exact_weights(problem),
                  taken=lambda variants: variants[:1])
        computed += 1
    assert computed > 50


def test_the_same_part_has_the_same_model() -> None:
    problem = alone(ElementwiseProblem((default_spec((2, 3)),), apply("relu")))
    assert model_of(problem) == model_of(replace(problem, whole=True))
