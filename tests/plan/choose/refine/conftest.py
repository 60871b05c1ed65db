"""Fixtures that make plans of the separable network."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer.device.registry import find
from gossamer.plan.candidate import Candidate
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.tuner import Tuner
from tests.model.onnx_models import save
from tests.plan.choose.refine.separable import DEPTHWISE, separable


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save(separable(), tmp_path)


@pytest.fixture
def make(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Plan]:
    """Returns a function that makes a plan on the host. Each layer alone counts as faster with the
    depthwise algorithm."""
    cost = Candidate.cost.fget  # type: ignore[attr-defined]

    def set_cost(self: Candidate) -> float:
        time = 10.0 if self.algorithm.name == DEPTHWISE else 20.0
        return time if math.isfinite(cost(self)) else math.inf

    monkeypatch.setattr(Candidate, "cost", property(set_cost))

    def plan(**options: Any) -> Plan:
        host = find("host")
        tuner = Tuner(host, "quick", cache=TuningCache(host, tmp_path / "tuning"))
        return Plan(gossamer.load(str(network)), host, Policy(**options), tuner=tuner)

    return plan
