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
def run(own_cache: Path) -> Run:
    """Run the command line with an empty cache."""
    return lambda *words: CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def network(tmp_path: Path) -> Path:
    return save(small(), tmp_path)
