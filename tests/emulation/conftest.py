from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.errors import DeviceError
from tests.emulation.device import EmulatedDevice, emulated


@pytest.fixture(scope="session")
def emulate() -> Callable[..., EmulatedDevice]:
    """emulate(mode, schedule) returns the emulated device; skips the test where g++ fails."""
    def device(mode: str = "plain", schedule: int = 0) -> EmulatedDevice:
        try:
            # a test may change the limits of its own copy
            return emulated(mode, schedule).another()
        except DeviceError as error:
            pytest.skip(str(error).splitlines()[0])
    return device
