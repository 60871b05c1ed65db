"""Which failures of the driver end a process's work on a device."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.errors import DeviceError, DeviceLostError

driver = pytest.importorskip("gossamer.device.cuda.driver", exc_type=ImportError)
CODES = driver.driver.CUresult


@pytest.mark.parametrize("code, is_final", [
    (CODES.CUDA_ERROR_ILLEGAL_ADDRESS, True), (CODES.CUDA_ERROR_LAUNCH_FAILED, True),
    (CODES.CUDA_ERROR_INVALID_VALUE, False), (CODES.CUDA_ERROR_OUT_OF_MEMORY, False)])
def test_a_kernel_that_failed_loses_the_device(code: Any, is_final: bool) -> None:
    error = driver.device_error("cuda:0 failed copying", SimpleNamespace(code=code))
    assert isinstance(error, DeviceError)
    assert isinstance(error, DeviceLostError) == is_final
    assert ("restart the process" in str(error)) == is_final


def test_the_context_of_another_library_is_current_again_afterwards(fake: Any, made: Any) -> None:
    for others in ([7], [7, 500], [500, 7]):
        fake.contexts[:] = others
        with made.current(), made.current():
            assert fake.contexts[-1] == 500
        assert fake.contexts == others
