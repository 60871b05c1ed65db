"""Plans on CUDA, and PyTorch with CUDA."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gossamer.device.base import Device
from gossamer.plan.plan import Plan
from tests.plan.small import compiled, small


@pytest.fixture
def torch(cuda: Device) -> Any:
    module = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    if not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return module


@pytest.fixture
def on_cuda(cuda: Device, tmp_path: Path) -> Plan:
    """A plan of the small network."""
    return compiled(small(), cuda, tmp_path, strict=True)
