"""OpenCL's memory objects behind views of buffers, and the devices of a machine."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from tests.device.helpers import NotingLock, read
from tests.processes import python


def _only_opencl(device: Device) -> None:
    if device.api != "opencl":
        pytest.skip("OpenCL has sub-buffers")


def test_devices_compute_without_a_folder_for_caches(compiled_device: Device,
                                                     tmp_path: Path) -> None:
    _only_opencl(compiled_device)
    (tmp_path / "file").touch()
    environment = {name: value for name, value in os.environ.items() if name != "POCL_CACHE_DIR"}
    found = python(
        "import gossamer\nprint([device.name for device in gossamer.devices() "
        "if device.problem is None])",
        env={**environment, "XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)})
    assert compiled_device.name in found.stdout
    assert "Traceback" not in found.stderr


def test_a_view_from_the_start_is_no_sub_buffer(compiled_device: Device) -> None:
    _only_opencl(compiled_device)
    step = compiled_device.alignment
    whole = compiled_device.upload(np.arange(step, dtype=np.float32), "a test")
    for view in (whole.view(0, 4), whole.view(0, 4 * step), whole.view(step, 0),
                 whole.view(0, 2 * step).view(0, step)):
        assert view.handle is whole.handle
    part = whole.view(step, 8)
    assert part.handle is not whole.handle
    assert part.handle is whole.view(0, 2 * step).view(step, 4).handle
    back = read(compiled_device, part, 2)
    np.testing.assert_array_equal(back, [step // 4, step // 4 + 1])


def test_sub_buffers_are_released_the_latest_first_whoever_refers_to_them(
        compiled_device: Device) -> None:
    """NVIDIA's driver reads memory that it has freed where an older one is released first, and
    crashes where another thread calls it meanwhile."""
    _only_opencl(compiled_device)
    from gossamer.device.opencl_driver import OpenCLMemory

    released, lock = [], NotingLock()

    class Part:
        def __init__(self, offset: int) -> None:
            self.offset = offset

        def release(self) -> None:
            assert lock.is_held
            released.append(self.offset)

    class Whole(Part):
        size = 1024

        def get_sub_region(self, offset: int, nbytes: int) -> Part:
            assert lock.is_held and offset + nbytes == self.size
            return Part(offset)

    memory = OpenCLMemory(Whole(0), lock)
    parts = [memory.starting_at(offset) for offset in (512, 256, 768, 256)]
    assert parts[1] is parts[3]
    # as a cycle that holds all of them, which is collected in any order
    memory.itself = memory
    del parts[0]
    assert not released
    del memory
    gc.collect()
    assert released == [768, 256, 512, 0]


def test_views_that_overlap_hold_the_same_bytes_after_others_are_gone(
        compiled_device: Device) -> None:
    _only_opencl(compiled_device)
    step = compiled_device.alignment
    rng = np.random.default_rng(0)
    for _ in range(20):
        expected = rng.integers(0, 256, 16 * step, np.uint8)
        whole = compiled_device.upload(expected, "a test")
        views: list[tuple[Buffer, int, int]] = []
        for _ in range(10):
            start = step * int(rng.integers(16))
            nbytes = int(rng.integers(1, 16 * step - start + 1))
            views.append((whole.view(start, nbytes), start, nbytes))
            view, start, nbytes = views[rng.integers(len(views))]
            expected[start: start + nbytes] = rng.integers(256)
            compiled_device.write(view, expected[start: start + nbytes].copy())
            if rng.integers(2):
                views.pop(rng.integers(len(views)))
        back = read(compiled_device, whole, expected.shape, expected.dtype)
        np.testing.assert_array_equal(back, expected)


platforms = pytest.importorskip("gossamer.device.opencl_driver")


def test_gpus_come_first_and_the_simulator_last(monkeypatch: pytest.MonkeyPatch) -> None:
    simulator, cpu, gpu = (
        SimpleNamespace(platform=SimpleNamespace(name=f"{driver} "), type=kind)
        for driver, kind in (("Oclgrind", 2 + 4), ("A", 2), ("B", 4)))
    monkeypatch.setattr(platforms.cl, "get_platforms", lambda: [
        SimpleNamespace(get_devices=lambda: [simulator, cpu]),
        SimpleNamespace(get_devices=lambda: [gpu])])
    assert platforms.handles() == [gpu, cpu, simulator]
    assert [platforms.is_gpu(handle) for handle in platforms.handles()] == [True, False, False]
