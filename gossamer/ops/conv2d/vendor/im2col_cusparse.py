"""Convolution as cuSPARSE products of the weights and an im2col matrix.

The algorithm's name is cusparse-lowering. The sparse matrix of the weights is block-diagonal, with
one block for each group of the convolution.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gossamer.device.base import Buffer, Device
from gossamer.ops.algorithm import Algorithm, State, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.conv2d.sparse.formats import too_dense
from gossamer.ops.conv2d.vendor.im2col import (
    MatrixPart,
    gather,
    matrix_bytes,
    matrix_rows,
    output_offset,
    parts,
    tap_order,
    variant_of,
    weight_rows,
)
from gossamer.ops.epilogue_pass import epilogue_pass_launches
from gossamer.ops.launch import Launch
from gossamer.ops.strided import too_large
from gossamer.ops.vendor.libraries import (
    CUSPARSE,
    DATA_TYPES,
    ONE,
    ZERO,
    dtype_of,
    library_on,
    loaded_version,
    unavailable,
)
from gossamer.ops.weights import Weights

_ALGORITHMS = ("CSR_ALG2", "CSR_ALG1", "CSR_ALG3")
_LAYOUTS = ("CHWN", "NHWC", "NCHW")
_MOST_MATRICES = 65535
"""Maximum number of matrices in a batched product in cuSPARSE."""


class Im2colCusparse(Algorithm):
    """cuSPARSE's product of CSR weights and a gathered im2col matrix.

    A separate kernel applies the epilogue.
    """

    op = "conv2d"
    name = "cusparse-lowering"
    rounds_sums = True
    vendor = CUSPARSE
    dense = False

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if (reason := unavailable(CUSPARSE, device)) is not None:
            return reason
        if (reason := too_dense(problem.weights_info)) is not None:
            return reason
        if problem.out_channels * problem.depth >= 2**31:
            return "has 2^31 weights or more"
        return too_large(problem)

    def version(self, device: Device) -> str:
        return loaded_version(CUSPARSE, device)

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterator[Variant]:
        for algorithm in _ALGORITHMS:
            # only CSR_ALG3 supports float16; only CSR_ALG1 and CSR_ALG2 support batched products
            is_alg3 = algorithm == "CSR_ALG3"
            for precision in ("fp32", "fp16") if is_alg3 else ("fp32",):
                itemsize = np.dtype(dtype_of(precision)).itemsize
                for layout in _LAYOUTS:
                    matrix_parts = parts(problem, layout, itemsize)
                    most = max(part.images for part in matrix_parts) if layout == "NCHW" else 1
                    if most <= (1 if is_alg3 else _MOST_MATRICES):
                        workspace = max(matrix_bytes(problem, part, itemsize)
                                        for part in matrix_parts)
                        yield variant_of(problem, (("algorithm", algorithm),), layout, precision,
                                         workspace)

    def prepare(self, weights: Weights, problem: Conv2dProblem, variant: Variant,
                device: Device) -> State:
        state = State(problem, variant, device)
        if problem.outputs[0].size == 0:
            return state
        x, y = variant.inputs[0], variant.outputs[0]
        sparse = _CsrWeights(weights, problem, x.layout, x.dtype)
        state.data = [
            (None if problem.is_pointwise else gather(problem, x, part, device),
             _SparseProduct(sparse, problem, part, variant, device),
             output_offset(problem, x.layout, part) * y.stored_dtype.itemsize)
            for part in parts(problem, x.layout, x.stored_dtype.itemsize)]
        state.launches = epilogue_pass_launches(problem.epilogue, weights, device, y, 1)
        return state

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        if state.data is None:
            return
        device, x, y = state.device, inputs[0].address, outputs[0].address
        matrix = 0 if workspace is None else workspace.address
        device.keep(inputs, outputs, workspace, state)
        gathering: Launch | None
        for gathering, product, offset in state.data:
            if gathering is not None:
                gathering.run(device, inputs, outputs, workspace, stream)
            product.multiply(x if gathering is None else matrix, y + offset,
                             device.stream_handle(stream))
        super().launch(state, inputs, outputs, workspace, stream)


class _CsrWeights:
    """The weights as a CSR matrix (output channels, K of all groups) in device memory."""

    def __init__(self, weights: Weights, problem: Conv2dProblem, layout: str,
                 dtype: str) -> None:
        csr_arrays = functools.cache(lambda: csr(weights.arrays, problem, layout))

        def packed(index: int, kind: str) -> Buffer:
            return weights.packed(f"CSR {index} {tap_order(layout)} {kind}",
                                  lambda _: csr_arrays()[index].astype(kind))

        self.offsets, self.columns = packed(0, "int32"), packed(1, "int32")
        self.values = packed(2, dtype)
        self.count = self.columns.nbytes // 4


def csr(arrays: Mapping[str, np.ndarray], problem: Conv2dProblem,
        layout: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return row offsets, columns and values of the nonzero weights.

    If all weights are zero, one zero is stored, because cuSPARSE requires at least one value.
    """
    rows = weight_rows(problem, layout)(arrays)
    channels, columns = np.nonzero(rows)
    if not channels.size:
        channels, columns = np.zeros(1, int), np.zeros(1, int)
    values = rows[channels, columns]
    group = channels // problem.group_out_channels
    counts = np.bincount(channels, minlength=problem.out_channels)
    return np.concatenate([[0], np.cumsum(counts)]), columns + group * problem.depth, values


class _SparseProduct:
    """A product of sparse weights and a part of the im2col matrix, preprocessed by cuSPARSE."""

    def __init__(self, sparse: _CsrWeights, problem: Conv2dProblem, part: MatrixPart,
                 variant: Variant, device: Device) -> None:
        self._library = library_on(CUSPARSE, device)
        self._sparse = sparse
        layout = variant.inputs[0].layout
        dtype = DATA_TYPES[variant.inputs[0].dtype]
        depth, channels = matrix_rows(problem), problem.out_channels
        pixels = problem.image_pixels
        if layout == "NHWC":
            columns, leading, batch = part.images * part.pixels, (depth, channels), 1
        elif layout == "CHWN":
            columns, batch = part.pixels * part.images, 1
            leading = (columns, pixels * part.images)
        else:
            columns, leading, batch = part.pixels, (part.pixels, pixels), part.images
        gpu = self._library.device
        with self._library.calling("describing a product") as api:
            # The handle may still be set to the stream of the previous product. Another thread may
            # be recording a CUDA graph on that stream.
            api.set_stream(self._library.handle, gpu.stream_handle(None))
            order = api.Order.COL if layout == "NHWC" else api.Order.ROW
            self._weights = api.create_csr(
                channels, depth, sparse.count, sparse.offsets.address, sparse.columns.address,
                sparse.values.address, api.IndexType.INDEX_32I, api.IndexType.INDEX_32I,
                api.IndexBase.ZERO, dtype)
            weakref.finalize(self, api.destroy_sp_mat, self._weights).atexit = False
            # any address will do here, because multiply() sets the addresses of both matrices
            self._matrix, self._result = (
                api.create_dn_mat(rows, columns, lead, sparse.values.address, dtype, order)
                for rows, lead in zip((depth, channels), leading, strict=True))
            for descriptor in (self._matrix, self._result):
                weakref.finalize(self, api.destroy_dn_mat, descriptor).atexit = False
            if batch > 1:
                api.csr_set_strided_batch(self._weights, batch, 0, 0)
                api.dn_mat_set_strided_batch(self._matrix, batch, depth * part.pixels)
                api.dn_mat_set_strided_batch(self._result, batch, channels * pixels)
            none = api.Operation.NON_TRANSPOSE
            self._arguments = (self._library.handle, none, none, ONE.ctypes.data, self._weights,
                               self._matrix, ZERO.ctypes.data, self._result, DATA_TYPES["float32"],
                               api.SpMMAlg[variant["algorithm"]])
            nbytes = api.sp_mm_buffer_size(*self._arguments)
        self._buffer = gpu.empty(nbytes, "cuSPARSE's analysis of the weights")
        with self._library.calling("preparing a product") as api:
            api.set_stream(self._library.handle, gpu.stream_handle(None))
            api.sp_mm_preprocess(*self._arguments, self._buffer.address)
        gpu.synchronize()

    def multiply(self, matrix: int, result: int, stream: int) -> None:
        """Queue the product on a stream.

        matrix, result: addresses of the im2col matrix and of the output.
        stream: handle of the stream.
        """
        with self._library.calling("multiplying") as api:
            api.set_stream(self._library.handle, stream)
            api.dn_mat_set_values(self._matrix, matrix)
            api.dn_mat_set_values(self._result, result)
            api.sp_mm(*self._arguments, self._buffer.address)
