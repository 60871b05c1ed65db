"""Calls of the verb `bench` on a tiny network, for the tests of gossamer and of its benchmarks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gossamer.cli.app import app
from tests.fixtures import working_devices


@pytest.fixture
def quick_calls(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gives the test a cache of its own, and makes what calls are compared with short."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("gossamer.bench.calls._COPIED_BYTES", 2**16)
    monkeypatch.setattr("gossamer.bench.calls._SAMPLE_US", 1e3)


@pytest.fixture(params=["host", "opencl:0"])
def device_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "host" and "pocl" not in working_devices():
        pytest.skip("PoCL does not work here")
    return name


def bench(*words: object) -> Any:
    result = CliRunner().invoke(app, ["bench", *map(str, words), "--seconds", "0.05",
                                      "--effort", "quick"])
    assert result.exit_code == 0, result.output
    return result
