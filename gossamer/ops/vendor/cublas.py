"""Matrix products by cuBLASLt: what is multiplied, the algorithms it offers, and the call."""

from __future__ import annotations

import functools
import importlib
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Epilogue
from gossamer.ops.vendor.nvmath import CUBLAS, DATA_TYPES, ONE, ZERO, dtype_of, library_on
from gossamer.ops.weights import Weights

RANKS = 4
"""Algorithms asked for, the best first by cuBLAS's own estimate."""
ALIGNMENT = 16
"""Bytes of which every buffer's address is a multiple, foreign inputs' too."""
_WORKSPACE_BYTES = 32 * 2**20
_COMPUTE = {"fp32": "COMPUTE_32F", "tf32": "COMPUTE_32F_FAST_TF32", "fp16": "COMPUTE_32F"}
_NOT_SUPPORTED = 15
# partial sums in float16 would not be sums in float32
_REDUCTIONS = {"fp32": "MASK", "tf32": "MASK", "fp16": "COMPUTE_TYPE"}


@dataclass(frozen=True)
class Fused:
    """An epilogue that a product applies itself: sums with a channel operand of that name (empty:
    none) and a tensor operand, then a rectifier, which turns NaN into 0."""

    bias: str = ""
    residual: bool = False
    relu: bool = False


def fused(epilogue: Epilogue) -> Fused | None:
    """The whole epilogue as a product can apply it; None where it cannot."""
    bias, residual, relu = "", False, False
    expression = epilogue.expression
    current = 0
    for index, step in enumerate(expression.steps):
        others = [a for a in step.arguments if a != current]
        operand = others[0] - 1 if len(others) == 1 else -1
        added = (epilogue.operands[operand]
                 if step.function == "add" and 0 <= operand < len(epilogue.operands) else "")
        if relu or current not in step.arguments:
            return None
        if step.function == "relu":
            relu = True
        elif added == "channel" and not bias:
            bias = f"operand{operand}"
        elif added == "tensor" and not residual:
            residual = True
        else:
            return None
        current = expression.inputs + index
    if expression.outputs != (current,) or epilogue.tensor_count != residual:
        return None
    return Fused(bias, residual, relu)


def bias_vector(weights: Weights, name: str, channels: int, dtype: str) -> Buffer:
    """A channel operand as a product takes it: one value a channel, of the output's dtype."""
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.broadcast_to(arrays[name].reshape(-1), (channels,)).astype(dtype)
    return weights.packed(f"{name} {dtype}", pack)


@dataclass(frozen=True)
class Product:
    """D = op(A) B, or op(A) B + C with a residual, so many times: column-major as cuBLAS counts,
    D and C being (rows, columns) and B (depth, columns).

    transposed: A is stored as (depth, rows), else as (rows, depth). leading: elements from one
    column to the next in A, B and D. strides: elements from one member of the batch to the next
    in A, B and D. alignment: bytes of which every operand's address is a multiple. bias: one
    value for each row of D.
    """

    precision: str
    rows: int
    columns: int
    depth: int
    transposed: bool
    leading: tuple[int, int, int]
    batch: int = 1
    strides: tuple[int, int, int] = (0, 0, 0)
    alignment: int = ALIGNMENT
    bias: bool = False
    residual: bool = False
    relu: bool = False


@dataclass(frozen=True, eq=False)
class CublasOffer:
    """One algorithm for a product, in cuBLAS's own encoding, and the workspace it takes."""

    algorithm: np.ndarray
    workspace: int


@functools.cache
def offers(product: Product, device: Device) -> tuple[CublasOffer, ...]:
    """What cuBLAS offers for a product, the best first by its own estimate; may be none."""
    return Multiplication(product, device)._offers()


class Multiplication:
    """A product described to cuBLAS. bias: the device memory of its vector, of D's dtype."""

    def __init__(self, product: Product, device: Device, bias: Buffer | None = None) -> None:
        self.product = product
        self._library = library_on(CUBLAS, device)
        self._bias = bias
        dtype = DATA_TYPES[dtype_of(product.precision)]
        a_shape = (product.rows, product.depth)
        shapes = (a_shape[::-1] if product.transposed else a_shape,
                  (product.depth, product.columns), (product.rows, product.columns))
        with self._library.calling("describing a product") as lt:
            self._operation = self._described(lt)
            weakref.finalize(self, lt.matmul_desc_destroy, self._operation).atexit = False
            self._layouts = [self._layout(lt, dtype, *each) for each in
                             zip(shapes, product.leading, product.strides, strict=True)]

    def _described(self, lt: Any) -> int:
        product = self.product
        compute = importlib.import_module("nvmath.bindings.cublas").ComputeType
        operation = lt.matmul_desc_create(compute[_COMPUTE[product.precision]],
                                          DATA_TYPES["float32"])
        put = functools.partial(_put, lt.matmul_desc_set_attribute,
                                lt.get_matmul_desc_attribute_dtype, operation)
        names = lt.MatmulDescAttribute
        put(names.TRANSA, int(product.transposed))
        kind = ("RELU_BIAS" if product.bias else "RELU") if product.relu else (
            "BIAS" if product.bias else "DEFAULT")
        put(names.EPILOGUE, lt.Epilogue[kind])
        if product.bias:
            # what is only asked about has no vector yet, but its address has to be one
            handle = 256 if self._bias is None else self._bias.handle  # type: ignore[attr-defined]
            put(names.BIAS_POINTER, handle)
        return int(operation)

    def _layout(self, lt: Any, dtype: int, shape: tuple[int, int], leading: int,
                stride: int) -> int:
        layout = lt.matrix_layout_create(dtype, *shape, leading)
        weakref.finalize(self, lt.matrix_layout_destroy, layout).atexit = False
        put = functools.partial(_put, lt.matrix_layout_set_attribute,
                                lt.get_matrix_layout_attribute_dtype, layout)
        if self.product.batch > 1:
            put(lt.MatrixLayoutAttribute.BATCH_COUNT, self.product.batch)
            put(lt.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET, stride)
        return int(layout)

    def _offers(self) -> tuple[CublasOffer, ...]:
        a, b, d = self._layouts
        with self._library.calling("listing algorithms") as lt:
            preference = lt.matmul_preference_create()
            try:
                put = functools.partial(_put, lt.matmul_preference_set_attribute,
                                        lt.get_matmul_preference_attribute_dtype, preference)
                names = lt.MatmulPreferenceAttribute
                put(names.MAX_WORKSPACE_BYTES, _WORKSPACE_BYTES)
                put(names.REDUCTION_SCHEME_MASK,
                    lt.ReductionScheme[_REDUCTIONS[self.product.precision]])
                for operand in "ABCD":
                    put(names[f"MIN_ALIGNMENT_{operand}_BYTES"], self.product.alignment)
                found = np.zeros(RANKS, lt.matmul_heuristic_result_dtype)
                count = np.zeros(1, np.int32)
                try:
                    lt.matmul_algo_get_heuristic(
                        self._library.handle, self._operation, a, b, d, d, preference, RANKS,
                        found.ctypes.data, count.ctypes.data)
                except lt.cuBLASLtError as error:
                    if error.status != _NOT_SUPPORTED:
                        raise
            finally:
                lt.matmul_preference_destroy(preference)
        return tuple(CublasOffer(np.array(each["algo"]), _padded(int(each["workspace_size"])))
                     for each in found[:count[0]] if each["state"] == 0)

    def multiply(self, offer: CublasOffer, a: int, b: int, d: int, workspace: int, stream: int, *,
                 residual: int | None = None) -> None:
        """Queues the product of device memory at these addresses on a stream (its handle).
        workspace: the address of as much memory as the offer takes. residual: of C."""
        a_layout, b_layout, d_layout = self._layouts
        beta, c = (ZERO, d) if residual is None else (ONE, residual)
        with self._library.calling("multiplying") as lt:
            lt.matmul(self._library.handle, self._operation, ONE.ctypes.data, a, a_layout,
                      b, b_layout, beta.ctypes.data, c, d_layout, d, d_layout,
                      offer.algorithm.ctypes.data, workspace, offer.workspace, stream)


def _padded(workspace: int) -> int:
    """With a fused epilogue cuBLAS may want 16 bytes more than it says (nvmath-python's own
    products add them too)."""
    return workspace + 16 if workspace else 0


def _put(call: Callable[..., None], dtype_of: Callable[[int], Any], described: int,
         attribute: int, value: int) -> None:
    """Sets an attribute of anything described to cuBLAS."""
    array = np.array([value], dtype_of(attribute))
    call(described, attribute, array.ctypes.data, array.nbytes)
