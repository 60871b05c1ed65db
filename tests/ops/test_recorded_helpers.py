"""Records of the code that ops share: epilogues, layouts, packed values, exact precisions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import PLUS_MINUS_ONE, REAL, TERNARY, ValueFacts, integers
from gossamer.ops import epilogue as epilogues
from gossamer.ops import exactness, host_threads, kernel_expression, packed, strided
from gossamer.ops.algorithm import Epilogue, Problem, Variant
from gossamer.ops.canonical import canonical
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.copy.strided import widest_element
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.image import image_macros, makes_image
from gossamer.ops.peak_rates import rates_of_unit
from gossamer.ops.weights import Weights, WeightsInfo
from gossamer.ops.zero_weights import ZeroConvolution, ZeroProduct
from gossamer.tensor import AXES, Format, TensorSpec, default_spec
from tests.ops.candidates import candidates, described
from tests.ops.conv2d.binary.signs import EPILOGUES
from tests.ops.drawn import FACTS, SIMPLE, Draw, expression, problems
from tests.ops.fused.drawn import ACTIVATIONS, fusions
from tests.ops.offers import MADE, exact_weights
from tests.recorded import Recorded, as_text, digest
from tests.simulated.device import HARDWARE, SimulatedDevice

TWO_RESULTS = Epilogue(Expression(3, (
    ExpressionStep("mul", (0, 1)), ExpressionStep("add", (3, 2)), ExpressionStep("sign", (4,))),
    (4, 5)), ("channel", "tensor"))
ALL_EPILOGUES = (*ACTIVATIONS, *EPILOGUES[1:], TWO_RESULTS,
                 Epilogue(apply("add").then(apply("mul")), ("tensor", "channel")),
                 Epilogue(apply("sub").then(apply("clip", -1.0, 2.5)), ("channel",)),
                 Epilogue(Expression(2, (ExpressionStep("sub", (1, 0)),)), ("channel",)),
                 Epilogue(Expression(2, (ExpressionStep("add", (0, 1)),), (0,)), ("channel",)),
                 Epilogue(Expression(2, (ExpressionStep("mul", (0, 0)),)), ("channel",)),
                 Epilogue(Expression(2, (ExpressionStep("add", (0, 1)),
                                         ExpressionStep("mul", (2, 2)))), ("tensor",)))
MANY_FACTS = (*FACTS, integers(-2048, 2047), integers(-2049, 0), ValueFacts(2.0, 2.0),
              ValueFacts(0.5, 0.5), integers(0, 3), integers(-255, 256), integers(-1, 1),
              ValueFacts(-1.0, 1.0), integers(0, 2**16), integers(0, 2**16 - 1))


def lines(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]],
          name: str = "") -> dict[str, str]:
    """Returns what a function returns for each case, or the text of its error."""
    found = {}
    for number, case in enumerate(cases):
        try:
            value = function(*case)
            text = value if isinstance(value, str) else as_text(value)
        except (ValueError, TypeError) as error:
            text = f"{type(error).__name__}, {error}"
        shown = " ".join(map(str, case)).replace(": ", "=")
        found[f"{name or function.__name__} {number} {shown}" if len(shown) < 60
              else f"{name or function.__name__} {number}"] = (
            text if len(text) < 400 else f"{text[:40]}... {digest(text)}")
    return found


def test_epilogues(recorded: Recorded) -> None:
    device = MADE["h200"]

    def macros(number: int, dtype: str, one: bool, prefix: str) -> str:
        found = epilogues.epilogue_macros(ALL_EPILOGUES[number], tensor_dtype=dtype,
                                          one_channel=one, prefix=prefix)
        return f"{list(found)} {found[f'{prefix}EPILOGUE(value, channel, index)']} {digest(found)}"

    def launches(number: int, shape: tuple[int, ...], layout: str, zeros: bool) -> str:
        epilogue = ALL_EPILOGUES[number]
        spec = default_spec(shape)
        spec = strided.in_layout(spec, layout).with_format(
            dtype="float16" if number % 2 else "float32")
        problem = (Conv2dProblem(1, 1, 1, 1, shape[1], (1, 1), epilogue=epilogue)
                   if len(shape) == 4 else GemmProblem(1, shape[1], 1, epilogue))
        weights = Weights(exact_weights(problem), device, "a layer")
        found = epilogue_pass_launches(epilogue, weights, device, spec, 1, of_zeros=zeros)
        sizes = [(launch.work_groups, launch.work_group_size) for launch in found]
        return f"{sizes} {digest(described(found))}"

    count = range(len(ALL_EPILOGUES))
    shapes = ((1, 3, 2, 2), (2, 4, 3, 1), (2, 8, 1, 1), (3, 5, 1, 3), (4, 3, 1, 1), (0, 4, 2, 2),
              (3, 8), (4, 6), (3, 3))
    recorded("helpers_epilogues", {
        **lines(macros, [(number, *options) for number in count for options in (
            ("float32", False, ""), ("float16", True, "A_"), ("float16", False, ""))]),
        **lines(lambda number: epilogues.epilogue_macros_of_eight(ALL_EPILOGUES[number]),
                [(number,) for number in count], "of eight"),
        **lines(launches, [(number, shape, layout, zeros) for number in count
                           for shape in shapes[number % 2::2] for layout in AXES
                           for zeros in (False, True)
                           if len(shape) == 4 or layout == "NCHW"]),
        **lines(epilogues.c_float, [(value,) for value in (
            0.0, 1.0, -1.5, 1e-30, 3e38, float("nan"), 0.1, 16777216.0)]),
        **lines(epilogues.epilogue_inputs, [(epilogue, (2, 3)) for epilogue in ALL_EPILOGUES],
                "inputs")})


@pytest.mark.parametrize("rank", [2, 4])
def test_epilogues_in_place_are_the_expressions(rank: int) -> None:
    rng = np.random.default_rng(0)
    shape = (2, 3, 2, 2)[:rank]
    for epilogue in ALL_EPILOGUES:
        arrays = {f"operand{index}": rng.standard_normal(3).astype(np.float32)
                  for index in range(len(epilogue.operands))}
        tensors = [rng.standard_normal(shape).astype(np.float32)
                   for _ in range(epilogue.tensor_count)]
        operands = epilogues.operand_arrays(epilogue, arrays, tensors, rank)
        x = rng.standard_normal(shape).astype(np.float32)
        by_hand = [tensors.pop(0) if kind == "tensor" else
                   arrays[f"operand{index}"].reshape(3, *[1] * (rank - 2))
                   for index, kind in enumerate(epilogue.operands)]
        expected = epilogue.expression.evaluate(x, *by_hand)[0]
        epilogues.apply_in_place(epilogue, x, operands)
        np.testing.assert_array_equal(x, expected, str(epilogue))


def test_facts_and_precisions(recorded: Recorded) -> None:
    infos = [WeightsInfo(facts=facts) for facts in MANY_FACTS]
    pairs = list(itertools.product(range(len(MANY_FACTS)), repeat=2))
    drawn = [expression(Draw(f"expression {number}"), 2, number % 3 == 0) for number in range(80)]

    def of_products(first: int, second: int) -> str:
        facts = MANY_FACTS[first], MANY_FACTS[second]
        return " ".join(str(value) for value in (
            exactness.precision_of_products(facts[:1], infos[second], REAL),
            exactness.precision_of_products(facts[:1], infos[second], PLUS_MINUS_ONE),
            exactness.precision_of_products(facts, infos[0], TERNARY),
            exactness.precision_of_products((), infos[second], TERNARY),
            exactness.sums_integers(facts[:1], infos[second]),
            exactness.sums_integers((), infos[second]), exactness.precision_of_values(facts)))

    def steps(found: Expression) -> str:
        return " ".join(f"{step.function}{step.arguments}{as_text(step.constants)}"
                        for step in found.steps) + f" {found.outputs}"

    recorded("helpers_facts", {
        **lines(of_products, pairs),
        **lines(exactness.shared_facts, [(facts,) for facts in MANY_FACTS]),
        **lines(exactness.in_float16, [(facts,) for facts in MANY_FACTS]),
        **lines(lambda facts: [str(found) for found in packed.formats_for(facts)],
                [(facts,) for facts in MANY_FACTS], "formats for"),
        **lines(packed.can_hold, [(Format(*form), facts) for facts in MANY_FACTS for form in (
            ("packed32", "bits"), ("packed64", "trits"), ("NCHW",))]),
        **lines(lambda number: str(packed.result_dtype(drawn[number])),
                [(number,) for number in range(len(drawn))], "result dtype"),
        **lines(lambda number: steps(kernel_expression.floats_in_kernels(drawn[number])),
                [(number,) for number in range(len(drawn))], "floats in kernels"),
        **lines(lambda number: steps(kernel_expression.integers_in_kernels(drawn[number])),
                [(number,) for number in range(len(drawn))], "integers in kernels"),
        **lines(packed.smallest_dtype, [(values,) for values in (
            None, set(), {1.0}, {-1.0, 1.0}, {0.0, 1.0}, {-1.0, 0.0, 1.0}, {2.0})])})


def test_layouts(recorded: Recorded) -> None:
    draws = [Draw(f"layouts {number}") for number in range(60)]
    nests = []
    for draw in draws:
        count = draw.randint(0, 5)
        sizes = [draw.pick(1, 1, 2, 3, 4) for _ in range(count)]
        dense = strided.dense_strides(sizes)
        walks = [[stride * draw.pick(1, 1, 1, 1, 0, 2) for stride in dense] for _ in range(2)]
        nests.append((sizes, walks, [draw.pick(None, None, None, "m") for _ in sizes]
                      if draw.happens() else None))
    formats = [Format(*form, **more) for form in (
        ("packed32", "bits"), ("packed64", "bits"), ("packed32", "trits"), ("packed64", "trits"))
        for more in ({}, {"border": (1, 2, 0, 1)}, {"channel_multiple": 128})]
    specs = [TensorSpec(shape, form) for form in formats for shape in ((2, 33, 3, 4), (3, 64))]
    images = [TensorSpec((2, channels, 3, width), Format(layout))
              for layout in AXES for channels in (3, 4, 8) for width in (4, 5)]
    huge = [default_spec((2**16, rows)) for rows in (2**15 - 1, 2**15, 2**15 + 1)] + [
        TensorSpec((2**16, 64, 2**11, count), Format("packed64", "bits")) for count in (7, 8, 9)]
    huge += [TensorSpec((2**8, 64, 2**11, 2**11), Format("packed32", dtype))
             for dtype in ("bits", "trits")]
    recorded("helpers_layouts", {
        **lines(strided.merge, nests),
        **lines(strided.divisor, [(number,) for number in (
            1, 2, 3, 4, 5, 7, 8, 9, 255, 256, 257, 641, 2**16, 2**30 + 1, 2**31 - 1)]),
        **lines(strided.groups_for, [(number,) for number in (0, 1, 255, 256, 257, 512, 513)]),
        **lines(widest_element, [(size, counts) for size in (1, 2, 4, 8) for counts in (
            (16,), (8, 0), (4, 12), (2, 8), (1,), (3, 6), (32, 64), (0,))]),
        **lines(strided.spatial_inner, [(spec,) for spec in images]),
        **lines(strided.memory_order, [(spec,) for spec in images]),
        **lines(lambda spec: strided.work_shape(strided.spatial_inner(spec), spec),
                [(spec,) for spec in images], "work shape"),
        **lines(lambda spec: strided.broadcast_strides(spec, (5, *spec.shape)),
                [(spec,) for spec in images], "broadcast"),
        **lines(lambda spec, name: strided.cannot_index([spec], MADE[name]),
                [(spec, name) for spec in huge for name in ("h200", "host")], "cannot index"),
        **lines(lambda spec: strided.too_large(cast_of(spec)), [(spec,) for spec in huge[:3]],
                "too large"),
        **lines(packed.as_images, [(spec,) for spec in (*specs, default_spec((3, 4)))]),
        **lines(packed.PackedParts.of, [(spec,) for spec in specs], "parts"),
        **lines(lambda value, spec: packed.constant_words(value, spec),
                [(value, spec) for spec in specs for value in (-1.0, 0.0, 1.0)], "words"),
        **lines(rates_of_unit, [(device,) for device in (
            *MADE.values(), *(SimulatedDevice(hardware) for hardware in HARDWARE.values()))],
            "rates")})


def cast_of(spec: TensorSpec) -> Problem:
    return ElementwiseProblem((spec,), apply("relu"))


def test_texts_of_problems(recorded: Recorded) -> None:
    """Problems of each op as JSON values."""
    found = {**{case: problem for op in SIMPLE for case, problem in problems(op, 6).items()},
             **{case: problem for kind in ("excited", "chain", "binary", "pool")
                for case, problem in fusions(kind, 4).items()}}
    texts = {case: as_text(canonical(problem)) for case, problem in found.items()
             if not isinstance(problem, str)}
    values = [Epilogue(apply("clip", float("-inf"), 6.0)), WeightsInfo(0.5, "a", TERNARY),
              WeightsInfo(crowded=0.25, scaled_signs=True)]
    recorded("helpers_texts", {
        **{case: text if len(text) < 500 else f"{text[:300]}... {digest(text)}"
           for case, text in texts.items()},
        **{f"value {number}": as_text(canonical(value))  # type: ignore[arg-type]
           for number, value in enumerate(values)},
        **lines(canonical, [(value,) for value in (
            1.5, np.float32(2), np.int64(3), float("nan"), [1, (2.0, float("inf"))], None, "a",
            True, {"a": 1})])})


def test_images(recorded: Recorded) -> None:
    """The layers that make images, and the macros by which kernels read images."""
    image = default_spec((1, 3, 5, 4))
    layer = ElementwiseProblem(
        (image, default_spec((3, 1, 1)), default_spec((1, 3, 1, 1))),
        apply("mul").then(apply("add")), constants=(1, 2),
        formats=(Format("NHWC", "uint8"),))
    numbers = (image, default_spec((3, 1, 1)))
    others: list[dict[str, Any]] = [
        {}, {"constants": (2,), "formats": ()}, {"constants": (1,), "formats": ()},
        {"dtypes": ("int32",)}, {"operands": (*numbers, image)},
        {"operands": (*numbers, default_spec(()))}, {"operands": (*numbers, default_spec((5, 1)))},
        {"operands": (default_spec((3, 5, 4)), *layer.operands[1:]), "formats": ()},
        {"operands": (default_spec((2, 3, 5, 4)), *layer.operands[1:])},
        {"operands": tuple(default_spec(spec.shape, "int32") for spec in layer.operands)},
        {"operands": (default_spec(image.shape, "int32"), *layer.operands[1:]), "formats": ()},
        {"operands": (default_spec((1, 1, 5, 4)), *layer.operands[1:]), "formats": ()},
        *({"formats": (Format(layout, dtype),)} for layout in ("NCHW", "NHWC") for dtype in (
            "float32", "float16", "bfloat16", "uint8", "int16", "int8"))]
    layers = [replace(layer, **changes) for changes in others]
    plain = ElementwiseProblem((image,), Expression(1), formats=(Format("NHWC", "uint8"),))
    layers += [plain, replace(plain, operands=(default_spec((3, 5, 4)),), formats=()),
               replace(plain, operands=(default_spec((3, 5)),), formats=())]
    recorded("helpers_images", {
        **lines(lambda number: makes_image(layers[number]),
                [(number,) for number in range(len(layers))], "makes image"),
        **lines(lambda number: image_macros(layers[number].inputs[0], layers[number]),
                [(number,) for number, each in enumerate(layers) if makes_image(each)], "macros"),
        **lines(lambda layout, dtype: image_macros(TensorSpec(image.shape, Format(layout, dtype)),
                                                   None),
                [(layout, dtype) for layout in ("NCHW", "NHWC")
                 for dtype in ("float32", "float16", "bfloat16", "uint8")], "image")})


def test_zero_weights(recorded: Recorded) -> None:
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    for number, epilogue in enumerate(ALL_EPILOGUES):
        for density in (0.0, 0.5):
            info = WeightsInfo(density)
            for algorithm, problem in (
                    (ZeroConvolution(), Conv2dProblem(2, 3, 5, 4, 4, (3, 3), epilogue=epilogue,
                                                      weights_info=info)),
                    (ZeroProduct(), GemmProblem(3, 5, 7, epilogue, info))):
                for name in ("h200", "host"):
                    found[f"{algorithm.op} {number} {density} {name}"] = candidates(
                        problem, exact_weights(problem), MADE[name], list, reasons, [algorithm])
    recorded("helpers_zero_weights", {**found, **reasons})


def test_threads(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    specs = (default_spec((1,)),)
    variants = [Variant(config, specs, specs) for config in (
        (("threads", 1),), (("threads", "all"),), (("threads", "all"), ("rows", 2)))]

    def number(threads: int | str, processors: int, cores: int, wanted: str | None) -> int:
        monkeypatch.setattr(host_threads, "processors", lambda: processors)
        monkeypatch.setattr("os.cpu_count", lambda: cores)
        if wanted is None:
            monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        else:
            monkeypatch.setenv("OMP_NUM_THREADS", wanted)
        return host_threads.number_of(threads)

    def kept(threads: int | str, name: str, indices: tuple[int, ...]) -> list[str]:
        return [variant.config_text for variant in host_threads.of_threads(
            [variants[index] for index in indices], threads, MADE[name])]

    recorded("helpers_threads", {
        **lines(host_threads.thread_configs, [(count,) for count in (
            None, 0, 1, 2**18 - 1, 2**18, 2**18 + 1)]),
        **lines(number, [(threads, *sizes, wanted) for threads in (1, "all")
                         for sizes in ((2, 2), (2, 4), (4, 4), (1, 1))
                         for wanted in (None, "", "0", "1", "2", "3,1", " 4 ", "x")]),
        **lines(kept, [(threads, name, indices) for threads in (1, "all")
                       for name in ("h200", "host")
                       for indices in ((), (0,), (1,), (0, 1, 2), (1, 2))])})


def test_precision_of_variants(recorded: Recorded) -> None:
    problem = ElementwiseProblem((default_spec((2, 3)),) * 2, apply("add"))
    plain = Variant((("a", 1),), problem.inputs, problem.outputs)
    variants = [plain, plain.as_fp16, replace(plain, precision="tf32"),
                replace(plain, precision="fp16"),
                replace(plain, inputs=(plain.as_fp16.inputs[0], plain.inputs[1]),
                        precision="fp16")]
    cases = [(number, facts, result) for number in range(len(variants))
             for facts in ((), (TERNARY,), (TERNARY, TERNARY), (REAL, TERNARY), (TERNARY, REAL),
                           (integers(0, 2049), TERNARY))
             for result in (REAL, TERNARY)]
    recorded("helpers_precisions", {
        **lines(lambda number, facts, result: variants[number].is_as_precise_as_float32(
            replace(problem, facts=facts, result=result)), cases, "as precise"),
        **{f"fp16 {number}": as_text(dataclasses.astuple(variant.as_fp16))
           for number, variant in enumerate(variants)}})
