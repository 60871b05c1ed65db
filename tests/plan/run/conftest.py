"""Plans on CUDA."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.device.base import Device
from gossamer.plan.plan import Plan
from tests.plan.small import compiled, small


@pytest.fixture
def on_cuda(cuda: Device, tmp_path: Path) -> Plan:
    """A plan of the small network."""
    return compiled(small(), cuda, tmp_path, strict=True)
