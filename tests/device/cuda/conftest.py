"""Fixtures of a CUDA driver that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A driver in the place of the real one."""
    from tests.device.cuda.fake_driver import FakeDriver

    return FakeDriver(monkeypatch)


@pytest.fixture
def made(fake: Any) -> Iterator[Any]:
    """A device of the fake driver."""
    from tests.device.cuda.fake_driver import fake_device

    with fake_device() as opened:
        fake.taken()
        yield opened
