"""Fixtures for tests of the tuner: a device whose clock algorithms move, and algorithms for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer.ops.algorithm import Algorithm
from gossamer.ops.registry import OPS
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.plan.tune.paced import Known, MakeTuner, PacedDevice


@pytest.fixture
def paced_device() -> PacedDevice:
    return PacedDevice()


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Known:
    """Returns a function that makes algorithms known, so that plans try them and their measurements
    can be stored."""
    def add(*algorithms: Algorithm) -> None:
        op = OPS["conv2d"]
        monkeypatch.setitem(OPS, "conv2d", replace(op, algorithms=(*op.algorithms, *algorithms)))

    return add


@pytest.fixture
def paced_tuner(paced_device: PacedDevice, tmp_path: Path) -> MakeTuner:
    """Returns a function that makes a tuner; all share the folder of their measurements."""
    def make(effort: str = "normal", **options: Any) -> Tuner:
        return Tuner(paced_device, effort, cache=TuningCache(paced_device, tmp_path), **options)

    return make
