"""Tests run side by side: torch has one thread in each. A small network for all of them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def module() -> Any:
    """A convolutional network in evaluation mode."""
    from tests.torch.small import residual

    return residual()
