"""A fixture that registers the ops of the published steps for one test."""

from __future__ import annotations

import pytest

from gossamer.ops.registry import OPS
from gossamer_bench import published_steps


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (published_steps.im2col, published_steps.batch_statistics,
                 published_steps.normalise):
        monkeypatch.setitem(OPS, step.OP.name, step.OP)
