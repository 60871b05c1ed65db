"""Tests of exchanging arrays by DLPack. Those that need a GPU are skipped where there is none."""

from __future__ import annotations

import gc
import itertools
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.errors import InputError

arrays = pytest.importorskip("gossamer.device.cuda.dlpack", exc_type=ImportError)


class Foreign:
    """An array of a library that supports only DLPack."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.asked: list[Any] = []

    def __dlpack__(self, *, stream: Any = None, **options: Any) -> Any:
        self.asked.append(stream)
        return self.array.__dlpack__(stream=stream, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class Interface:
    """An array that supports only the CUDA array interface."""

    def __init__(self, array: Any, **changes: Any) -> None:
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **changes}
        self.array = array


def _device_array(device: Device, values: np.ndarray, stream: Any = None) -> Any:
    buffer = device.empty(values.nbytes, "a test", stream)
    device.write(buffer, values, stream)
    return arrays.CudaArray(buffer, values.shape, values.dtype, stream)


def test_library_is_the_package_of_the_type() -> None:
    assert arrays.library(np.zeros(1)) == "numpy"
    assert arrays.library([]) == "builtins"


@pytest.mark.parametrize("package", ["torch", "cupy", "jax", "numba"])
def test_results_belong_to_the_library_of_the_inputs(package: str,
                                                     monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(device=SimpleNamespace(index=3), used_on=lambda stream: None)
    result = SimpleNamespace(buffer=used)
    taken = SimpleNamespace(from_dlpack=lambda array: (package, array))
    taken.dlpack = taken
    taken.cuda = SimpleNamespace(get_current_stream=lambda index: index)
    monkeypatch.setitem(sys.modules, package, taken)
    array = type("Array", (), {"__module__": f"{package}.core"})()
    assert arrays.like(array, result) == (result if package == "numba" else (package, result))


def test_host_arrays_lie_on_no_cuda_device() -> None:
    assert arrays.cuda_index(np.zeros(1)) is None
    assert arrays.cuda_index(Foreign(np.zeros(1))) is None
    assert arrays.cuda_index([1]) is None


class Closable:
    """A stream that knows whether it was closed, as those of cuda.core do."""

    is_closed = False

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 77


def test_an_array_outlives_the_stream_that_fills_it(fake: Any, made: Any) -> None:
    stream = Closable()
    array = _device_array(made, np.zeros(3, np.float32), stream)
    assert any("77" in call.split() for call in fake.calls)
    assert array.__cuda_array_interface__["stream"] == 77
    stream.is_closed = True
    fake.clear()
    array.numpy()
    assert array.__cuda_array_interface__["stream"] == made.stream_handle(None)
    del array
    words = {word for call in fake.calls for word in call.split()}
    assert {"MemcpyDtoHAsync", "MemFreeAsync"} <= words and "77" not in words


@pytest.mark.parametrize("shape", [(2, 3), (5,), (), (1, 4, 1, 2)])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint32", "int64", "bool"])
def test_round_trip(cuda: Device, shape: tuple[int, ...], dtype: str) -> None:
    values = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    foreign = Foreign(_device_array(cuda, values))
    stream = cuda.create_stream()
    shared = arrays.incoming(foreign, cuda, stream)
    assert foreign.asked == [stream.handle]
    assert (shared.shape, shared.dtype) == (values.shape, values.dtype)
    np.testing.assert_array_equal(shared.numpy(), values)


def test_exported_memory_outlives_the_array(cuda: Device) -> None:
    values = np.arange(1000, dtype=np.float32)
    stream = cuda.create_stream()
    shared = arrays.incoming(Foreign(_device_array(cuda, values, stream)), cuda)
    gc.collect()
    other_buffers = [cuda.upload(np.zeros(1000, np.float32), "a test") for _ in range(20)]
    np.testing.assert_array_equal(shared.numpy(), values)
    assert len({other.address for other in other_buffers} - {shared.buffer.address}) == 20


def test_array_interface_is_read(cuda: Device) -> None:
    values = np.arange(6, dtype=np.int32).reshape(2, 3)
    shared = arrays.incoming(Interface(_device_array(cuda, values)), cuda)
    np.testing.assert_array_equal(shared.numpy(), values)


def test_wrong_arrays_are_refused_with_a_remedy(cuda: Device) -> None:
    array = _device_array(cuda, np.zeros((2, 3), np.float32))
    with pytest.raises(InputError, match=r"input 'x' is not contiguous.*contiguous"):
        arrays.incoming(Interface(array, strides=(4, 8)), cuda, name="input 'x'")
    with pytest.raises(InputError, match="dtype float32, expected int32"):
        arrays.incoming(Foreign(array), cuda, dtype="int32")
    with pytest.raises(InputError, match="dtype complex64"):
        arrays.incoming(Interface(array, typestr="<c8"), cuda)
    with pytest.raises(InputError, match="is in host memory"):
        arrays.incoming(np.zeros(3), cuda)


def test_unit_dimensions_may_have_any_stride(cuda: Device) -> None:
    array = _device_array(cuda, np.arange(3, dtype=np.float32).reshape(1, 3))
    shared = arrays.incoming(Interface(array, strides=(400, 4)), cuda)
    assert shared.numpy().tolist() == [[0, 1, 2]]


def test_an_address_of_no_device_is_refused(cuda: Device) -> None:
    interface = Interface(_device_array(cuda, np.zeros(3, np.float32)), data=(256, False))
    with pytest.raises(InputError, match="is not in the memory of a CUDA device"):
        arrays.incoming(interface, cuda)


def test_results_for_unknown_libraries_are_device_arrays(cuda: Device) -> None:
    result = _device_array(cuda, np.arange(3, dtype=np.float32))
    assert np.asarray(result, np.float64).tolist() == [0, 1, 2]
    assert arrays.like(Foreign(result), result) is result


def test_torch_shares_memory_both_ways(cuda: Device, torch: Any) -> None:
    tensor = torch.arange(12, dtype=torch.float32, device="cuda").reshape(3, 4)
    stream = cuda.create_stream()
    shared = arrays.incoming(tensor, cuda, stream)
    assert shared.buffer.address == tensor.data_ptr()
    back = arrays.like(tensor, shared)
    assert back.data_ptr() == tensor.data_ptr()
    assert torch.equal(back, tensor)
    with pytest.raises(InputError, match=r"pass x\.contiguous\(\)"):
        arrays.incoming(tensor.T, cuda, stream)


def test_torch_streams_are_streams(cuda: Device, torch: Any) -> None:
    stream = torch.cuda.Stream()
    assert cuda.stream_handle(stream) == stream.cuda_stream
    with torch.cuda.stream(stream):
        values = torch.full((1 << 20,), 3.0, device="cuda")
        shared = arrays.incoming(values, cuda, stream)
    assert (shared.numpy() == 3).all()


def test_a_cupy_stream_lives_as_long_as_the_arrays_on_it(cuda: Device) -> None:
    cupy = pytest.importorskip("cupy", reason="cupy is not installed", exc_type=ImportError)
    values = np.arange(1000, dtype=np.float32)
    result = _device_array(cuda, values, cuda.create_stream())
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        shared = arrays.like(cupy.zeros(1), result)
    alive = weakref.ref(stream)
    del stream, result
    gc.collect()
    assert alive() is not None
    np.testing.assert_array_equal(cupy.asnumpy(shared), values)
    del shared
    gc.collect()
    assert alive() is None


def test_what_is_no_stream_is_refused(cuda: Device) -> None:
    with pytest.raises(InputError, match=r"expected a CUDA stream .* got a str"):
        cuda.synchronize("default")


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (1, 3), (2, 1, 3), (0, 3), (2, 0)])
def test_contiguous_is_what_numpy_calls_contiguous(shape: tuple[int, ...]) -> None:
    for strides in itertools.product((0, 1, 3, 6), repeat=len(shape)):
        view = np.lib.stride_tricks.as_strided(np.zeros(99, np.int8), shape, strides)
        assert arrays._is_contiguous(shape, strides) == view.flags.c_contiguous


@pytest.mark.parametrize(("changes", "dtype", "message"), [
    ({"strides": (1, 2)}, None, r"shape \(2, 3\), strides \(1, 2\)\); pass a contiguous copy"),
    ({"dtype": np.dtype("c8")}, None, "unsupported dtype complex64; convert"),
    ({}, "int32", "the input has dtype float32, expected int32; convert it first"),
    ({"__cuda_array_interface__": {"data": (1000, False)}}, None, "is in cuda:1, but the plan")])
def test_refused(made: Any, monkeypatch: Any, changes: Any, dtype: Any, message: str) -> None:
    monkeypatch.setattr(arrays, "device_of", {64: 0, 1000: 1}.__getitem__)
    monkeypatch.setattr(arrays, "StridedMemoryView", SimpleNamespace(
        from_cuda_array_interface=lambda array, stream_ptr: array))

    whole = {"shape": (2, 3), "strides": (3, 1), "dtype": np.dtype("f4"), "ptr": 64}
    given = SimpleNamespace(__cuda_array_interface__={"data": (64, False)}, **whole)
    taken = made.incoming(given, dtype="float32")
    assert (taken.buffer.address, taken.buffer.nbytes, taken.shape) == (64, 24, (2, 3))
    vars(given).update(changes)
    with pytest.raises(InputError, match=message):
        made.incoming(given, dtype=dtype)


def test_what_arrays_tell_other_libraries(made: Any) -> None:
    for stream, told in ((0, 1), (7, 7)):
        array = arrays.CudaArray(made.wrap(64, 24, None), (2, 3), "float32", stream)
        found = array.__cuda_array_interface__
        assert (found["data"], found["typestr"], found["stream"]) == ((64, False), "<f4", told)
    for options, message in (({"dl_device": (2, 1)}, "own device"), ({"copy": True}, "without a")):
        with pytest.raises(BufferError, match=message):
            array.__dlpack__(**options)
