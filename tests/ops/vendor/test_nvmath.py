"""Tests of algorithms that call cuBLAS: with a replacement of the library where there is no GPU,
and with the library where there is one."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.registry import find
from gossamer.errors import installing
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.ops.algorithm import Algorithm, Epilogue, Problem, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.vendor.im2col_cublas import Im2colCublas
from gossamer.ops.gemm.cublas import CublasGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.vendor import libraries
from gossamer.ops.vendor.cublas import Fused, fused
from gossamer.ops.vendor.libraries import CUBLAS, unavailable
from gossamer.ops.weights import Weights
from gossamer.tensor import pack, unpack
from tests.ops.conv2d.test_conv2d import BIAS_CLIP, BIAS_RESIDUAL_RELU
from tests.ops.fused.blocks import BIAS, BIAS_RELU
from tests.ops.harness import (
    check_variants,
    op_of,
    random_inputs,
    random_weights,
    run_variant,
)
from tests.ops.recording import RecordingDevice
from tests.processes import in_threads
from tests.tolerances import normalised_error, tolerance

RESIDUAL = Epilogue(apply("add"), ("tensor",))

CONVOLUTIONS = (
    Conv2dProblem(3, 8, 6, 5, 12, (3, 3), pads=(1, 1, 1, 1), epilogue=BIAS_RELU),
    Conv2dProblem(2, 3, 9, 8, 5, (3, 2), (2, 1), (0, 2, 1, 0), (2, 3), epilogue=BIAS_CLIP),
    Conv2dProblem(5, 8, 4, 4, 6, (2, 2), (2, 2), groups=2, epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(2, 12, 5, 5, 8, (3, 3), groups=4, epilogue=RESIDUAL),
    Conv2dProblem(3, 16, 5, 7, 24, (1, 1), epilogue=BIAS_RESIDUAL_RELU),
    Conv2dProblem(1, 6, 5, 5, 9, (1, 1), groups=3, epilogue=BIAS),
    Conv2dProblem(1, 32, 8, 8, 16, (3, 3), pads=(1, 1, 1, 1)),
    Conv2dProblem(0, 4, 8, 8, 4, (3, 3), epilogue=BIAS_RELU),
)
PRODUCTS = (GemmProblem(5, 24, 16, BIAS_RELU), GemmProblem(1, 10, 33, BIAS_CLIP),
            GemmProblem(7, 9, 5, BIAS_RESIDUAL_RELU), GemmProblem(3, 8, 8),
            GemmProblem(0, 8, 8, BIAS))


@pytest.fixture(scope="module")
def doubles(pocl: Any) -> Any:
    from tests.ops.vendor.nvmath_double import Doubles

    return Doubles(pocl)


@pytest.fixture
def double(doubles: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device whose libraries are replaced by NumPy, as .device, .lt and .sparse."""
    doubles.install(monkeypatch)
    return doubles


def check_alone(algorithm: Algorithm, problem: Problem, device: Device,
                weights: dict[str, np.ndarray] | None = None) -> list[Variant]:
    """Compares every variant of one algorithm with the reference, and returns the variants."""
    variants = list(algorithm.variants(problem, device))
    check_variants(algorithm, problem, device, variants, weights)
    return variants


@pytest.mark.slow
@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=Conv2dProblem.describe)
def test_im2col_with_cublas(double: Any, problem: Conv2dProblem) -> None:
    variants = check_alone(Im2colCublas(), problem, double.device)
    assert len({(variant.precision, variant.outputs[0].layout) for variant in variants}) == 9


@pytest.mark.parametrize("problem", PRODUCTS, ids=GemmProblem.describe)
def test_products(double: Any, problem: GemmProblem) -> None:
    check_alone(CublasGemm(), problem, double.device)


def test_epilogues_go_where_they_can(double: Any) -> None:
    """cuBLAS applies a bias and a rectifier in NHWC, where the rows of D are channels."""
    problem = CONVOLUTIONS[0]
    kinds = {}
    for variant in Im2colCublas().variants(problem, double.device):
        double.lt.products.clear()
        run_variant(Im2colCublas(), problem, variant, double.device,
                    Weights(random_weights(problem), double.device), random_inputs(problem))
        kinds[variant.outputs[0].layout] = double.lt.Epilogue(double.lt.products[0]["EPILOGUE"])
    assert {layout: kind.name for layout, kind in kinds.items()} == {
        "NHWC": "RELU_BIAS", "NCHW": "DEFAULT", "CHWN": "DEFAULT"}


def test_a_bias_that_cublas_refuses_is_added_afterwards(double: Any) -> None:
    with mock.patch.object(double.lt, "refuses_bias", True):
        check_alone(CublasGemm(), GemmProblem(6, 4, 12, BIAS_RELU), double.device)
        check_alone(Im2colCublas(), replace(CONVOLUTIONS[0], width=6), double.device)
    kinds = {described["EPILOGUE"] for described in double.lt.products[-2:]}
    assert kinds == {1}


def test_what_a_product_can_apply() -> None:
    assert fused(Epilogue()) == Fused()
    assert fused(BIAS_RELU) == Fused("operand0", False, True)
    assert fused(BIAS_RESIDUAL_RELU) == Fused("operand0", True, True)
    residual_first = Epilogue(apply("add").then(apply("add")), ("tensor", "channel"))
    assert fused(residual_first) == Fused("operand1", True, False)
    swapped = Epilogue(Expression(2, (ExpressionStep("add", (1, 0)),)), ("channel",))
    assert fused(swapped) == Fused("operand0", False, False)


@pytest.mark.parametrize("epilogue", [
    BIAS_CLIP,
    Epilogue(apply("relu").then(apply("add")), ("tensor",)),
    Epilogue(apply("mul"), ("channel",)),
    Epilogue(apply("add").then(apply("add")), ("channel", "channel")),
    Epilogue(apply("add").then(apply("add")), ("tensor", "tensor")),
    Epilogue(Expression(1, (ExpressionStep("add", (0, 0)),))),
    Epilogue(Expression(1, (ExpressionStep("relu", (0,)), ExpressionStep("add", (1, 0))))),
    Epilogue(Expression(2, (ExpressionStep("relu", (1,)),)), ("tensor",)),
    Epilogue(Expression(3, (ExpressionStep("add", (0, 2)),)), ("tensor", "tensor")),
    Epilogue(Expression(2, (ExpressionStep("add", (0, 1)), ExpressionStep("relu", (2,))), (2,)),
             ("channel",)),
])
def test_what_a_product_cannot_apply(epilogue: Epilogue) -> None:
    assert fused(epilogue) is None


def test_refusals(double: Any, device: Device) -> None:
    depthwise = Conv2dProblem(1, 4, 5, 5, 4, (3, 3), groups=4)
    assert "4 channels" in str(Im2colCublas().supports(depthwise, double.device))
    if not device.runs_cuda_libraries:
        assert "NVIDIA GPUs only" in str(Im2colCublas().supports(CONVOLUTIONS[0], device))
        assert "NVIDIA GPUs only" in str(CublasGemm().supports(PRODUCTS[0], device))


class _WithoutNvmath:
    """Makes imports behave as if nvmath-python were not installed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "nvmath":
            raise ModuleNotFoundError("No module named 'nvmath'", name="nvmath")


def test_an_absent_library_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "nvmath"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [_WithoutNvmath(), *sys.meta_path])

    class Nvidia(RecordingDevice):
        runs_cuda_libraries = True
        current = staticmethod(contextlib.nullcontext)

    reason = unavailable(CUBLAS, Nvidia())
    assert reason == f"nvmath-python is not installed: {installing('vendor')}"


def test_the_libraries_tell_their_versions(double: Any) -> None:
    for algorithm in (CublasGemm(), Im2colCublas()):
        assert algorithm.version(double.device) == "130100"


def test_no_library_is_loaded_for_its_version_elsewhere(
        monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries.importlib, "import_module", None)
    monkeypatch.setattr(libraries, "_on", libraries._started)
    for algorithm in (CublasGemm(), Im2colCublas()):
        assert algorithm.version(find("host")) == ""


@pytest.fixture(scope="module")
def gpu(cuda: Device) -> Device:
    """The CUDA device with cuBLAS; the test is skipped where it is absent."""
    if (reason := unavailable(CUBLAS, cuda)) is not None:
        pytest.skip(reason)
    return cuda


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=Conv2dProblem.describe)
def test_cublas_itself(gpu: Device, problem: Conv2dProblem) -> None:
    check_alone(Im2colCublas(), problem, gpu)


@pytest.mark.parametrize("problem", PRODUCTS, ids=GemmProblem.describe)
def test_products_of_cublas_itself(gpu: Device, problem: GemmProblem) -> None:
    check_alone(CublasGemm(), problem, gpu)


def test_products_are_captured(gpu: Device) -> None:
    """A replayed graph computes from the present content of its inputs."""
    algorithm, problem = Im2colCublas(), CONVOLUTIONS[0]
    weights = random_weights(problem)
    layer_weights = Weights(weights, gpu)
    variant = next(iter(algorithm.variants(problem, gpu)))
    state = algorithm.prepare(layer_weights, problem, variant, gpu)
    x, y, scratch = (gpu.empty(max(nbytes, 1), "a test") for nbytes in (
        variant.inputs[0].nbytes, variant.outputs[0].nbytes, variant.workspace))
    algorithm.launch(state, [x], [y], scratch)
    gpu.synchronize()
    graph = gpu.capture(lambda stream: algorithm.launch(state, [x], [y], scratch, stream))
    for seed in (1, 2):
        inputs = random_inputs(problem, seed)
        gpu.write(x, pack(inputs[0], variant.inputs[0]))
        graph()
        memory = np.empty(variant.outputs[0].stored_shape, np.float32)
        gpu.read(y, memory)
        (expected,) = op_of(problem).reference(problem, inputs, weights)
        actual = unpack(memory, variant.outputs[0])
        assert normalised_error(actual, expected) <= tolerance("conv2d")


def test_threads_share_what_was_prepared(gpu: Device) -> None:
    """Products of one state run at the same time, each on its own stream and memory."""
    algorithm = Im2colCublas()
    problem = Conv2dProblem(4, 64, 28, 28, 64, (3, 3), pads=(1, 1, 1, 1))
    weights = random_weights(problem)
    layer_weights = Weights(weights, gpu)
    for variant in algorithm.variants(problem, gpu):
        if dict(variant.config).get("rank", 0):
            continue
        state = algorithm.prepare(layer_weights, problem, variant, gpu)
        x, y = variant.inputs[0], variant.outputs[0]
        sources = [np.asarray(random_inputs(problem, seed)[0], x.stored_dtype)
                   for seed in range(4)]

        def run(index: int, state: Any = state, variant: Any = variant,
                sources: Any = sources) -> np.ndarray:
            stream = gpu.create_stream()
            source = gpu.upload(pack(sources[index], variant.inputs[0]), "a test")
            target = gpu.empty(variant.outputs[0].nbytes, "a test")
            workspace = gpu.empty(max(variant.workspace, 1), "a test")
            for _ in range(20):
                algorithm.launch(state, [source], [target], workspace, stream)
            memory = np.empty(variant.outputs[0].stored_shape, variant.outputs[0].stored_dtype)
            gpu.read(target, memory, stream)
            return unpack(memory, variant.outputs[0])

        for source, result in zip(sources, in_threads(run, range(4)), strict=True):
            (expected,) = op_of(problem).reference(problem, [source], weights)
            error = normalised_error(result, expected)
            assert error <= tolerance("conv2d", variant.precision), (
                f"{variant.precision} {y.layout} {variant.config_text}")
