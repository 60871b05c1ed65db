"""Matrix products by cuBLASLt: descriptions, algorithms and calls."""

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
from gossamer.ops.vendor.libraries import CUBLAS, DATA_TYPES, ONE, ZERO, dtype_of, library_on
from gossamer.ops.weights import Weights

RANKS = 4
"""Number of algorithms to request. cuBLAS orders them by its own estimate, the best first."""
ALIGNMENT = 16
"""Alignment in bytes of every buffer, including those from other libraries."""
_WORKSPACE_BYTES = 32 * 2**20
_COMPUTE = {"fp32": "COMPUTE_32F", "tf32": "COMPUTE_32F_FAST_TF32", "fp16": "COMPUTE_32F"}
_NOT_SUPPORTED = 15
# in fp16, the partial sums of split-K must be added in float32
_REDUCTIONS = {"fp32": "MASK", "tf32": "MASK", "fp16": "COMPUTE_TYPE"}


@dataclass(frozen=True)
class Fused:
    """An epilogue that cuBLAS can fuse: additions, then a ReLU (which maps NaN to 0).

    bias: name of the channel operand that is added; empty if there is none.
    residual: whether a tensor operand is added.
    relu: whether a ReLU follows the additions.
    """

    bias: str = ""
    residual: bool = False
    relu: bool = False


def fused(epilogue: Epilogue) -> Fused | None:
    """Return an epilogue as a Fused; None if cuBLAS cannot fuse all its steps."""
    bias, residual, relu = "", False, False
    expression = epilogue.expression
    current = 0
    for index, step in enumerate(expression.steps):
        further = [a for a in step.arguments if a != current]
        operand = further[0] - 1 if len(further) == 1 else -1
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
    """Return a channel operand in device memory, with one value per channel."""
    def pack(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        return np.broadcast_to(arrays[name].reshape(-1), (channels,)).astype(dtype)
    return weights.packed(f"{name} {dtype}", pack)


@dataclass(frozen=True)
class Product:
    """A batch of products D = op(A) B, or op(A) B + C with a residual.

    Matrices are column-major, as in cuBLAS. D and C are (rows, columns), op(A) is (rows, depth) and
    B is (depth, columns).

    precision: one of PRECISIONS.
    rows, columns, depth: sizes of the matrices.
    transposed: if true, A is (depth, rows), and op(A) is the transpose of A. If false, A is (rows,
    depth), and op(A) is A.
    leading: leading dimensions of A, B and D (distances between columns), in elements.
    batch: number of products.
    strides: batch strides of A, B and D, in elements.
    alignment: alignment of every operand in bytes.
    bias: whether a vector with one number per row of D is added.
    residual: whether C is added.
    relu: whether a ReLU is applied at the end.
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
    """An algorithm that cuBLAS offers for a product, and its workspace in bytes."""

    algorithm: np.ndarray
    workspace: int


@functools.cache
def offers(product: Product, device: Device) -> tuple[CublasOffer, ...]:
    """Return the algorithms that cuBLAS offers for a product; empty if there are none.

    The algorithms are ordered by cuBLAS's own estimate, the best first.
    """
    return Multiplication(product, device)._offers()


class Multiplication:
    """The description of a product for cuBLAS.

    bias: device memory of the bias vector, in the dtype of D; None if the product has no bias, or
    if the description is used only to list algorithms.
    """

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
            self._layouts = [self._layout(lt, dtype, *matrix) for matrix in
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
            # when algorithms are listed, no bias is in memory, but cuBLAS needs a nonzero address
            put(names.BIAS_POINTER, 256 if self._bias is None else self._bias.address)
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
                results = np.zeros(RANKS, lt.matmul_heuristic_result_dtype)
                count = np.zeros(1, np.int32)
                try:
                    lt.matmul_algo_get_heuristic(
                        self._library.handle, self._operation, a, b, d, d, preference, RANKS,
                        results.ctypes.data, count.ctypes.data)
                except lt.cuBLASLtError as error:
                    if error.status != _NOT_SUPPORTED:
                        raise
            finally:
                lt.matmul_preference_destroy(preference)
        return tuple(CublasOffer(np.array(result["algo"]), _padded(int(result["workspace_size"])))
                     for result in results[:count[0]] if result["state"] == 0)

    def multiply(self, offer: CublasOffer, a: int, b: int, d: int, workspace: int, stream: int, *,
                 residual: int | None = None) -> None:
        """Queue the product on a stream.

        a, b, d: device addresses of A, B and D.
        workspace: device address of the offer's workspace.
        stream: handle of the stream.
        residual: device address of C.
        """
        a_layout, b_layout, d_layout = self._layouts
        beta, c = (ZERO, d) if residual is None else (ONE, residual)
        with self._library.calling("multiplying") as lt:
            lt.matmul(self._library.handle, self._operation, ONE.ctypes.data, a, a_layout,
                      b, b_layout, beta.ctypes.data, c, d_layout, d, d_layout,
                      offer.algorithm.ctypes.data, workspace, offer.workspace, stream)


def _padded(workspace: int) -> int:
    """Add 16 bytes to the size of a workspace, unless the size is 0.

    cuBLAS may need 16 additional bytes for a fused epilogue; nvmath-python adds them as well.
    """
    return workspace + 16 if workspace else 0


def _put(call: Callable[..., None], dtype_of: Callable[[int], Any], described: int,
         attribute: int, value: int) -> None:
    """Set an attribute of a cuBLAS descriptor.

    described: handle of the operation, layout or preference.
    """
    array = np.array([value], dtype_of(attribute))
    call(described, attribute, array.ctypes.data, array.nbytes)
