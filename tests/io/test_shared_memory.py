"""Memory that processes share: places of arrays, and blocks that are used again."""

from __future__ import annotations

import gc
import os
import subprocess
import sys

import numpy as np
import pytest

from gossamer.io import shared_memory
from gossamer.io.shared_memory import Place, SharedMemory

pytestmark = pytest.mark.skipif(not SharedMemory.is_supported(), reason="needs Linux")


def placed(memory: SharedMemory, array: np.ndarray) -> Place:
    place = memory.place(array)
    assert place is not None
    return place


def test_arrays_lie_in_blocks_of_their_own() -> None:
    memory = SharedMemory()
    arrays = [memory.empty(shape, dtype) for shape, dtype in (
        ((3, 5), np.float32), ((), np.uint8), ((0, 7), np.float16), ((100, 1000), np.int64))]
    for index, array in enumerate(arrays):
        array[...] = index
    places = list(map(memory.place, arrays))
    assert len(set(places)) == 4
    for index, (array, place) in enumerate(zip(arrays, places, strict=True)):
        assert (array == index).all() and place is not None
        assert place.start == place.block and place.nbytes >= array.nbytes
        assert place.block % os.sysconf("SC_PAGE_SIZE") == 0


def test_places_of_views_and_of_other_arrays() -> None:
    memory = SharedMemory()
    memory.empty((10,), np.uint8)
    array = memory.empty((8, 6), np.float32)
    place = placed(memory, array)
    assert memory.place(array[2:5]) == (place.block, place.nbytes, place.start + 2 * 6 * 4)
    assert memory.place(array[:, 1:]) is None
    assert memory.place(array.T) is None
    assert memory.place(np.zeros((8, 6), np.float32)) is None
    array[2:5] = 7
    assert (memory.view(place.start + 2 * 6 * 4, (3, 6), np.float32) == 7).all()


def test_a_block_is_used_again_when_no_view_of_its_array_is_left() -> None:
    memory = SharedMemory()
    array = memory.empty((1000, 100), np.uint8)
    place, row = placed(memory, array), array[3]
    del array
    other = memory.empty((1000, 100), np.uint8)
    assert placed(memory, other).block != place.block
    row[...] = 1
    del row
    gc.collect()
    again = memory.empty((990, 101), np.uint8)
    assert placed(memory, again).block == place.block
    del other, again


def test_another_process_writes_in_place() -> None:
    memory = SharedMemory()
    memory.empty((5,), np.uint8)
    array = memory.empty((4,), np.float32)
    array[...] = [1, 2, 3, 4]
    subprocess.run([sys.executable, "-c", f"""
import numpy as np
from gossamer.io.shared_memory import SharedMemory
memory = SharedMemory({memory.descriptor})
memory.view({placed(memory, array).start}, (4,), np.float32)[...] *= 2
"""], pass_fds=[memory.descriptor], check=True)
    assert array.tolist() == [2, 4, 6, 8]


def test_arrays_outlive_the_memory_object() -> None:
    memory = SharedMemory()
    descriptor = memory.descriptor
    array = memory.empty((1000,), np.float32)
    array[...] = 5
    view = array[10:]
    del array, memory
    gc.collect()
    assert (view == 5).all()
    del view
    gc.collect()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_memory_that_the_system_lacks_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "_MOST_BYTES", 2**20)
    memory = SharedMemory()
    array = memory.empty((2**19,), np.uint8)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory.empty((2**20,), np.uint8)
    array[...] = 1
    del array
    gc.collect()
    assert placed(memory, memory.empty((2**19,), np.uint8)).block == 0


def test_a_block_larger_than_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory, "available_memory", lambda: 2**20)
    memory = SharedMemory()
    array = memory.empty((2**20,), np.uint8)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        memory.empty((2**20 + 1,), np.uint8)
    assert os.fstat(memory.descriptor).st_blocks * 512 == array.nbytes


def test_released_memory_goes_back_to_the_system() -> None:
    memory = SharedMemory()
    free, kept = (memory.empty((4 * 2**20,), np.uint8) for _ in range(2))
    kept[...] = 5
    del free
    gc.collect()
    memory.release()
    assert os.fstat(memory.descriptor).st_blocks * 512 < 5 * 2**20
    assert (kept == 5).all()
    del kept
    gc.collect()
    assert os.fstat(memory.descriptor).st_blocks * 512 < 2**20


def test_core_dumps_leave_the_memory_out() -> None:
    memory = SharedMemory()
    with open("/proc/self/smaps", encoding="ascii") as file:
        mappings = file.read().split(f"{memory._address:x}-")[1].split("VmFlags:")[1]
    assert "dd" in mappings.splitlines()[0].split()
