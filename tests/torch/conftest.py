"""Tests run side by side: torch has one thread in each."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch"):
    import torch

    torch.set_num_threads(1)
