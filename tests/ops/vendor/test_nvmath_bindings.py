"""Tests with nvmath-python's real bindings, which need a driver's library but no GPU. The double
takes the same arguments and has the same numbers as the bindings, and cuBLASLt accepts what is
described to it."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.ops.algorithm import Algorithm, Problem
from gossamer.ops.conv2d.vendor.im2col_cublas import Im2colCublas
from gossamer.ops.gemm.cublas import CublasGemm
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.ops.vendor import cublas as cublas_product
from gossamer.ops.vendor import libraries
from gossamer.ops.vendor.cublas import Multiplication, Product
from gossamer.ops.vendor.libraries import CUBLAS
from gossamer.ops.weights import Weights
from tests.fixtures import working_devices
from tests.ops.harness import random_weights
from tests.ops.vendor.nvmath_double import (
    AddressedDevice,
    CublasLt,
    CublasLtError,
)
from tests.ops.vendor.test_nvmath import CONVOLUTIONS, PRODUCTS


def bindings(name: str) -> Any:
    """A module of the bindings; the test is skipped where it or its library is absent."""
    pytest.importorskip("nvmath")
    module = importlib.import_module(f"nvmath.bindings.{name}")
    try:
        # loads the library
        module.get_version()
    except Exception as error:
        pytest.skip(f"{name} cannot be loaded: {error}")
    return module


def test_the_double_takes_the_arguments_of_the_bindings() -> None:
    module = bindings("cublasLt")
    functions = {key: value for key, value in vars(CublasLt).items()
                 if inspect.isfunction(value) and not key.startswith("_")}
    assert len(functions) > 10
    for key, function in functions.items():
        # "name(type argument, type argument) -> type"
        signature = re.match(rf"{key}\((.*?)\)", getattr(module, key).__doc__.strip())
        assert signature, key
        expected = signature[1].count(",") + 1 if signature[1] else 0
        assert len(inspect.signature(function).parameters) - 1 == expected, signature[0]


def test_the_double_has_the_numbers_of_the_bindings() -> None:
    module = bindings("cublasLt")
    kinds = {key: value for key, value in vars(CublasLt).items() if hasattr(value, "__members__")}
    assert len(kinds) >= 5
    for key, kind in kinds.items():
        owner = module
        if key == "ComputeType":
            owner = importlib.import_module("nvmath.bindings.cublas")
        real = getattr(owner, key).__members__
        assert {name: int(real[name]) for name in kind.__members__} == {
            name: int(value) for name, value in kind.__members__.items()}, key


def test_double_of_cublas_has_its_dtypes() -> None:
    real, double = bindings("cublasLt"), CublasLt(None)  # type: ignore[arg-type]
    assert real.matmul_heuristic_result_dtype == double.matmul_heuristic_result_dtype
    for what, names in (("matmul_desc", double.MatmulDescAttribute),
                        ("matrix_layout", double.MatrixLayoutAttribute),
                        ("matmul_preference", double.MatmulPreferenceAttribute)):
        for attribute in names:
            asked = f"get_{what}_attribute_dtype"
            assert getattr(real, asked)(attribute) == getattr(double, asked)(attribute), attribute


def test_double_of_cublas_refuses_what_cublas_refuses() -> None:
    double = CublasLt(None)  # type: ignore[arg-type]
    for lt, failure in ((bindings("cublasLt"), bindings("cublasLt").cuBLASLtError),
                        (double, CublasLtError)):
        operation = lt.matmul_desc_create(68, 0)
        value = np.ones(1, np.int64)
        with pytest.raises(failure) as refused:
            lt.matmul_desc_set_attribute(operation, 3, value.ctypes.data, value.nbytes)
        assert refused.value.status == 7
        lt.matmul_desc_destroy(operation)


class _Partly:
    """A module of the bindings with replacements for the functions that need a GPU."""

    def __init__(self, real: Any, **replaced: Any) -> None:
        self._real = real
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Library:
    handle = 1

    def __init__(self, api: Any, device: Any) -> None:
        self.api, self.device = api, device

    @contextlib.contextmanager
    def calling(self, what: str) -> Iterator[Any]:
        yield self.api


@pytest.fixture
def device(pocl: Any) -> AddressedDevice:
    return AddressedDevice(pocl)


def prepared(algorithm: Algorithm, problem: Problem, weights: dict[str, np.ndarray],
             device: AddressedDevice) -> int:
    layer_weights = Weights(weights, device, "the test")
    variants = list(algorithm.variants(problem, device))
    for variant in variants:
        algorithm.prepare(layer_weights, problem, variant, device)
    return len(variants)


@pytest.mark.parametrize("problem", [*CONVOLUTIONS[:-1], *PRODUCTS[:-1]],
                         ids=lambda problem: problem.describe())
def test_cublas_takes_every_description(device: AddressedDevice, monkeypatch: pytest.MonkeyPatch,
                                        problem: Problem) -> None:
    real = bindings("cublasLt")

    def heuristic(*arguments: int) -> None:
        assert len(arguments) == 10 and all(arguments)
        (ctypes.c_int * 1).from_address(arguments[-1])[0] = 1

    library = _Library(_Partly(real, matmul_algo_get_heuristic=heuristic), device)
    monkeypatch.setattr(cublas_product, "library_on", lambda name, device: library)
    monkeypatch.setattr(libraries, "_on", lambda name, device: library)
    algorithm: Algorithm = CublasGemm() if isinstance(problem, GemmProblem) else Im2colCublas()
    assert prepared(algorithm, problem, random_weights(problem), device) >= 3


@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("relu", [False, True])
def test_cublas_reads_back_what_was_described(monkeypatch: pytest.MonkeyPatch, precision: str,
                                              bias: bool, relu: bool) -> None:
    lt = bindings("cublasLt")
    library = _Library(lt, None)
    monkeypatch.setattr(cublas_product, "library_on", lambda name, device: library)
    product = Product(precision, 24, 40, 16, True, (18, 20, 30), 5, (400, 0, 1200), bias=bias,
                      relu=relu)
    vector: Any = SimpleNamespace(address=0x7F00_0000_0100) if bias else None
    described = Multiplication(product, None, vector)  # type: ignore[arg-type]

    def back(what: str, names: Any, handle: int, name: str) -> int:
        value = np.zeros(1, getattr(lt, f"get_{what}_attribute_dtype")(names[name]))
        written = np.zeros(1, np.uint64)
        getattr(lt, f"{what}_get_attribute")(handle, names[name], value.ctypes.data,
                                             value.nbytes, written.ctypes.data)
        assert written[0] == value.nbytes
        return int(value[0])

    operation = {name: back("matmul_desc", lt.MatmulDescAttribute, described._operation, name)
                 for name in ("COMPUTE_TYPE", "SCALE_TYPE", "POINTER_MODE", "TRANSA", "TRANSB",
                              "EPILOGUE", "BIAS_POINTER")}
    assert operation == {
        "COMPUTE_TYPE": 77 if precision == "tf32" else 68, "SCALE_TYPE": 0, "POINTER_MODE": 0,
        "TRANSA": 1, "TRANSB": 0, "EPILOGUE": (4 * bias + 2 * relu) or 1,
        "BIAS_POINTER": 0x7F00_0000_0100 if bias else 0}
    shapes = ((16, 24), (16, 40), (24, 40))
    for handle, shape, leading, stride in zip(described._layouts, shapes, product.leading,
                                              product.strides, strict=True):
        assert [back("matrix_layout", lt.MatrixLayoutAttribute, handle, name) for name in (
            "TYPE", "ORDER", "ROWS", "COLS", "LD", "BATCH_COUNT", "STRIDED_BATCH_OFFSET")] == [
            2 if precision == "fp16" else 0, 0, *shape, leading, 5, stride]


def test_without_a_gpu_the_library_says_so_in_one_line() -> None:
    bindings("cublasLt")
    if "cuda" in working_devices():
        pytest.skip("there is a GPU")
    gpu = SimpleNamespace(runs_cuda_libraries=True, current=contextlib.nullcontext)
    reason = libraries._started(CUBLAS, gpu)
    assert isinstance(reason, str)
    assert reason.startswith(f"{CUBLAS} cannot be loaded: ") and "\n" not in reason
