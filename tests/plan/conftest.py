"""Devices for networks and layers of real sizes."""

from __future__ import annotations

import pytest

from gossamer.device.base import Device
from tests.fixtures import is_slow, working_devices


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "quick_device" in metafunc.fixturenames:
        names = [name for name, device in working_devices().items() if not is_slow(device)]
        metafunc.parametrize("quick_device", names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def quick_device(request: pytest.FixtureRequest) -> Device:
    """Every device that works here and does not interpret its kernels: host, pocl, cuda."""
    return working_devices()[request.param]
