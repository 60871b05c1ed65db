"""Value facts, signs, sums, interpolation and the limits of shape inference, for inputs on both
sides of each of their bounds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.facts import (
    NONNEGATIVE,
    PLUS_MINUS_ONE,
    REAL,
    TERNARY,
    ValueFacts,
    integers,
    of_array,
    point,
)
from gossamer.model.graph import Graph, Node, StaticGraph, ValueInfo
from gossamer.model.infer.resolve import resolve
from gossamer.model.opset import signs
from gossamer.model.opset.definition import define, never_jumps, resolved
from gossamer.model.opset.expression_facts import expression_facts
from gossamer.model.opset.images import Images
from gossamer.model.opset.interpolation import interpolation, weights_while_computed
from gossamer.model.opset.registry import OPSET, by_name
from gossamer.model.opset.shapes import swaps_matrices
from gossamer.model.opset.signs import are_scaled_signs, is_never_zero
from gossamer.model.opset.state import InferenceState
from gossamer.model.opset.sums import weighted_sums
from tests.recorded import Recorded, digest
from tests.recorded.graphs import array_text, brief, facts_text, outcome, static_text

FACTS = (REAL, NONNEGATIVE, PLUS_MINUS_ONE, TERNARY, integers(0, 1), integers(-2, 3),
         integers(0, 255), point(0.0), point(1.0), point(-1.0), point(2.0), point(0.3),
         ValueFacts(0.25, 2.5), ValueFacts(-3, -1), ValueFacts(0, 4), ValueFacts(-math.inf, -1),
         ValueFacts(1, math.inf, 1), ValueFacts(-0.5, 1.0, 0.5), integers(-2**24, 2**24))
CONSTANTS = {"clip": ((-1, 1), (0, 6)), "leaky_relu": ((0.5,), (-1,)),
             "hard_sigmoid": ((0.25, 0.5), (1, 0)), "constant": ((2,), (0.5,), (math.nan,))}
"""The constants that functions are given."""


def _facts_texts(results: Sequence[ValueFacts]) -> str:
    return " ".join(map(facts_text, results))


def test_facts_of_functions(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for name, function in FUNCTIONS.items():
        for constants in CONSTANTS.get(name, ((),)):
            expression = Expression(function.arity, (ExpressionStep(
                name, tuple(range(function.arity)), constants),))
            told = f"{name}{constants or ''}"
            if function.arity < 3:
                for first in FACTS[:1] if not function.arity else FACTS:
                    others = [()] if function.arity < 2 else [(other,) for other in FACTS]
                    operands = [[first, *other][:function.arity] for other in others]
                    for integer in (False, True):
                        results = [expression_facts(expression, given, integer=integer)[0]
                                   for given in operands]
                        text = _facts_texts(results)
                        found[f"{told} {facts_text(first)}{' of integers' if integer else ''}"] = (
                            text if not integer else digest(text))
                continue
            triples = itertools.product(FACTS[1:9], FACTS[::3], FACTS[1::4])
            found[told] = brief(_facts_texts([
                expression_facts(expression, list(given))[0] for given in triples]), 400)
    recorded("facts_of_functions", found)


def _drawn_expression(rng: np.random.Generator) -> Expression:
    """Returns a few steps with comparisons, some of which several later steps read."""
    inputs, steps = int(rng.integers(1, 4)), []
    names = ["sign", "less", "greater_equal", "equal", "where", "mul", "add", "sub", "relu",
             "constant", "min", "not", "and", "neg", "abs", "clip", "floor", "div"]
    for index in range(int(rng.integers(2, 9))):
        name = str(rng.choice(names))
        constants = CONSTANTS.get(name, ((),))[0]
        if name == "constant":
            constants = (float(rng.choice([0, 0.5, 1, -1, 2])),)
        steps.append(ExpressionStep(name, tuple(
            int(rng.integers(max(inputs + index - 4, 0), inputs + index))
            for _ in range(FUNCTIONS[name].arity)), constants))
    last = inputs + len(steps) - 1
    return Expression(inputs, tuple(steps), (last,) if rng.random() < 0.7 else (last - 1, last))


def test_facts_of_expressions(recorded: Recorded) -> None:
    rng = np.random.default_rng(11)
    found: dict[str, str] = {}
    for number in range(160):
        expression = _drawn_expression(rng)
        texts = []
        for _ in range(6):
            operands = [FACTS[int(rng.integers(len(FACTS)))] for _ in range(expression.inputs)]
            texts.append(_facts_texts(expression_facts(expression, operands)))
        texts.append(digest([_facts_texts(expression_facts(
            expression, [known] * expression.inputs, integer=True)) for known in FACTS]))
        found[f"{number} {'-'.join(step.function for step in expression.steps)}"] = ", ".join(texts)
    # values that are compared with as many numbers, and as many compared values, as are followed
    for count in (3, 4, 5, 7, 8, 9, 10):
        limits = [step for limit in range(count) for step in (
            ExpressionStep("constant", (), (limit + 0.5,)),
            ExpressionStep("less", (0, 1 + 3 * limit)),
            ExpressionStep("add", (2 + 3 * limit, 3 * limit)))]
        found[f"one value, {count} limits"] = _facts_texts(expression_facts(
            Expression(1, tuple(limits)), [integers(0, 12)]))
        found[f"{count} values"] = _facts_texts(expression_facts(Expression(count, (
            *(ExpressionStep("sign", (index,)) for index in range(count)),
            *(ExpressionStep("mul", (index, count + index)) for index in range(count)))),
            [TERNARY] * (count - 1) + [integers(-3, 3)]))
    recorded("facts_of_expressions", found)


def test_facts_of_sums(recorded: Recorded) -> None:
    rng = np.random.default_rng(12)
    found: dict[str, str] = {}
    for shape in ((1, 1), (1, 5), (3, 4), (2, 3, 2), (0, 3), (3, 0), (1, 255), (1, 257)):
        for kind in ("signs", "ternary", "few", "half", "one", "zeros", "large", "real",
                     "infinite"):
            drawn = {"signs": rng.choice([-1, 1], shape), "ternary": rng.integers(-1, 2, shape),
                     "few": rng.integers(-3, 5, shape), "half": rng.integers(-3, 5, shape) / 2,
                     "one": np.ones(shape), "zeros": np.zeros(shape),
                     "large": rng.integers(-2**20, 2**20, shape),
                     "real": rng.standard_normal(shape),
                     "infinite": np.full(shape, np.inf)}[kind].astype(np.float32)
            known = of_array(drawn) if drawn.size else REAL
            found[f"{list(shape)} {kind}"] = _facts_texts([
                weighted_sums(values, known, drawn) for values in FACTS])
    recorded("facts_of_sums", found)


BEFORE = ("add", "sub", "mul", "div", "neg", "min", "max", "prelu", "relu", "clip", "sign",
          "leaky_relu", "constant", "tanh")


def _drawn_signs(rng: np.random.Generator) -> tuple[Expression, int]:
    """Returns an expression that ends in a sign, and the number of its operands."""
    operands = int(rng.integers(0, 3))
    steps: list[ExpressionStep] = []
    for _ in range(int(rng.integers(1, 4))):
        name = str(rng.choice(BEFORE[:13] if rng.random() < 0.95 else BEFORE))
        arguments = [operands + len(steps) if steps else 0,
                     int(rng.integers(0, 1 + operands + len(steps)))]
        constants = {"clip": (-1.5, 2.0), "leaky_relu": (0.125,), "constant": (0.75,)}.get(name, ())
        steps.append(ExpressionStep(name, tuple(arguments[:FUNCTIONS[name].arity]), constants))
    last = 1 + operands + len(steps)
    steps.append(ExpressionStep("sign", (last - 1,)))
    return Expression(1 + operands, tuple(steps)), operands


def test_signs(recorded: Recorded) -> None:
    rng = np.random.default_rng(13)
    found: dict[str, str] = {}
    for number in range(150):
        expression, count = _drawn_signs(rng)
        answers, intervals = "", []
        for known, exact in itertools.product((PLUS_MINUS_ONE, TERNARY), (True, False)):
            for depth in (1, 2, 3, 8):
                alphas = rng.choice([0.5, 1, 3], 3)
                weight = (alphas[:, None] * rng.choice([-1, 1], (3, depth))).astype(np.float32)
                operands = [rng.choice([-2.5, -1, 0, 0.25, 1, 1.5, 3], 3).astype(np.float32)
                            for _ in range(count)]
                answers += str(int(is_never_zero(expression, known, weight, operands,
                                                 exact=exact)))
        for bounds in ((-2.0, -1.0), (-1.0, 2.0), (0.5, 3.0), (0.0, 0.0)):
            sums = (np.float64([bounds[0]]), np.float64([bounds[1]]))
            others = [(np.float64([low]), np.float64([low + 1])) for low in (-0.5, 1.0)][:count]
            result = signs._before_sign(expression, sums, others)
            intervals.append("none" if result is None else " ".join(
                f"{float(bound.reshape(-1)[0]) + 0.0:.10g}" for bound in result))
        names = "-".join(step.function for step in expression.steps[:-1])
        found[f"{number} {names}"] = f"{answers} {', '.join(intervals)}"
    recorded("signs", found)


def test_signs_at_their_bounds(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    add = apply("add").then(apply("sign"))

    def answer(known: ValueFacts, weight: np.ndarray, *operands: Any, exact: bool = True,
               expression: Expression = add) -> str:
        return str(is_never_zero(expression, known, weight, operands, exact=exact))

    for known in FACTS[:8]:
        for depth in (0, 1, 2, 3):
            found[f"{facts_text(known)} {depth}"] = answer(
                known, np.ones((2, depth), np.float32), np.float32([0.5, 0.5]))
    for depth in (2**16 - 1, 2**16, 2**16 + 1):
        found[f"depth {depth}"] = answer(PLUS_MINUS_ONE, np.ones((1, depth), np.float32),
                                         np.float32([0.5]))
    for depth in (7, 64, 65, 576):
        for distance in (0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.05):
            weight = np.full((1, depth), 0.1, np.float32)
            found[f"{depth} of 0.1, {distance} apart"] = " ".join(
                answer(PLUS_MINUS_ONE, weight, np.float32([0.1 * (depth % 2) + distance]),
                       exact=exact) for exact in (True, False))
    rows = 70000
    for place in (None, 0, 5041, 5042, 21844, 21845, 21846, 69999):
        bias = np.full(rows, 0.5, np.float32)
        if place is not None:
            bias[place] = 1
        found[f"{rows} rows, one zero at {place}"] = answer(
            PLUS_MINUS_ONE, np.ones((rows, 1), np.float32), bias)
    for name, expression in {
            "none": Expression(1), "sign": apply("sign"), "relu": apply("relu"),
            "two outputs": Expression(1, (ExpressionStep("sign", (0,)),), (0, 1)),
            "other output": Expression(1, (ExpressionStep("relu", (0,)),
                                           ExpressionStep("sign", (1,))), (1,))}.items():
        found[name] = answer(PLUS_MINUS_ONE, np.ones((1, 3), np.float32), expression=expression)
    found["operand at run time"] = answer(PLUS_MINUS_ONE, np.ones((1, 3), np.float32), None)
    weights = {"one": [[1, -1], [2, 2]], "first row": [[1, 2], [2, 2]], "second row": [[1, 1], [1,
                                                                                                2]],
               "zero": [[0, 0]], "second zero": [[1, 1], [0, 0]], "infinite": [[np.inf, -np.inf]],
               "nan": [[np.nan, np.nan]], "second infinite": [[1, 1], [np.inf, np.inf]],
               "single": [[3]], "close": [[1, 1.0000001]], "last": [[1, 1, 1, 2]]}
    for name, values in weights.items():
        rows = np.float32(values)
        found[f"scaled {name}"] = (
            f"{are_scaled_signs(rows)} {answer(PLUS_MINUS_ONE, rows, np.full(len(rows), 0.5))}")
    recorded("signs_at_bounds", found)


def test_interpolation(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    for size, length in itertools.product((1, 2, 3, 5), (1, 2, 3, 7)):
        for coordinates, mode in itertools.product(
                ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"),
                ("cubic", "linear")):
            rows = []
            for antialias, exclude, coefficient in ((False, False, -0.75), (True, False, -0.75),
                                                    (False, True, -0.5), (True, True, -0.75)):
                rule = {"coordinates": coordinates, "mode": mode, "antialias": antialias,
                        "exclude_outside": exclude, "cubic_coefficient": coefficient}
                matrix = interpolation(size, length, length / size, rule)
                rows.append(digest([array_text(np.round(matrix, 6) + 0.0),
                                    weights_while_computed(length, length / size, rule)]))
                if not antialias and not exclude and matrix.size <= 6:
                    rows[-1] += f" {np.round(matrix, 4).tolist()}"
            found[f"{size} to {length} {mode} {coordinates}"] = " ".join(rows)
    for scale in (0.1, 0.25, 0.5, 0.99, 1.0, 1.01, 4.0):
        found[f"weights at {scale}"] = str([weights_while_computed(3, scale, {
            "mode": mode, "antialias": antialias}) for mode in ("cubic", "linear")
            for antialias in (False, True)])
    recorded("interpolation", found)


def _state(batch: int = 2, other: int | None = None) -> InferenceState:
    graph = Graph("g", [ValueInfo("x", (None, 3))], [], [], {"c": np.zeros((2, 2), np.float32)})
    before = None if other is None else InferenceState(graph, other)
    return InferenceState(graph, batch, before)


def test_states(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    node = Node("op", "n", ["x"], ["y"], {}, "Op 'n'")
    for rank, axis in itertools.product(range(4), range(-4, 5)):
        found[f"axis {axis} of {rank}"] = outcome(
            lambda rank=rank, axis=axis: str(_state().axis(node, axis, rank)))
    for shape in ((), (0,), (1,), (-1,), (25,), (26,), (5, 5), (5, 6), (2, -3), (0, -1)):
        for dtype in ("float32", "uint8", "float64"):
            def sized(shape: tuple[int, ...] = shape, dtype: str = dtype) -> str:
                state = _state()
                state.most_bytes = 100
                return str(state.check_size(node, shape, dtype))
            found[f"size {list(shape)} {dtype}"] = outcome(sized, most=250)

    def several(sizes: Sequence[int]) -> str:
        state = _state()
        state.most_bytes = 100
        for size in sizes:
            state.check_constant(node, (size,), "uint8")
        return str(state._constant_bytes)

    for sizes in ((100,), (101,), (50, 50), (50, 51), (99, 1), (100, 1), (30, 30, 40), (30, 30,
                                                                                        41)):
        found[f"constants {sizes}"] = outcome(lambda sizes=sizes: several(sizes), most=250)
    for batch, other in itertools.product((0, 1, 2, 3, 4, 6), (None, 0, 1, 2, 3)):
        state = _state(batch, other)
        answers = []
        for now, before in (((4,), (2,)), ((6,), (3,)), ((3,), (3,)), ((), ()), ((4, 2), (2, 2)),
                            ((0,), (0,)), ((2,), (1,)), ((6,), (2,)), ((0,), (3,))):
            state.shapes["v"] = now
            if state.other_batch is not None:
                state.other_batch.shapes["v"] = before
            answers.append(str(int(state.follows_batch("v"))))
        found[f"follows {batch} {other}"] = "".join(answers)
    recorded("inference_states", found)


def test_images(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    graph = Graph("g", [], [], [], {})
    shapes = ((), (2,), (3,), (6,), (4,), (2, 3), (3, 3), (2, 2), (3, 2), (4, 3), (6, 3), (2, 6),
              (0, 3), (1, 3))
    for batch, other in ((2, 3), (3, 2), (1, 2), (2, 1), (0, 2), (2, 0), (2, 4), (4, 1)):
        images = Images(StaticGraph(graph, batch, [], {}, {}, {}),
                        StaticGraph(graph, other, [], {}, {}, {}))
        for now in shapes:
            images.static.shapes["v"] = now
            answers = []
            for before in shapes:
                images.other.shapes["v"] = before
                axis = images.growing_axis("v")
                answers.append("-" if axis is None else str(axis))
                answers[-1] += "=" if images.is_fixed("v") else ""
            found[f"{list(now)} at {batch}, {other}"] = "".join(answers)
        rows = np.arange(12, dtype=np.float32).reshape(1, 3, 4) % 5
        arrays = {"same": (rows, rows), "copy": (rows, rows.copy()), "other": (rows, rows + 1),
                  "repeated": (np.repeat(rows, batch, 0), np.repeat(rows, other, 0)),
                  "along 1": (np.concatenate([rows] * batch, 1) if batch else rows[:, :0],
                              np.concatenate([rows] * other, 1) if other else rows[:, :0]),
                  "counted": (np.arange(batch), np.arange(other)),
                  "dtype": (rows, rows.astype(int)), "shape": (rows, rows[0]),
                  "fixed": (np.ones(3), np.ones(4)), "ones": (np.ones(batch), np.ones(other)),
                  "last differs": (np.repeat(rows, batch, 0) * 1, np.repeat(rows, other, 0) * 1)}
        if batch:
            arrays["last differs"][0][-1, -1, -1] += 1
        for name, (now, before) in arrays.items():
            images.axes.clear()
            images.static.constants["c"], images.other.constants["c"] = now, before
            found[f"{name} at {batch}, {other}"] = f"{images.add_constant('c')} {images.axes}"
        del images.other.constants["c"]
        found[f"absent at {batch}, {other}"] = str(images.add_constant("c"))
    recorded("images", found)


def test_dtypes(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    dtypes = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
              "bool", "float64")

    def node(op: str, kinds: Sequence[str], known: bool = False, **attributes: Any) -> str:
        names = [f"x{index}" for index in range(len(kinds))]
        infos = [ValueInfo(name, (2, 3), kind) for name, kind in zip(names, kinds, strict=True)]
        constants = {name: np.arange(6).reshape(2, 3).astype(kind)
                     for name, kind in zip(names, kinds, strict=True)} if known else {}
        graph = Graph("g", [] if known else infos, [ValueInfo("y", ())],
                      [Node(op, "n", names, ["y"], attributes)], constants)
        return static_text(resolve(graph, 1))

    for first, second in itertools.product(dtypes, dtypes):
        pair = f"{first} {second}"
        found[f"add {pair}"] = outcome(lambda kinds=(first, second): node(
            "elementwise", kinds, expression=apply("add")), most=120)
        found[f"cast {pair}"] = outcome(lambda kind=first, dtype=second: node(
            "cast", [kind], dtype=dtype), most=120)
        found[f"mod {pair}"] = digest([outcome(lambda kinds=(first, second), flag=flag: node(
            "mod", kinds, of_dividend=flag), most=999) for flag in (False, True)])
        found[f"known {pair}"] = digest([outcome(lambda kinds=(first, second): node(
            "elementwise", kinds, True, expression=apply("mul")), most=999), outcome(
            lambda kind=first, dtype=second: node("cast", [kind], True, dtype=dtype), most=999)])
        found[f"cast like {pair}"] = digest(outcome(lambda kinds=(first, second): node(
            "cast_like", kinds), most=999))
        for condition in ("bool", "float32"):
            found[f"where {condition} {pair}"] = digest(outcome(
                lambda kinds=(condition, first, second): node(
                    "elementwise", kinds, expression=apply("where")), most=999))
    recorded("dtypes", found)


def test_definitions(recorded: Recorded) -> None:
    whole: dict[str, Any] = {
        "text": "x", "shape": None, "evaluate": resolved, "mixes": resolved,
        "passes_values": False, "jumps": never_jumps, "facts": resolved, "float_only": False,
        "attribute_inputs": ()}

    def made(**changed: Any) -> str:
        parts = {key: value for key, value in {**whole, **changed}.items() if value != "absent"}
        try:
            return str(define("new", **parts).remains)
        except TypeError as error:
            return f"! {error}"

    changes: list[dict[str, Any]] = [{}, {"zz": 1}, *[{key: "absent"} for key in whole]]
    changes += [dict.fromkeys(keys, len) for count in (1, 2, 3)
                for keys in itertools.combinations(("evaluate", "mixes", "facts"), count)]
    found = {f"define {sorted(change)} {'absent' in change.values()}": made(**change)
             for change in changes}
    for names in (("conv2d",), ("conv2d", "pool"), ("pool", "conv2d", "pool")):
        try:
            found[f"names {names}"] = str(list(by_name(OPSET[name] for name in names)))
        except TypeError as error:
            found[f"names {names}"] = f"! {error}"
    for name, definition in OPSET.items():
        found[f"op {name}"] = (f"{definition.text} {definition.remains} {definition.passes_values} "
                               f"{definition.float_only} {definition.attribute_inputs}")
    for permutation in ((), (0,), (1, 0), (0, 1), (0, 2, 1), (1, 0, 2), (2, 1, 0)):
        for op in ("transpose", "reshape"):
            node = Node(op, "n", [], [], {"permutation": permutation})
            found[f"swaps {op} {permutation}"] = str(swaps_matrices(node))
    recorded("definitions", found)
