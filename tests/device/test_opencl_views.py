"""OpenCL's memory objects behind views of buffers."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.base import Device


def _only_opencl(device: Device) -> None:
    if device.api != "opencl":
        pytest.skip("OpenCL has sub-buffers")


def test_a_view_from_the_start_is_no_sub_buffer(compiled_device: Device) -> None:
    _only_opencl(compiled_device)
    step = compiled_device.alignment
    whole = compiled_device.upload(np.arange(step, dtype=np.float32), "a test")
    for view in (whole.view(0, 4), whole.view(0, 4 * step), whole.view(step, 0),
                 whole.view(0, 2 * step).view(0, step)):
        assert view.handle is whole.handle
    part = whole.view(step, 8)
    assert part.handle is not whole.handle and part.handle.size == 8
    back = np.empty(2, np.float32)
    compiled_device.read(part, back)
    np.testing.assert_array_equal(back, [step // 4, step // 4 + 1])


def test_a_sub_buffer_is_released_before_its_buffer(compiled_device: Device) -> None:
    """Python drops the attributes of an object in the order in which they were set."""
    _only_opencl(compiled_device)
    released = []

    class Noted:
        def __init__(self, name: str) -> None:
            self.name = name

        def __del__(self) -> None:
            released.append(self.name)

    step = compiled_device.alignment
    view = compiled_device.empty(2 * step, "a test").view(step, step)
    view.handle, view.root = Noted("sub-buffer"), Noted("buffer")
    del view
    assert released == ["sub-buffer", "buffer"]
