"""The suites of PyTorch's modules: the contenders, their rows, and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from typer.testing import CliRunner

from bench_tests.conftest import PEAKS
from gossamer.cli.app import app
from gossamer_bench import modules, peaks
from gossamer_bench.modules import TIMM, names_of
from gossamer_bench.peers import module_calls
from gossamer_bench.row_files import read_rows
from tests.torch.small import images, residual


class Library:
    """A library with two networks, in place of timm and torchvision."""

    @staticmethod
    def list_models(module: object = None) -> list[str]:
        return ["tiny", "tiny_too"]


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(peaks, "measure_peaks", lambda device, precisions: PEAKS)
    monkeypatch.setattr(modules, "_library", lambda name: Library)
    monkeypatch.setattr(module_calls, "made", lambda name, place, dtype: (
        residual(), tuple(images().shape[1:])))


def bench(*words: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["bench", *map(str, words), "--device", "host", "--effort",
                                      "quick", "--seconds", "0.05"])
    assert result.exit_code == code, result.output
    return result


def test_rows_of_modules(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    result = bench("torch-modules", "--models", "tiny*", "--batch", "1,3", "--against",
                   "torch-eager,torch-compile-graph", "-o", file)
    rows = read_rows(file)
    assert {(row.case, row.batch, row.contender) for row in rows} == {
        (case, batch, contender) for case in ("tiny", "tiny_too") for batch in (1, 3)
        for contender in ("gossamer", "torch-eager")}
    assert all(row.error < 1e-5 for row in rows)
    assert all(row.config.startswith("optimised in ") for row in rows
               if row.contender == "gossamer")
    assert "geometric mean over 2 cases" in result.output
    assert "absent: torch-compile-graph: makes CUDA graphs" in " ".join(result.output.split())


def test_budget_ends_a_run(tmp_path: Path) -> None:
    result = bench("torch-modules", "--models", "tiny", "--batch", "1,3", "--against", "none",
                   "--budget", "0.0001", "--json")
    assert json.loads(result.stdout)["results"] == []
    assert "--budget 0.0001: tiny, batch 1 and what follows are left out" in result.stderr


def test_rows_in_the_columns_of_timm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_calls.ModuleWork, "peer", lambda self, name: self._contender(
        name, self.module, ""))
    file = tmp_path / "rows.csv"
    bench("timm", "--models", "tiny*", "--batch", "2", "-o", file)
    with file.open() as lines:
        rows = list(csv.DictReader(lines))
    assert [row["model"] for row in rows] == ["tiny", "tiny_too"]
    parameters = sum(weight.numel() for weight in residual().parameters())
    for row in rows:
        assert (row["infer_batch_size"], row["infer_img_size"]) == ("2", "12")
        assert float(row["param_count"]) == round(parameters / 1e6, 2)
        for kind in ("infer", "compile"):
            rate, step = (float(row[f"{kind}_{name}"]) for name in ("samples_per_sec", "step_time"))
            assert rate * step == pytest.approx(2 * 1e3, rel=0.05)


def test_a_module_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Any, effort: str) -> Any:
        raise RuntimeError("no such operator")

    monkeypatch.setattr(module_calls.ModuleWork, "own", refused)
    result = bench("timm", "--models", "tiny", "--json")
    assert json.loads(result.stdout)["rows"] == []
    assert "no such operator" in result.stdout


def test_multiplications() -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.Flatten(),
                                 torch.nn.Linear(16, 5))
    assert modules.multiplications(module, torch.randn(2, 3, 4, 4)) == 2 * (4 * 4 * 27 + 16 * 5)


def test_statistics_are_those_of_pictures() -> None:
    x = torch.randn(8, 3, 6, 6) * 3 + 1
    module = modules.with_statistics(torch.nn.Sequential(torch.nn.BatchNorm2d(3)), x)
    y = module(x)
    assert not module.training
    torch.testing.assert_close(y.mean((0, 2, 3)), torch.zeros(3), atol=1e-4, rtol=0)


def test_scales_of_zero_become_one() -> None:
    norm = torch.nn.BatchNorm2d(3)
    torch.nn.init.zeros_(norm.weight)
    modules.with_statistics(torch.nn.Sequential(norm), torch.randn(8, 3, 6, 6))
    assert norm.weight.tolist() == [1, 1, 1]


def test_names() -> None:
    assert names_of(f"tiny,{TIMM}tiny*,tiny") == ["tiny", f"{TIMM}tiny", f"{TIMM}tiny_too"]
    assert len(names_of(None)) == 20


def test_small_networks_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"tiny": 20_000_001, "tiny_too": 5, f"{TIMM}tiny_too": 20_000_000}
    # a network whose constructor fails is left out
    monkeypatch.setattr(modules, "parameter_count", lambda name: sizes[name])
    orders = {tuple(modules.drawn(seed)) for seed in range(20)}
    assert orders == {("tiny_too", f"{TIMM}tiny_too"), (f"{TIMM}tiny_too", "tiny_too")}
    rows = [[row["model"] for row in json.loads(bench(
        "timm", "--count", count, "--seed", 3, "--batch", 2, "--json").stdout)["rows"]]
            for count in (1, 1, 9)]
    assert rows[0] == rows[1] == rows[2][:1]
    assert sorted(rows[2]) == ["tiny_too", "torchvision.tiny_too"]


def test_parameters_are_counted_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    devices = []

    def created(name: str) -> torch.nn.Module:
        module = torch.nn.Linear(3, 2)
        devices.append(module.weight.device.type)
        if name == "computes" and devices[-1] == "meta":
            raise RuntimeError("cannot be computed on meta tensors")
        return module

    monkeypatch.setattr(modules, "created", created)
    assert [modules.parameter_count(name) for name in ("plain", "computes")] == [8, 8]
    assert devices == ["meta", "meta", "cpu"]


@pytest.mark.parametrize(("words", "part"), [
    (["timm", "--models", "tiny", "--count", "2"], "or draw some with --count N"),
    (["mobilenet", "--count", "2"], "--count 2: goes with the suite timm alone"),
    (["torch-modules", "--models", "large*"], "no network of torchvision has such a name"),
    (["mobilenet", "--models", "tiny"], "goes with the suites torch-modules and timm"),
])
def test_wrong_options(words: list[str], part: str) -> None:
    assert part in " ".join(bench(*words, code=2).output.split())


def test_multiplications_where_a_layer_gets_a_view_of_a_parameter() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token, self.layer = torch.nn.Parameter(torch.ones(1, 3)), torch.nn.Linear(3, 5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.token.expand(len(x), -1)) + self.layer(x)

    assert modules.multiplications(Tokens(), torch.randn(2, 3)) == 2 * 2 * 3 * 5
