from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gossamer.errors import DeviceError
from tests.emulation.device import EmulatedDevice, emulated


@pytest.fixture(scope="session")
def emulate() -> Callable[..., EmulatedDevice]:
    """emulate(mode, schedule, **limits) returns the emulated device with some limits of its own;
    skips the test where g++ fails."""
    def device(mode: str = "plain", schedule: int = 0, **limits: object) -> EmulatedDevice:
        try:
            made = emulated(mode, schedule).another()
        except DeviceError as error:
            pytest.skip(str(error).splitlines()[0])
        made.limits = replace(made.limits, **limits)  # type: ignore[arg-type]
        return made
    return device
