"""Element-wise arithmetic, also with results that are written as packed words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import erf

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.expression import FUNCTIONS, Expression, ExpressionStep, apply
from gossamer.ops.elementwise import PackedElementwise
from gossamer.ops.elementwise.fused import FusedElementwise
from gossamer.ops.elementwise.problem import DTYPES, ElementwiseProblem
from gossamer.ops.weights import Weights
from gossamer.tensor import Format, default_spec
from tests.fixtures import is_slow
from tests.ops.conv2d.binary.signs import BATCH_NORM_BITS
from tests.ops.harness import check, check_every_bit, op_of, run_variant
from tests.ops.recording import RecordingDevice

_CONSTANTS = {"clip": (-0.5, 0.75), "leaky_relu": (0.1,), "hard_sigmoid": (0.2, 0.5),
              "constant": (1.5,)}
_POSITIVE = {"log", "sqrt", "pow"}
_RELU6_ADD = Expression(
    2, (ExpressionStep("add", (0, 1)), ExpressionStep("clip", (2,), (0.0, 6.0))))


def _problem(expression: Expression, *shapes: tuple[int, ...], dtype: str = "float32",
             constants: tuple[int, ...] = ()) -> ElementwiseProblem:
    return ElementwiseProblem(tuple(default_spec(shape, dtype) for shape in shapes), expression,
                              (dtype,), constants)


def problem_of(shape: tuple[int, ...], expression: Expression, tensor: int = 0, *,
               scalars: bool = False) -> ElementwiseProblem:
    """Return a problem of one tensor and constants.

    tensor: index of the operand that is the tensor.
    """
    constant = () if scalars else (shape[1], *[1] * (len(shape) - 2))
    return ElementwiseProblem(
        tuple(default_spec(shape if index == tensor else constant)
              for index in range(expression.inputs)), expression,
        constants=tuple(index for index in range(expression.inputs) if index != tensor))


@pytest.mark.parametrize("function", sorted(FUNCTIONS))
def test_every_function(device: Device, function: str) -> None:
    arity = FUNCTIONS[function].arity
    step = ExpressionStep(function, tuple(range(arity)), _CONSTANTS.get(function, ()))
    problem = _problem(Expression(max(arity, 1), (step,)), *[(3, 20)] * max(arity, 1))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((3, 20)).astype(np.float32) for _ in problem.inputs]
    if function in _POSITIVE:
        inputs = [np.abs(x) + 0.1 for x in inputs]
    elif function in ("where", "and", "or", "not", "equal", "less_equal", "sign"):
        inputs[0][:, ::2] = 0
        inputs[-1][:, ::4] = 0
    check(problem, device, inputs=inputs)


@given(data=st.data(), expression=st.sampled_from([_RELU6_ADD, apply("sub")]),
       constants=st.sampled_from([(), (0,), (1,)]))
@settings(max_examples=40)
def test_any_broadcast(device: Device, data: st.DataObject, expression: Expression,
                       constants: tuple[int, ...]) -> None:
    # sizes of which four elements are computed together are drawn often
    sizes = st.sampled_from([0, 1, 2, 3, 4] if is_slow(device) else [0, 1, 2, 3, 4, 5, 7, 8, 8])
    shape = data.draw(st.lists(sizes, min_size=1, max_size=5))

    def operand() -> tuple[int, ...]:
        rank = data.draw(st.integers(0, len(shape)))
        keeps = data.draw(st.lists(st.booleans(), min_size=rank, max_size=rank))
        return tuple(size if keep else 1
                     for size, keep in zip(shape[len(shape) - rank:], keeps, strict=True))

    check(_problem(expression, operand(), operand(), constants=constants), device)


@pytest.mark.parametrize("dtype", ["int32", "int64", "int8", "uint8", "int16", "uint16", "bool"])
def test_integers_are_exact(device: Device, dtype: str) -> None:
    """One kernel computes all functions; operand 2 has no zeros, and is the divisor."""
    functions = {"add": (0, 1), "mul": (0, 1), "div": (0, 2), "less": (0, 1), "equal": (0, 1),
                 "max": (0, 1), "where": (0, 1, 2)}
    steps = tuple(ExpressionStep(name, arguments) for name, arguments in functions.items())
    problem = ElementwiseProblem(
        (default_spec((3, 8), dtype),) * 3, Expression(3, steps, tuple(range(3, 3 + len(steps)))),
        tuple("bool" if name in ("less", "equal") else dtype for name in functions))
    rng = np.random.default_rng(2)
    least = -9 if np.issubdtype(dtype, np.signedinteger) else 0
    inputs = [rng.integers(least, 2 if dtype == "bool" else 9, (3, 8)).astype(dtype)
              for _ in range(3)]
    inputs[2][inputs[2] == 0] = 1
    check(problem, device, inputs=inputs)


def test_integer_division_cuts_and_never_traps(device: Device) -> None:
    problem = _problem(apply("div"), (6,), (6,), dtype="int32")
    a = np.array([7, -7, 7, -7, 5, -5], np.int32)
    b = np.array([2, 2, -2, -2, -1, -1], np.int32)
    check(problem, device, inputs=[a, b])
    assert op_of(problem).reference(problem, [a, b], {})[0].tolist() == [3, -3, -3, 3, -5, 5]
    if device.compiles:
        algorithm = op_of(problem).algorithms[1]
        variant = next(iter(algorithm.variants(problem, device)))
        worst = np.array([7, 0, -2**31, -2**31, 1, 2], np.int32)
        by = np.array([0, 0, -1, 1, 1, 0], np.int32)
        result = run_variant(algorithm, problem, variant, device,
                             Weights({}, device), [worst, by])[0]
        assert result[0] == 7 and result[3] == -2**31


@pytest.mark.parametrize("source", DTYPES)
def test_cast(device: Device, source: str) -> None:
    """One kernel converts to all dtypes that hold the same values."""
    x = np.array([0, 1, 2.75, 100.5, 0.25, 0, 7, 127] * 2).astype(source)
    nonnegative = {"bool", "uint8", "uint16"}
    for targets in (nonnegative, set(DTYPES) - nonnegative):
        if targets is not nonnegative and source not in nonnegative:
            x = np.concatenate([x, -x])
        check(ElementwiseProblem((default_spec(x.shape, source),),
                                 Expression(1, (), (0,) * len(targets)), tuple(sorted(targets))),
              device, inputs=[x])


def test_several_outputs_of_several_dtypes(device: Device) -> None:
    steps = (ExpressionStep("sub", (0, 1)), ExpressionStep("greater", (2, 1)),
             ExpressionStep("relu", (2,)))
    expression = Expression(2, steps, (3, 4, 0))
    problem = ElementwiseProblem((default_spec((2, 8, 3, 4)), default_spec((8, 1, 1))), expression,
                                 ("bool", "float32", "int32"), (1,))
    check(problem, device)


def test_mixed_dtypes(device: Device) -> None:
    operands = (default_spec((4, 6), "bool"), default_spec((4, 6)), default_spec((6,), "int64"))
    check(ElementwiseProblem(operands, apply("where")), device)


def test_special_values(device: Device) -> None:
    x = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e38, -1e38, 1e-38], np.float32)
    with np.errstate(over="ignore"):  # the large ones are infinite as 16-bit floats
        for function in ("relu", "sigmoid", "tanh", "erf", "abs", "neg"):
            check(_problem(apply(function), (8,)), device, inputs=[x])
        check(_problem(apply("clip", -np.inf, np.inf), (8,)), device, inputs=[x])


@pytest.mark.parametrize("function, least, most, exact, precision", [
    ("sigmoid", -80, 20, lambda x: 1 / (1 + np.exp(-x)), 5e-6), ("erf", -7, 7, erf, 1e-6)])
def test_results_are_precise(compiled_device: Device, function: str, least: float, most: float,
                             exact: Callable[..., np.ndarray], precision: float) -> None:
    x = np.linspace(least, most, 257 if is_slow(compiled_device) else 20_001, dtype=np.float32)
    problem, algorithm = _problem(apply(function), x.shape), FusedElementwise()
    variant = next(iter(algorithm.variants(problem, compiled_device)))
    (result,) = run_variant(algorithm, problem, variant, compiled_device,
                            Weights({}, compiled_device), [x])
    np.testing.assert_allclose(result, exact(x.astype(np.float64)), rtol=precision)


def test_shapes_that_do_not_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match="broadcast"):
        _problem(apply("add"), (2, 3), (4, 3))


def given_as(format_: Format, shape: tuple[int, ...],
             expression: Expression) -> ElementwiseProblem:
    """Return the problem of an input in a format; further inputs are constants."""
    return replace(problem_of(shape, expression), formats=(format_,))


@pytest.mark.parametrize("shape", [(2, 3, 5, 8), (1, 4, 6, 7), (3, 1, 4, 4), (0, 3, 2, 2)], ids=str)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "bfloat16", "float32"])
def test_an_input_is_read_in_its_own_format(device: Device, shape: tuple[int, ...], layout: str,
                                            dtype: str) -> None:
    format_ = Format(layout, dtype)
    affine = given_as(format_, shape, apply("mul").then(apply("add")))
    check(affine, device)
    check(given_as(format_, shape, Expression(1)), device)
    for algorithm in op_of(affine).algorithms:
        if algorithm.supports(affine, device) is None:
            variants = list(algorithm.variants(affine, device))
            assert {variant.inputs[0].format for variant in variants} == {format_}
            assert {"NCHW", "NHWC"} <= {variant.outputs[0].layout for variant in variants}


def test_a_conversion_of_floats_first_leaves_them_as_they_are() -> None:
    problem = given_as(Format("NHWC", "float16"), (2, 3, 4, 5), Expression(1))
    variant = next(iter(FusedElementwise().variants(problem, find("host"))))
    assert variant.inputs == variant.outputs and variant.precision == "fp32"


def test_formats_are_those_of_run_time_inputs() -> None:
    with pytest.raises(ValueError, match="2 formats for 1 run-time inputs"):
        ElementwiseProblem((default_spec((1, 3, 2, 2)),), Expression(1),
                           formats=(Format("NHWC"), None))


BELOW = apply("sub").then(apply("sign"))
"""The sign of its first argument less the second one."""
SIGN = apply("sign")
ABOVE_ZERO = Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("greater", (0, 1))))


def check_packed(problem: ElementwiseProblem, device: Device, seed: int = 0) -> None:
    """Fails unless every variant gives every sign.

    Inputs are multiples of a half, so that some results are 0.
    """
    algorithm, rng = PackedElementwise(), np.random.default_rng(seed)
    assert algorithm.supports(problem, device) is None
    (x,) = (rng.integers(-4, 5, spec.shape).astype(np.float32) / 2 for spec in problem.inputs)
    arrays = {name: rng.choice(np.float32([-1.5, -0.5, 0, 0.5, 1]), shape)
              for name, shape in problem.weight_shapes.items()}
    for variant in algorithm.variants(problem, device):
        check_every_bit(algorithm, problem, variant, device, arrays, [x])


@pytest.mark.sanitize
@pytest.mark.parametrize("expression, tensor", [
    (BATCH_NORM_BITS.expression, 0), (BELOW, 0), (BELOW, 1), (SIGN, 0), (ABOVE_ZERO, 0)])
@pytest.mark.parametrize("channels", [33, 64])
def test_every_form_that_packs(compiled_device: Device, expression: Expression, tensor: int,
                    channels: int) -> None:
    size = (1, 2) if is_slow(compiled_device) else (5, 7)
    check_packed(problem_of((2, channels, *size), expression, tensor), compiled_device)


@given(channels=st.sampled_from([1, 5, 31, 32, 70, 96]), batch=st.integers(0, 3),
       size=st.sampled_from([None, (1, 1), (3, 5)]), scalars=st.booleans(),
       expression=st.sampled_from([BATCH_NORM_BITS.expression, BELOW, SIGN]),
       seed=st.integers(0, 99))
@settings(max_examples=30)
def test_any_shape_that_is_packed(compiled_device: Device, channels: int, batch: int,
                   size: tuple[int, int] | None, scalars: bool, expression: Expression,
                   seed: int) -> None:
    assume(not is_slow(compiled_device) or channels < 64)
    check_packed(problem_of((batch, channels, *(size or ())), expression, scalars=scalars),
                 compiled_device, seed)


@pytest.mark.parametrize("problem, reason", [
    (problem_of((1, 8, 3, 3), apply("add")), "its results are not known to be -1, 0 or 1"),
    (ElementwiseProblem((default_spec((8,)),), SIGN), "packs tensors of rank 2 or 4, not 1"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)),) * 2, BELOW),
     "needs exactly one run-time input, of the result's shape"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)), default_spec((3, 3))), BELOW, constants=(1,)),
     "needs constants with one number, or one per channel"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)), default_spec((2, 8, 3, 3))), BELOW,
                        constants=(1,)), "needs exactly one run-time input, of the result's shape"),
    (ElementwiseProblem((default_spec((1, 8, 3, 3)),), SIGN, ("bool",)),
     "computes one float32 result from float32 operands"),
])
def test_expressions_that_are_not_packed_give_a_reason(problem: ElementwiseProblem,
                                                       reason: str) -> None:
    assert PackedElementwise().supports(problem, RecordingDevice()) == reason


def test_the_host_packs_by_copies() -> None:
    assert PackedElementwise().supports(problem_of((1, 8, 3, 3), SIGN), find("host")) == (
        "needs a device that compiles kernels")
