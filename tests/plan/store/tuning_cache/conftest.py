"""Fixtures: algorithms whose sources a test may change, and a fresh state of warnings."""

import pytest

from gossamer.device import kernel_cache
from gossamer.plan.store import tuning_cache


@pytest.fixture(autouse=True)
def algorithms(monkeypatch):
    """Two algorithms of gemm, with sources that a test may change."""
    sources = {"tiled": "first source", "few_rows": "other source"}
    monkeypatch.setattr(tuning_cache, "_source", lambda op, name, device: sources.get(name))
    return sources


@pytest.fixture(autouse=True)
def silence_of_other_tests(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_warned", set())
