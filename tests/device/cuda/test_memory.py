"""Tests of memory of the device's pool and of page-locked memory, without a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from typing import Any

import numpy as np
import pytest

from gossamer.errors import OutOfMemoryError

cuda_memory = pytest.importorskip("gossamer.device.cuda.memory", exc_type=ImportError)

ADDRESS = 1000


class Notes:
    """A device that records waits of streams, and when the memory at ADDRESS is freed."""

    index, alignment = 3, 8

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[Any, ...]] = []
        usual = cuda_memory.driver.cuMemFreeAsync

        def free(address: int, stream: int) -> Any:
            if address != ADDRESS:
                return usual(address, stream)
            self.seen.append(("free", stream))

        monkeypatch.setattr(cuda_memory.driver, "cuMemFreeAsync", free)

    def current(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def stream_handle(self, stream: Any) -> int:
        return 70 if stream is None else stream if isinstance(stream, int) else stream.handle

    def checked(self, doing: str, result: tuple[Any, ...]) -> Any:
        return cuda_memory.check(result)

    def is_closed(self, stream: Any) -> bool:
        return getattr(stream, "is_closed", False)

    def wait(self, waiting: Any, awaited: Any) -> None:
        self.seen.append(("wait", self.stream_handle(waiting),
                          "all" if self.is_closed(awaited) else self.stream_handle(awaited)))


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.is_closed = False


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    return Notes(monkeypatch)


@pytest.mark.parametrize(("first", "again", "handle"), [
    (None, 70, 70), (71, Stream(71), 71), (0, 1, 1),
], ids=["own", "handle and object", "default"])
def test_memory_of_one_stream_goes_back_in_its_order(
        notes: Notes, first: Any, again: Any, handle: int) -> None:
    memory = cuda_memory.StreamAllocation(notes, ADDRESS, first)
    memory.used_on(again)
    assert not notes.seen
    del memory
    assert notes.seen == [("free", handle)]


def test_memory_goes_back_behind_all_streams_that_used_it(notes: Notes) -> None:
    memory = cuda_memory.StreamAllocation(notes, ADDRESS, Stream(71))
    memory.used_on(72)
    del memory
    assert notes.seen == [("wait", 70, 71), ("wait", 70, 72), ("free", 70)]


@pytest.mark.parametrize("others", [[], [72]], ids=["alone", "beside another"])
def test_the_handle_of_a_closed_stream_is_not_used_again(notes: Notes, others: list[int]) -> None:
    stream = Stream(71)
    memory = cuda_memory.StreamAllocation(notes, ADDRESS, stream)
    for other in others:
        memory.used_on(other)
    stream.is_closed = True
    del memory
    assert notes.seen == [("wait", 70, "all"), *(("wait", 70, other) for other in others),
                          ("free", 70)]


def test_memory_keeps_the_streams_that_used_it(notes: Notes) -> None:
    stream = Stream(71)
    alive = weakref.ref(stream)
    memory = cuda_memory.StreamAllocation(notes, ADDRESS, 71)
    memory.used_on(stream)
    memory.used_on(71)
    del stream
    assert alive() is not None
    del memory
    assert alive() is None


def test_a_part_of_memory_keeps_all_of_it(notes: Notes) -> None:
    whole = cuda_memory.CudaBuffer(notes, ADDRESS, 64,
                                   cuda_memory.StreamAllocation(notes, ADDRESS, Stream(71)))
    part = whole.view(16, 40).view(8, 4)
    assert (part.address, part.nbytes) == (ADDRESS + 24, 4)
    del whole
    part.used_on(72)
    assert not notes.seen
    del part
    assert notes.seen == [("wait", 70, 71), ("wait", 70, 72), ("free", 70)]


def test_a_pool_is_made_once_and_keeps_freed_memory(
        notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = cuda_memory.driver

    def create(properties: Any) -> tuple[Any, ...]:
        notes.seen.append(("pool", properties.location.id))
        return driver.CUresult.CUDA_SUCCESS, 5

    def set_attribute(pool: int, attribute: Any, value: Any) -> tuple[Any, ...]:
        notes.seen.append((pool, attribute.name, int(value)))
        return (driver.CUresult.CUDA_SUCCESS,)

    monkeypatch.setattr(driver, "cuMemPoolCreate", create)
    monkeypatch.setattr(driver, "cuMemPoolSetAttribute", set_attribute)
    pool = cuda_memory.MemoryPool(notes)
    assert [pool.handle, pool.handle] == [5, 5]
    assert notes.seen == [("pool", 3),
                          (5, "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD", 2**64 - 1)]


@pytest.mark.parametrize("nbytes", [0, 1, 300])
def test_page_locked_memory_is_freed_with_the_last_array_over_it(
        notes: Notes, monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    driver, memory = cuda_memory.driver, (ctypes.c_uint8 * 400)()
    address = ctypes.addressof(memory)

    def allocate(size: int, flags: int) -> tuple[Any, ...]:
        notes.seen.append(("allocate", size))
        return driver.CUresult.CUDA_SUCCESS, address

    monkeypatch.setattr(driver, "cuMemHostAlloc", allocate)
    monkeypatch.setattr(driver, "cuMemFreeHost", lambda freed: notes.seen.append(("free", freed)))
    array = cuda_memory.page_locked(notes, nbytes)
    assert (array.shape, array.dtype) == ((nbytes,), np.uint8)
    array[:] = 7
    assert bytes(memory) == b"\7" * nbytes + bytes(400 - nbytes)
    part = array[nbytes // 2:]
    del array
    # the driver allocates no memory of size 0
    assert notes.seen == [("allocate", max(nbytes, 1))]
    del part
    assert notes.seen[1:] == [("free", address)]


@pytest.mark.parametrize(("status", "kind", "is_locked"), [
    ("CUDA_SUCCESS", "HOST", True), ("CUDA_SUCCESS", "DEVICE", False),
    ("CUDA_ERROR_INVALID_VALUE", "HOST", False),
])
def test_the_driver_tells_whether_memory_is_page_locked(
        monkeypatch: pytest.MonkeyPatch, status: str, kind: str, is_locked: bool) -> None:
    driver, array = cuda_memory.driver, np.zeros(3)

    def attribute(of: Any, address: int) -> tuple[Any, ...]:
        assert address == array.ctypes.data
        return (getattr(driver.CUresult, status),
                getattr(driver.CUmemorytype, f"CU_MEMORYTYPE_{kind}"))

    monkeypatch.setattr(driver, "cuPointerGetAttribute", attribute)
    assert cuda_memory.is_page_locked(array) is is_locked


@pytest.mark.parametrize(("stream", "free"), [(None, "MemFree"), (9, "MemFreeAsync")])
def test_memory_is_freed_once(fake: Any, made: Any, stream: Any, free: str) -> None:
    part = made.empty(512, "a test", stream).view(256, 4)
    address = part.address - 256
    assert not any("Free" in call for call in fake.calls)
    del part
    assert [call.split()[:2] for call in fake.calls if "Free" in call] == [[free, str(address)]]


def test_memory_of_other_processes_is_locked_for_all_devices(fake: Any, made: Any) -> None:
    array = np.zeros(4096, np.uint8)
    made.lock_pages(array)
    assert fake.calls == ["MemHostRegister host 4096 1"]
    fake.failing["cuMemHostRegister"] = [
        cuda_memory.driver.CUresult.CUDA_ERROR_NOT_SUPPORTED]
    with pytest.raises(OutOfMemoryError, match="cuda:0 cannot lock 4096 bytes of host memory: "
                                               "CUDA_ERROR_NOT_SUPPORTED"):
        made.lock_pages(array)


@pytest.mark.parametrize(("mode", "several"), [(0, True), (2, False), (3, False)])
def test_a_device_for_one_process_gets_no_other(fake: Any, made: Any, mode: int,
                                                several: bool) -> None:
    fake.numbers["COMPUTE_MODE"] = mode
    assert made.needs_own_process is several
