"""What the process of a device does with its arrays, here within this process."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from gossamer.device.opencl import OpenCLDevice
from gossamer.device.registry import find
from gossamer.errors import CompileError, DeviceError, OutOfMemoryError
from gossamer.io.shared_memory import SharedMemory
from gossamer.plan import group_worker
from gossamer.plan.choose.saved_options import stored
from gossamer.plan.group_worker import Worker
from gossamer.plan.policy import ANY
from tests.plan.device_stand_ins import LaterDevice
from tests.plan.small import assert_close, compiled, expected, images, small

pytestmark = pytest.mark.skipif(not SharedMemory.is_supported(), reason="needs Linux")


class LockingDevice(LaterDevice):
    """PoCL as a device that locks pages of others' memory."""

    is_refused = False

    def __init__(self, pocl: OpenCLDevice) -> None:
        super().__init__(pocl)
        self.shared: list[np.ndarray] = []

    def lock_pages(self, array: np.ndarray) -> None:
        if self.is_refused:
            raise OutOfMemoryError("the pages cannot be locked")
        self.locked.append(array)
        self.shared.append(array)


@pytest.fixture
def locking(pocl: OpenCLDevice) -> LockingDevice:
    return LockingDevice(pocl)


class Begun:
    """A worker, and the choices of its plan."""

    def __init__(self, device: Any, folder: Path) -> None:
        self.memory = SharedMemory()
        self.plan = compiled(small(), device, folder)
        self.worker = Worker(self.plan.graph, device, self.memory, ANY)

    def begin(self, batch: int, places: Any) -> Callable[[], object]:
        choices = stored({batch: self.plan.program(batch)}, self.plan.device)
        return self.worker.begin(batch, choices, places)


def placed(memory: SharedMemory, batch: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, Any]:
    """Returns an input with an output, and their places."""
    x = memory.empty((batch, 3, 6, 5), np.float32)
    y = memory.empty((batch, 4), np.float32)
    x[...] = images(batch, seed)
    return x, y, (memory.place(x), memory.place(y))


def test_batches_overlap_in_memory_that_is_locked_once(locking: LockingDevice,
                                                       tmp_path: Path) -> None:
    begun = Begun(locking, tmp_path)
    assert begun.worker.at_once == 3
    arrays = [placed(begun.memory, 2 + seed % 2 * 2, seed) for seed in range(6)]
    for _ in range(2):
        for _, y, _ in arrays:
            y[...] = 0
        for start in (0, 3):
            collects = [begun.begin(len(x), places) for x, _, places in arrays[start:start + 3]]
            for collect in collects:
                collect()
        for x, y, _ in arrays:
            assert_close(y, expected(x))
    blocks = {begun.memory.place(array) for array in locking.shared}
    assert len(locking.shared) == len(blocks) == 12 and not begun.worker.problem
    assert {place.block for place in blocks if place} == {
        place.block for _, _, places in arrays for place in places}


def test_memory_that_cannot_be_locked_is_copied(locking: LockingDevice, tmp_path: Path) -> None:
    locking.is_refused = True
    begun = Begun(locking, tmp_path)
    x, y, places = placed(begun.memory, 3)
    begun.begin(3, places)()
    assert_close(y, expected(x))
    assert begun.worker.problem == "the pages cannot be locked"


def test_a_processor_computes_one_batch_at_a_time(tmp_path: Path) -> None:
    begun = Begun(find("host"), tmp_path)
    assert begun.worker.at_once == 1
    x, y, places = placed(begun.memory, 3)
    begun.begin(3, places)()
    assert_close(y, expected(x))
    with pytest.raises(ValueError, match="1 arrays for 1 inputs and 1 outputs"):
        begun.begin(3, places[:1])


@pytest.mark.parametrize(("error", "kind", "text"), [
    (DeviceError("a fault"), DeviceError, "a fault"),
    (CompileError("no such kernel\nline 2"), CompileError, "no such kernel"),
    (ZeroDivisionError("by zero"), ZeroDivisionError, "by zero"),
    (DeviceError("long " * 10**5), DeviceError, "long long"),
])
def test_errors_that_are_sent(error: Exception, kind: type, text: str) -> None:
    here, there = Pipe()
    with here, there:
        worker: Any = type("", (), {"problem": "slow"})
        group_worker._answer(there, worker, 7, Mock(side_effect=error))
        number, sent, problem = here.recv()
    assert (number, type(sent), problem) == (7, kind, "slow")
    assert text in str(sent)
