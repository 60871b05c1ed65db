"""A CUDA device for machines without a GPU. Kernels run on PoCL. cuBLASLt is replaced
by NumPy on the same memory, with the addresses, strides and limits of their documentation."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Argument, Buffer, Kernel
from gossamer.device.opencl import OpenCLBuffer, OpenCLDevice

_TYPES = {0: np.dtype("float32"), 2: np.dtype("float16")}


class AddressedBuffer(Buffer):
    """OpenCL memory with an address, as CUDA memory has one."""

    address = 0

    def __init__(self, device: AddressedDevice, memory: OpenCLBuffer, address: int) -> None:
        self.device, self.memory, self.address = device, memory, address
        self.nbytes = memory.nbytes

    def view(self, offset: int, nbytes: int) -> AddressedBuffer:
        return AddressedBuffer(self.device, self.memory.view(offset, nbytes),
                               self.address + offset)


class AddressedDevice(OpenCLDevice):
    """An OpenCL device whose buffers have addresses and which runs CUDA's libraries."""

    api = "cuda"
    runs_cuda_libraries = True

    def __init__(self, pocl: OpenCLDevice) -> None:
        super().__init__(pocl.handle, 0)
        self._spaces: list[AddressedBuffer] = []
        self._next = 2**40

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stream_handle(self, stream: Any) -> int:
        assert stream is None
        return 77

    def keep(self, *objects: Any) -> None:
        pass

    def empty(self, nbytes: int, purpose: str, stream: Any = None) -> AddressedBuffer:  # type: ignore[override]
        buffer = AddressedBuffer(self, super().empty(nbytes, purpose), self._next)
        self._next += (nbytes // 256 + 2) * 256
        self._spaces.append(buffer)
        return buffer

    def write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        super().write(_memory(buffer), array)

    def read(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        super().read(_memory(buffer), array)

    def launch(self, kernel: Kernel, groups: Sequence[int], work_group_size: Sequence[int],
               arguments: Sequence[Argument], *, shared_bytes: int = 0,
               stream: Any = None) -> None:
        opencl_arguments = [_memory(a) if isinstance(a, Buffer) else a for a in arguments]
        super().launch(kernel, groups, work_group_size, opencl_arguments,
                       shared_bytes=shared_bytes)

    @contextlib.contextmanager
    def memory_at(self, address: int, dtype: np.dtype) -> Any:
        """Yields the memory from an address to the end of its buffer, and writes it back
        afterwards."""
        space = next(s for s in self._spaces if s.address <= address < s.address + s.nbytes)
        start = address - space.address
        assert start % dtype.itemsize == 0
        data = np.empty(space.nbytes, np.uint8)
        self.read(space, data)
        count = (space.nbytes - start) // dtype.itemsize
        yield data[start: start + count * dtype.itemsize].view(dtype)
        self.write(space, data)


def _memory(buffer: Buffer) -> OpenCLBuffer:
    memory = buffer.memory if isinstance(buffer, AddressedBuffer) else buffer
    assert isinstance(memory, OpenCLBuffer)
    return memory


def column_major(memory: np.ndarray, rows: int, columns: int, leading: int) -> np.ndarray:
    """Returns a view of a matrix; fails where the matrix exceeds the memory."""
    assert leading >= rows and memory.size >= leading * (columns - 1) + rows
    return np.lib.stride_tricks.as_strided(
        memory, (rows, columns), (memory.itemsize, leading * memory.itemsize))


class CublasLtError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"{ {7: 'INVALID_VALUE', 15: 'NOT_SUPPORTED'}[status]} ({status})")
        self.status = status


class Described:
    """Objects of a library, by their handles."""

    def __init__(self, device: AddressedDevice) -> None:
        self.device = device
        self._described: dict[int, dict[Any, Any]] = {}
        self._handles = itertools.count(1)

    def _new(self, **values: Any) -> int:
        handle = next(self._handles)
        self._described[handle] = values
        return handle

    def _destroy(self, handle: int) -> None:
        del self._described[handle]


class CublasLt(Described):
    """A replacement of cuBLASLt. It offers two algorithms for each product, which take 0 and 1000
    bytes of workspace, and none for a product with a bias where `refuses_bias` is set."""

    ComputeType = enum.IntEnum("ComputeType", {"COMPUTE_32F": 68, "COMPUTE_32F_FAST_TF32": 77})
    MatmulDescAttribute = enum.IntEnum("MatmulDescAttribute",
                                       {"TRANSA": 3, "EPILOGUE": 7, "BIAS_POINTER": 8})
    MatrixLayoutAttribute = enum.IntEnum("MatrixLayoutAttribute",
                                         {"BATCH_COUNT": 5, "STRIDED_BATCH_OFFSET": 6})
    MatmulPreferenceAttribute = enum.IntEnum("MatmulPreferenceAttribute", {
        "MAX_WORKSPACE_BYTES": 1, "REDUCTION_SCHEME_MASK": 3, "MIN_ALIGNMENT_A_BYTES": 5,
        "MIN_ALIGNMENT_B_BYTES": 6, "MIN_ALIGNMENT_C_BYTES": 7, "MIN_ALIGNMENT_D_BYTES": 8})
    Epilogue = enum.IntEnum("Epilogue", {"DEFAULT": 1, "RELU": 2, "BIAS": 4, "RELU_BIAS": 6})
    ReductionScheme = enum.IntEnum("ReductionScheme", {"COMPUTE_TYPE": 2, "MASK": 7})
    cuBLASLtError = CublasLtError
    matmul_heuristic_result_dtype = np.dtype([
        ("algo", [("data_", "<u8", (8,))]), ("workspace_size", "<u8"), ("state", "<i4"),
        ("waves_count", "<f4"), ("reserved", "<i4", (4,))])

    def __init__(self, device: AddressedDevice) -> None:
        super().__init__(device)
        self.refuses_bias = False
        self.products: list[dict[str, int]] = []

    def create(self) -> int:
        return self._new()

    def get_version(self) -> int:
        return 130100

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        assert scale == 0
        return self._new(compute=self.ComputeType(compute))

    def matrix_layout_create(self, dtype: int, rows: int, columns: int, leading: int) -> int:
        return self._new(dtype=_TYPES[dtype], rows=rows, columns=columns, leading=leading)

    def matmul_preference_create(self) -> int:
        return self._new()

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = Described._destroy

    def get_matmul_desc_attribute_dtype(self, attribute: int) -> type:
        names = self.MatmulDescAttribute
        return {names.TRANSA: np.int32, names.EPILOGUE: np.uint32,
                names.BIAS_POINTER: np.int64}[attribute]

    def get_matrix_layout_attribute_dtype(self, attribute: int) -> type:
        names = self.MatrixLayoutAttribute
        return {names.BATCH_COUNT: np.int32, names.STRIDED_BATCH_OFFSET: np.int64}[attribute]

    def get_matmul_preference_attribute_dtype(self, attribute: int) -> type:
        return np.uint64 if attribute == 1 else np.uint32

    def _set(self, handle: int, attribute: enum.IntEnum, dtype: type, pointer: int,
             size: int) -> None:
        if size != np.dtype(dtype).itemsize:
            raise CublasLtError(7)
        raw = ctypes.string_at(pointer, size)
        self._described[handle][attribute.name] = int.from_bytes(raw, "little")

    def matmul_desc_set_attribute(self, handle: int, attribute: int, pointer: int,
                                  size: int) -> None:
        self._set(handle, self.MatmulDescAttribute(attribute),
                  self.get_matmul_desc_attribute_dtype(attribute), pointer, size)

    def matrix_layout_set_attribute(self, handle: int, attribute: int, pointer: int,
                                    size: int) -> None:
        self._set(handle, self.MatrixLayoutAttribute(attribute),
                  self.get_matrix_layout_attribute_dtype(attribute), pointer, size)

    def matmul_preference_set_attribute(self, handle: int, attribute: int, pointer: int,
                                        size: int) -> None:
        self._set(handle, self.MatmulPreferenceAttribute(attribute),
                  self.get_matmul_preference_attribute_dtype(attribute), pointer, size)

    def matmul_algo_get_heuristic(self, handle: int, operation: int, a: int, b: int, c: int,
                                  d: int, preference: int, requested: int, results: int,
                                  count: int) -> None:
        described = self._described[operation]
        if described["EPILOGUE"] & 4 and self.refuses_bias:
            raise CublasLtError(15)
        assert c == d and not (described["EPILOGUE"] & 4 and described["BIAS_POINTER"] == 0)
        limits = self._described[preference]
        size = self.matmul_heuristic_result_dtype.itemsize
        table = np.frombuffer((ctypes.c_char * (size * requested)).from_address(results),
                              self.matmul_heuristic_result_dtype)
        for rank in range(2):
            table[rank]["algo"]["data_"][:2] = rank, limits["MIN_ALIGNMENT_D_BYTES"]
            table[rank]["workspace_size"] = 1000 * rank
        (ctypes.c_int * 1).from_address(count)[0] = 2

    def matmul(self, handle: int, operation: int, alpha: int, a: int, adesc: int, b: int,
               bdesc: int, beta: int, c: int, cdesc: int, d: int, ddesc: int, algorithm: int,
               workspace: int, workspace_bytes: int, stream: int) -> None:
        assert stream == 77 and cdesc == ddesc
        described = self._described[operation]
        self.products.append(dict(described))
        rank, alignment = np.frombuffer(ctypes.string_at(algorithm, 16), np.uint64)
        assert all(address % int(alignment) == 0 for address in (a, b, c, d))
        if rank:
            assert workspace_bytes >= 1000
            with self.device.memory_at(workspace, np.dtype(np.uint8)) as scratch:
                scratch[:workspace_bytes] = 0xEE
        factor, c_factor = (ctypes.c_float.from_address(address).value
                            for address in (alpha, beta))
        layouts = [self._described[layout] for layout in (adesc, bdesc, ddesc)]
        batch = layouts[2].get("BATCH_COUNT", 1)
        dtype = layouts[2]["dtype"]
        for member in range(batch):
            starts = [address + member * layout.get("STRIDED_BATCH_OFFSET", 0) * dtype.itemsize
                      for address, layout in zip((a, b, c, d), (*layouts[:2], layouts[2],
                                                                layouts[2]), strict=True)]
            x, y, z = (self._matrix(start, layout).astype(np.float64)
                       for start, layout in zip(starts, layouts, strict=False))
            product = factor * ((x.T if described["TRANSA"] else x) @ y)
            if c_factor:
                product += c_factor * z
            if described["EPILOGUE"] & 4:
                with self.device.memory_at(described["BIAS_POINTER"], dtype) as bias:
                    product += bias[:len(product), np.newaxis].astype(np.float64)
            if described["EPILOGUE"] & 2:
                product = np.maximum(product, 0)
            layout = layouts[2]
            with self.device.memory_at(starts[3], dtype) as memory:
                column_major(memory, layout["rows"], layout["columns"],
                             layout["leading"])[...] = product

    def _matrix(self, address: int, layout: dict[str, Any]) -> np.ndarray:
        with self.device.memory_at(address, layout["dtype"]) as memory:
            return column_major(memory, layout["rows"], layout["columns"],
                                layout["leading"]).copy()


class Doubles:
    """The replaced device and library."""

    def __init__(self, pocl: OpenCLDevice) -> None:
        self.device = AddressedDevice(pocl)
        self.lt = CublasLt(self.device)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Installs the replacement as the modules of nvmath-python's bindings."""
        for name, module in {"nvmath": SimpleNamespace(), "nvmath.bindings": SimpleNamespace(),
                             "nvmath.bindings.cublas": self.lt,
                             "nvmath.bindings.cublasLt": self.lt}.items():
            monkeypatch.setitem(sys.modules, name, module)
