"""Errors of drawn outputs, bounds of drawn jumps, learnt estimates and example inputs are those
that were recorded."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest

from gossamer.device.registry import find
from gossamer.expression import DISCONTINUOUS, FUNCTIONS, Expression, ExpressionStep
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.model.passes.optimise import optimise
from gossamer.ops.algorithm import Epilogue, Problem
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.matmul.problem import MatmulProblem
from gossamer.ops.registry import OPS
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.part import part_of
from gossamer.plan.program import Layer
from gossamer.plan.tune.bounds import Bounds, bounds, uncheckable
from gossamer.plan.tune.check import GUARD, difference, error_of, largest_error
from gossamer.plan.tune.cost import Estimates, Ratios
from gossamer.plan.tune.discontinuity import continuous_parts, has_jumps
from gossamer.plan.tune.examples import Examples, _period
from gossamer.plan.tune.reference import reference
from gossamer.tensor import Format, TensorSpec, default_spec, pack
from tests.model.onnx_models import save
from tests.plan.tune.jumping_layers import jumping_layer
from tests.recorded import Recorded, as_text, digest
from tests.simulated.device import HARDWARE, SimulatedDevice
from tests.simulated.networks import random_network
from tests.simulated.pruned import pruned_network


def short(number: float) -> str:
    """Returns a number without the digits in which sums differ between processors."""
    return f"{number:.5g}"


def outputs() -> Iterator[tuple[str, TensorSpec]]:
    """Yields specs of outputs: few images and many, small ones and such as are read back alone."""
    for shape in ((1, 3, 5, 4), (7, 3, 5, 4), (3, 16, 32, 32), (3, 15, 32, 32)):
        for format_ in (Format(), Format("NHWC", "float16"), Format("CHWN")):
            yield f"{shape} {format_}", TensorSpec(shape, format_)
    yield "padded", TensorSpec((3, 5, 4, 4), Format("NHWC", "float32", 4))
    yield "border", TensorSpec((3, 4, 4, 4), Format("NCHW", "float32", 1, (1, 0, 1, 2)))
    yield "bits", TensorSpec((3, 40, 4, 4), Format("packed32", "bits"))
    yield "integers", default_spec((4, 30), "int32")
    yield "one number", default_spec((), "float32")
    yield "empty", default_spec((0, 4), "float32")


def test_errors_of_outputs(recorded: Recorded) -> None:
    device, texts = find("host"), {}
    margin = device.alignment
    for name, spec in outputs():
        rng = np.random.default_rng(3)
        array = (rng.integers(-9, 9, spec.shape) if spec.dtype == "int32"
                 else np.where(rng.random(spec.shape) < 0.5, -1.0, 1.0))
        array = np.asarray(array, "int32" if spec.dtype == "int32" else "float32")
        packed = np.ascontiguousarray(pack(array, spec)).reshape(-1).view(np.uint8)
        count = spec.shape[0] if spec.shape else 1
        for images in (None, [0], sorted({0, count // 2, count - 1}), list(range(count))):
            if images is not None and not (spec.shape and count):
                continue
            expected = array if images is None else array[images]
            last = margin + spec.nbytes
            found = []
            for place, value in ((None, 0), (0, 0), (margin - 1, 0), (last, 0),
                                 (last + margin - 1, 0), (margin, 0x41), (last - 1, 0x41),
                                 ("half", 0x3C), ("image", GUARD), ("last image", GUARD)):
                memory = np.full(spec.nbytes + 2 * margin, GUARD, np.uint8)
                memory[margin:last] = packed
                size = spec.nbytes // max(1, count)
                if place == "image":
                    memory[margin:margin + size] = GUARD
                elif place == "last image":
                    memory[last - size:last] = GUARD
                elif place == "half":
                    memory[margin + spec.nbytes // 2:][:1] = value
                elif place is not None:
                    memory[place:][:1] = value  # type: ignore[misc]
                buffer = device.upload(memory, "a test output")
                found.append(short(error_of(buffer, spec, expected, images)))
            texts[f"{name} {images if images is None else len(images)}"] = " ".join(found)
    recorded("output_errors", texts)


def test_differences_of_images(recorded: Recorded) -> None:
    texts, rng = {}, np.random.default_rng(5)
    for count in (1, 2, 3, 6, 7):
        right = rng.standard_normal((count, 3)).astype(np.float32)
        right[count // 2] = 0
        wrong = right + np.float32(0.25) * (np.arange(count)[:, None] == count - 1)
        special = [right, wrong, *(right.copy() for _ in range(3))]
        special[2][0, 0], special[3][0, 0], special[4][-1, -1] = math.nan, math.inf, -math.inf
        for together in (1, 2, 3, 7, 9):
            squares = np.square(np.arange(2.0 * count)).reshape(2, count)
            texts[f"{count} in groups of {together}"] = " ".join([
                short(largest_error(*squares, together)),
                *(short(difference(result, expected, together))
                  for result in special for expected in special)])
    large = np.ones((3, 2**17 // 2 + 1), np.float32)
    changed = large.copy()
    changed[2, -1] = 3
    texts["many values"] = " ".join(short(difference(*pair, 1)) for pair in (
        (large, changed), (changed, large), (large.T, changed.T)))
    recorded("output_differences", texts)


def bounds_text(several: list[Bounds]) -> str:
    return " ".join(f"{each.doubtful.mean() if each.doubtful.size else 0.0:.4f} "
                    f"{digest([each.doubtful, each.exact])}" for each in several)


def test_bounds_of_functions(recorded: Recorded) -> None:
    near = np.float32([-2, -1, -0.5, -1e-4, 0, 1e-4, 0.5, 1, 1.0001, 2.5, 3, 0.1])
    texts = {}
    for name, function in FUNCTIONS.items():
        if not function.arity:
            continue
        constants = (0.5, 0.25, 2.0)[:function.constants]
        for dtype in ("float32", "bool", "int32"):
            spec, arity = default_spec((12, 12)), function.arity
            steps = [ExpressionStep(name, tuple(range(arity)), constants)]
            for behind in ("", "floor"):
                if behind:
                    steps = [*steps, ExpressionStep(behind, (arity,))]
                problem = ElementwiseProblem((spec,) * arity, Expression(arity, tuple(steps)),
                                             (dtype,))
                arrays = [np.ascontiguousarray(np.broadcast_to(
                    near[:, None] if index % 2 else near, (12, 12))) for index in range(arity)]
                if name in ("exp", "log", "sqrt", "pow", "tan", "fmod") and dtype != "float32":
                    continue
                with np.errstate(all="ignore"):
                    texts[f"{name} {dtype} {behind}"] = (
                        f"{has_jumps(problem)} {uncheckable(problem)} " + " | ".join(
                            bounds_text(bounds(problem, arrays, {}, precision))
                            for precision in ("fp32", "fp16")))
    for constants in ((), (1,)):
        gather = GatherProblem(default_spec((2, 5, 3)), default_spec((4,), "int64"), 1, constants)
        data = np.arange(30, dtype=np.float32).reshape(2, 5, 3)
        indices = np.array([0, 4, 2, 2])
        texts[f"gather {constants}"] = bounds_text(
            bounds(gather, [data], {"operand1": indices}, "fp16") if constants
            else bounds(gather, [data, indices], {}, "fp16"))
    texts["a product of values"] = str(uncheckable(
        MatmulProblem(default_spec((2, 3)), default_spec((3, 2)))))
    recorded("bounds_of_functions", texts)


def layers_of(path: Path) -> tuple[list[Layer], list[str]]:
    graph = optimise(load(str(path)), channels_first=True)
    return lower(resolve(graph, 2))[0], [info.name for info in graph.outputs]


def test_bounds_of_layers(recorded: Recorded, tmp_path: Path) -> None:
    texts = {}
    for seed in range(16):
        layers, names = layers_of(jumping_layer(seed, tmp_path, largest=9))
        whole = part_of(layers, layers, names)
        for layer in (*layers, *find_fusions(layers, names), *([whole] if whole else [])):
            problem = layer.problem
            if problem is None:
                continue
            rng = np.random.default_rng(seed)
            arrays = problem.example_inputs(rng)
            parts = continuous_parts(problem) if has_jumps(problem) else []
            texts[f"{seed} {layer.name}"] = (
                f"{has_jumps(problem)} {uncheckable(problem)} parts "
                f"{' and '.join(part.describe() for part in parts)} "
                + " | ".join(bounds_text(bounds(problem, arrays, layer.weights, precision))
                             for precision in ("fp32", "tf32", "fp16")
                             if has_jumps(problem) and uncheckable(problem) is None))
    recorded("bounds_of_layers", texts)


def epilogues() -> Iterator[tuple[str, int, list[ExpressionStep]]]:
    """Yields drawn expressions and selections of each order, with their names and inputs."""
    for arguments in permutations(range(4), 3):
        yield f"where {arguments}", 3, [ExpressionStep("mul", (0, 1)),
                                        ExpressionStep("where", arguments)]
    for seed in range(60):
        rng = random.Random(seed)
        inputs = rng.randrange(1, 4)
        steps: list[ExpressionStep] = []
        for _ in range(rng.randrange(1, 6)):
            name = rng.choice((*sorted(DISCONTINUOUS), "where", "add", "add", "mul", "relu"))
            steps.append(ExpressionStep(name, tuple(rng.randrange(inputs + len(steps))
                                                    for _ in range(FUNCTIONS[name].arity))))
        yield str(seed), inputs, steps


def test_continuous_parts_of_epilogues(recorded: Recorded) -> None:
    texts = {}
    for name, inputs, steps in epilogues():
        expression = Expression(inputs, tuple(steps))
        problem = GemmProblem(2, 3, 4, Epilogue(expression, ("channel",) * (inputs - 1)))
        parts = [vars(part)["epilogue"].expression for part in continuous_parts(problem)]
        texts[name] = f"{has_jumps(problem)} " + " | ".join(map(as_text, parts))
    recorded("continuous_parts", texts)


def test_estimates(recorded: Recorded, tmp_path: Path) -> None:
    texts, rng = {}, np.random.default_rng(7)
    for few in (1, 6):
        for doubt in (0.0, 0.1, 0.5):
            ratios = Ratios(doubt, few, 0.4, 1.5)
            lines = []
            for key in range(12):
                ratios.learn(key % 8, 10.0, float(np.round(30 * rng.random(), 2)))
                lines.append([ratios.expected_us(2.0), ratios.least_us(2.0),
                              [ratios.saving_us(2.0, bound) for bound in (0.0, 1.0, 3.0, 9.0)]])
            ratios.learn("no time", 0.0, 0.0)
            texts[f"ratios {few} {doubt}"] = as_text([*lines[-1], ratios.least_us(1.0)]) + digest(
                lines)
    layers, _ = layers_of(save(pruned_network(1), tmp_path))
    for name, hardware in HARDWARE.items():
        device = SimulatedDevice(hardware)
        estimates = Estimates(device, 0.1)
        numbers = []
        for layer in layers:
            problem = layer.problem
            if problem is None:
                continue
            numbers.append([estimates.conversion_us(problem.inputs[0], problem.outputs[0]),
                            estimates.least_conversion_us(problem.inputs[0], problem.outputs[0])])
            for algorithm in OPS[layer.op].algorithms:
                if not algorithm.vendor and algorithm.supports(problem, device) is None:
                    variant = next(iter(algorithm.variants(problem, device)))
                    numbers.append([algorithm.name,
                                    estimates.floor_us(algorithm, problem, variant)])
        texts[name] = f"{len(numbers)} {digest(numbers)}"
    recorded("estimates", texts)


def problems() -> Iterator[Problem]:
    """Yields problems of small images and of large ones, of one image and of many."""
    for count in (1, 3, 4, 5, 8, 9):
        for size in (3, 20):
            yield ElementwiseProblem((default_spec((count, 3, size, size)),),
                                     Expression(1, (ExpressionStep("relu", (0,)),)))
    yield MatmulProblem(default_spec((9, 3, 4)), default_spec((4, 2)))
    yield ElementwiseProblem((default_spec((5, 3)), default_spec((1, 3))),
                             Expression(2, (ExpressionStep("add", (0, 1)),)))


def test_example_inputs(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.plan.tune.examples._DRAWN", 2**10)
    device = find("host")
    texts = {}
    for problem in problems():
        examples = Examples(device)
        count = problem.outputs[0].shape[0]
        parts = [f"period {_period(problem)}"]
        for images in (None, [0], sorted({0, count // 2, count - 1})):
            for seed in (0, 1):
                parts.append(digest(examples.of(
                    problem, seed, range(count) if images is None else images)))
        for index, spec in enumerate(problem.inputs):
            formats = [spec.format, *([Format("NHWC"), Format("CHWN", "float16")]
                                      if len(spec.shape) == 4 else [])]
            for format_ in formats:
                own = TensorSpec(spec.shape, format_)
                buffer = examples.buffer(problem, index, own)
                memory = np.empty(own.nbytes, np.uint8)
                device.read(buffer.view(0, own.nbytes), memory)
                parts.append(digest(memory))
                assert examples.buffer(problem, index, own) is buffer
        texts[problem.describe()] = " ".join(parts)
    recorded("example_inputs", texts)


def test_references_of_parts_of_a_batch(tmp_path: Path) -> None:
    """Images that are computed a few at a time, and the remainder, are those computed at once."""
    for seed in range(4):
        graph = load(str(save(random_network(seed), tmp_path)))
        shape = graph.inputs[0].shape
        x = np.random.default_rng(seed).standard_normal((5, *shape[1:])).astype(np.float32)
        at_once = reference(graph, {"x": x})
        nbytes = sum(8 * spec.size for layer in lower(resolve(graph, 5))[0]
                     for spec in layer.problem.outputs)
        for count in (0, 2, 3):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("gossamer.plan.tune.reference._BYTES_AT_ONCE",
                              count * nbytes // 5 + 1)
                found = reference(graph, {"x": x})
            assert found.keys() == at_once.keys()
            for name, array in found.items():
                np.testing.assert_allclose(array, at_once[name], rtol=1e-9, atol=1e-12)
