from __future__ import annotations

from collections.abc import Callable

import pytest

from gossamer.errors import DeviceError
from tests.emulation.device import EmulatedDevice, emulated


@pytest.fixture(scope="session")
def emulate() -> Callable[..., EmulatedDevice]:
    """emulate(mode, schedule): that device; the test is skipped where g++ builds none."""
    def device(mode: str = "plain", schedule: int = 0) -> EmulatedDevice:
        try:
            return emulated(mode, schedule)
        except DeviceError as error:
            pytest.skip(str(error).splitlines()[0])
    return device
