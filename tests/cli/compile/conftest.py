"""Fixtures: the command line with an empty cache, and a network for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gossamer.cli.app import app
from tests.cli.compile.command import Run
from tests.model.onnx_models import save
from tests.plan.small import small


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the command line with an empty cache."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save(small(), tmp_path)
