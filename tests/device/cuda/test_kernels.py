"""Kernels with a driver that is not there: arguments, sizes of launches, early launches."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from gossamer.errors import DeviceError
from tests.device.helpers import SELF_CHECK

kernels = pytest.importorskip("gossamer.device.cuda.kernel", exc_type=ImportError)


def test_arguments_lie_where_c_has_them(fake: Any, made: Any) -> None:
    block = np.dtype("u1,i8,f2,f8,i4,u8,f4", align=True)
    fake.parameters = [(offset, kind.itemsize) for kind, offset in block.fields.values()]
    kernel = kernels.CudaKernel(SELF_CHECK, b"", made)
    values = np.uint8(200), np.int64(-2), np.float16(0.5), np.float64(2.5), True, None, 0.1
    pointers = (ctypes.c_void_p * len(values)).from_address(kernel.packed(values))
    given = np.array(tuple(value or 0 for value in values), block)
    for index, (pointer, (offset, size)) in enumerate(zip(pointers, fake.parameters, strict=True)):
        assert pointer == pointers[0] + offset
        assert ctypes.string_at(pointer, size) == given[f"f{index}"].tobytes()
    for wrong, message in ((values[1:], "self_check expects 7 arguments, got 6"), (
            (*values[:6], None), "argument 6 of self_check must have 4 bytes, got 8")):
        with pytest.raises(DeviceError, match=message):
            made.launch(kernel, (1,), (1,), wrong)


def test_launches_that_are_too_large_are_refused(fake: Any, made: Any) -> None:
    fake.attributes = {"MAX_THREADS_PER_BLOCK": 64}
    kernel = kernels.CudaKernel(SELF_CHECK, b"", made)
    made.launch(kernel, (2**31 - 1, 65535), (8, 8), (), stream=9)
    assert " 65535 1 8 8 1 0 9 " in fake.calls[-1]
    for groups, size, message in (((1, 65536), (1,), "in dimension 1, but self_check needs 65536"),
                                  ((1,), (13, 5), "at most 64 work-items .*, got 65")):
        with pytest.raises(DeviceError, match=message):
            made.launch(kernel, groups, size, ())


def test_a_launch_says_that_it_may_begin_early() -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    from cuda.bindings import driver

    from gossamer.device.cuda.kernel import early_launch

    config = early_launch((3, 2, 1), (64, 1, 1), 4096, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (3, 2, 1)
    assert (config.blockDimX, config.sharedMemBytes, config.numAttrs) == (64, 4096, 1)
    (attribute,) = config.attrs
    assert attribute.id == (
        driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
    assert attribute.value.programmaticStreamSerializationAllowed == 1
