"""Fixtures of a CUDA driver that is not there."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver in the place of the real one. What is left of other devices is freed before."""
    from tests.device.cuda.fake_driver import FakeDriver

    gc.collect()
    return FakeDriver(monkeypatch)


@pytest.fixture
def made(fake: Any) -> Iterator[Any]:
    """A device of the fake driver, which frees what is left of the device."""
    from tests.device.cuda.fake_driver import fake_device

    with fake_device() as opened:
        fake.clear()
        yield opened
    gc.collect()
