"""Made-up result rows, and runs of the verb bench with small networks and sparse weights."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gossamer.bench.rows import ResultRow
from gossamer.cli.app import app
from gossamer_bench import sparse_data
from tests.fixtures import needed


@pytest.fixture
def quick_calls(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    """Gives the test a cache of its own, and makes what calls are compared with short."""
    monkeypatch.setattr("gossamer.bench.calls._COPIED_BYTES", 2**16)
    monkeypatch.setattr("gossamer.bench.calls._SAMPLE_US", 1e3)


@pytest.fixture(params=["host", "opencl:0"])
def device_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name != "host":
        needed("pocl")
    return name


def bench(*words: object) -> Any:
    result = CliRunner().invoke(app, ["bench", *map(str, words), "--seconds", "0.05",
                                      "--effort", "quick"])
    assert result.exit_code == 0, result.output
    return result


def row(contender: str, median: float, **values: object) -> ResultRow:
    """Returns a row with this median in microseconds and other values where they are given."""
    base = ResultRow("mobilenet", "mobilenetv2", contender, "cuda", "fp32", "NCHW", "a 1", 1,
                     median, median - 1, median + 1, 1e-6, 10.0, 1.0, "Chip", {},
                     "gossamer bench", "abc", "run", "2026-01-02T03:04:05+00:00")
    return dataclasses.replace(base, **values)  # type: ignore[arg-type]


HEADING = "net,layer,C,M,K,Hin,Hout,stride,pad,groups,sparsity_pct"
LINES = ("tiny,3x3,8,12,3,7,7,1,1,2,80", "tiny,dense,8,12,1,7,7,1,0,1,0.5")


def tiny_folder(folder: Path, *lines: str) -> Path:
    """Creates all files that are expected; all are empty except SkimCaffe's layers."""
    for name in sparse_data.ALL:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    (folder / sparse_data.SKIMCAFFE).write_text("\n".join([HEADING, *(lines or LINES), ""]))
    return folder
