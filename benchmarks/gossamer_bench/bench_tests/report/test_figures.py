"""Tests of the figures and the summary of the sparse suites, with made-up rows."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gossamer.bench.rows import ResultRow
from gossamer.cli.app import app
from gossamer.errors import InputError
from gossamer.io import charts
from gossamer_bench.report import figures
from gossamer_bench.report.sparse_summary import LAYERS, NETWORKS, newest, summary
from gossamer_bench.row_files import append_rows
from tests.bench.verb import row

TIMES = {"gossamer": 10.0, "gossamer:direct_sparse/untiled": 60.0,
         "gossamer:direct_sparse/tiled": 40.0, "gossamer:direct_sparse_table": 20.0,
         "gossamer:direct_sparse_compiled": 10.0,
         "cublas-lowering": 50.0, "cusparse-lowering": 70.0, "cudnn": 30.0}


def case(name: str, batch: int = 64, density: float = 0.1, *, factor: float = 1.0,
         suite: str = LAYERS, run: str = "run", date: str = "2026-01-02",
         **times: float) -> list[ResultRow]:
    """Returns rows of every contender, with the times in `times` in place of those in TIMES; all
    times are multiplied by `factor`."""
    return [row(contender, factor * time, suite=suite, case=name, batch=batch, density=density,
                run_id=run, date=f"{date}T00:00:00+00:00")
            for contender, time in {**TIMES, **times}.items()]


def line(text: str, *cells: str) -> list[str]:
    """Returns the cells of the one table line that begins with these cells."""
    start = f"| {' | '.join(cells)} |"
    (match,) = [table_line for table_line in text.splitlines() if table_line.startswith(start)]
    return match.strip("| ").split(" | ")


def test_means_are_geometric_over_layers_that_are_sparse_enough() -> None:
    rows = [*case("caffenet/conv2", density=0.15), *case("alexnet/conv3", cudnn=120.0),
            *case("googlenet/a/3x3", density=0.16, cudnn=1e6)]
    text = summary(newest(rows, LAYERS), [])
    assert line(text, "all", "64", "2") == ["all", "64", "2", "fp32", "5.00", "7.00", "6.00"]
    assert line(text, "caffenet, googlenet, resnet50", "64", "1")[4:] == ["5.00", "7.00", "3.00"]
    assert "95% sparsity" not in text
    # the table of forms counts all layers, and those of the published comparison separately
    assert line(text, "alexnet, caffenet: conv2 to conv5", "64") == [
        "alexnet, caffenet: conv2 to conv5", "64", "2", "1.50", "2.00", "4.00", "4.00",
        "1.00"]
    assert line(text, "googlenet", "64", "1")[3] == "1.50"


def test_the_first_layers_of_networks_are_not_those_of_the_published_comparison() -> None:
    rows = [row for network, layers in (("alexnet", (1, 5)), ("caffenet", (1, 2, 3, 4, 5)))
            for layer in layers for row in case(f"{network}/conv{layer}")]
    text = summary(newest(rows, LAYERS), [])
    assert line(text, "alexnet, caffenet: conv2 to conv5", "64")[2] == "5"


def test_lines_come_from_many_layers_to_few() -> None:
    rows = [row for name in ("resnet50/a", "caffenet/conv2", "alexnet/conv2") for row in case(name)]
    text = summary(newest(rows, LAYERS), [])
    assert "\n\nMeasured 2026-01-02, commit abc" in text
    forms = text.split("## ")[2].splitlines()
    assert [each.strip("| ").split(" | ")[0] for each in forms if each.startswith("| ")][2:] == [
        "alexnet, caffenet: conv2 to conv5", "all", "caffenet, googlenet, resnet50", "alexnet",
        "caffenet", "resnet50"]


def test_forms_that_were_not_measured_have_no_speed() -> None:
    rows = [each for each in case("alexnet/conv2") if not each.contender.endswith("_compiled")]
    assert "| alexnet | 64 | 1 | 1.50 | 2.00 |  | 4.00 |  |" in summary(
        newest(rows, LAYERS), []).splitlines()


@pytest.mark.parametrize("less", ["tf32", "fp16"])
def test_less_precise_rows_count_in_their_own_line(less: str) -> None:
    def in_less(contender: str, time: float) -> ResultRow:
        return row(contender, time, suite=LAYERS, case="alexnet/conv2", batch=64, density=0.1,
                   precision=less, date="2026-01-02T00:00:00+00:00")

    rows = [*case("alexnet/conv2"), in_less("gossamer", 5.0), in_less("cudnn", 15.0)]
    text = summary(newest(rows, LAYERS), [])
    assert f"cudnn {less} | cudnn at its best" in text
    assert line(text, "all", "64", "1", "fp32")[4:] == ["5.00", "7.00", "3.00", "1.50", "1.50"]
    assert line(text, "all", "64", "1", less)[4:] == ["10.00", "14.00", "6.00", "3.00", "3.00"]


def test_precisions_are_compared_within_one_run() -> None:
    """gossamer's line of a precision also counts more precise rows; a peer's column does not."""
    def less_precise(contender: str, precision: str, time: float,
                     date: str = "2026-01-02") -> ResultRow:
        return row(contender, time, suite=LAYERS, case="alexnet/conv2", batch=1, density=0.04,
                   precision=precision, date=f"{date}T00:00:00+00:00")

    rows = [*case("alexnet/conv2", 1, 0.04), less_precise("cudnn", "tf32", 20.0),
            less_precise("cudnn", "fp16", 8.0), less_precise("gossamer", "fp16", 5.0),
            *case("alexnet/conv3", 1, 0.04)]
    older = case("alexnet/conv2", 1, 0.04, factor=0.1, run="old", date="2026-01-01", cudnn=1e4)
    text = summary(newest([*older, *rows], LAYERS), []).split("## ")[2]
    assert text.startswith("Layers of 95% sparsity")
    assert line(text, "all", "1", "2", "fp32")[4:] == [
        "5.00", "7.00", "3.00", "2.00 (1)", "0.80 (1)", f"{math.sqrt(0.8 * 3):.2f}"]
    faster = math.sqrt(2)
    assert line(text, "all", "1", "2", "fp16")[4:] == [
        f"{5 * faster:.2f}", f"{7 * faster:.2f}", f"{3 * faster:.2f}", "4.00 (1)", "1.60 (1)",
        f"{math.sqrt(1.6 * 3):.2f}"]
    assert not any(table_line.startswith("| all | 1 | 2 | tf32")
                   for table_line in text.splitlines())


def test_networks_are_told_with_the_best_dense_plan() -> None:
    rows = case("resnet50", suite=NETWORKS, density=0.5, **{"gossamer:im2col_gemm": 25.0})
    text = summary([], newest(rows, NETWORKS))
    assert line(text, "resnet50", "64") == [
        "resnet50", "64", "50.0%", "fp32", "10.0 us", "5.00", "7.00", "3.00", "2.50"]


def test_runs_without_gossamer_say_nothing() -> None:
    rows = [row for row in case("alexnet/conv2") if row.contender != "gossamer"]
    assert newest(rows, LAYERS) == []


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


@pytest.mark.slow
def test_one_command_draws_all_figures(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [row for batch in (1, 64) for name in ("alexnet/conv2", "alexnet/conv3")
            for row in case(name, batch)]
    rows += [row for name in ("caffenet", "resnet50") for row in case(name, suite=NETWORKS)]
    append_rows(tmp_path / "rows.jsonl", rows)
    folder = tmp_path / "figures"
    result = bench("--table", tmp_path / "rows.jsonl", "--figures", folder)
    assert result.exit_code == 0, result.output
    names = {"time-per-layer-alexnet.png", "speed-up-per-layer-alexnet.png",
             "speed-up-by-batch.png", "speed-up-per-network.png", "summary.md"}
    assert {path.name for path in (folder / "chip-cuda").iterdir()} == names
    assert result.stdout.count("written: ") == len(names)
    for name in names - {"summary.md"}:
        assert (folder / "chip-cuda" / name).read_bytes().startswith(b"\x89PNG")
    assert "# Sparse convolution on Chip through CUDA" in (
        folder / "chip-cuda" / "summary.md").read_text()


def test_bars_are_the_times_and_speeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    drawn: dict[str, Any] = {}
    monkeypatch.setattr(figures, "as_png", lambda figure: drawn.setdefault(
        figure.get_suptitle() + figure.axes[0].get_ylabel(), figure) and b"")
    figures.write(case("alexnet/conv2") + case("alexnet/conv3", factor=2.0), tmp_path)
    times, speeds, means = drawn.values()
    heights = [bar.get_height() for bar in times.axes[0].patches]
    assert heights == [60, 120, 40, 80, 20, 40, 10, 20, 10, 20]
    assert [bar.get_height() for bar in speeds.axes[0].patches] == [5, 5, 7, 7]
    assert [label.get_text() for label in speeds.axes[0].get_xticklabels()] == ["conv2", "conv3"]
    assert [list(curve.get_ydata()) for curve in means.axes[0].lines[:3]] == [
        [pytest.approx(speed)] for speed in (5, 7, 3)]


def test_rows_that_no_figure_shows_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row("gossamer", 1.0, suite=LAYERS, case="alexnet/conv2", batch=1,
                           density=0.1)])
    result = bench("--table", path, "--figures", tmp_path / "figures")
    assert result.exit_code == 0 and "no figure could be drawn" in result.stderr
    assert [line.endswith("summary.md") for line in result.stdout.splitlines()] == [True]


def test_what_cannot_be_drawn_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "--figures goes with --table PATH" in bench(
        "gemm", "--figures", tmp_path / "figures").stderr
    path = tmp_path / "rows.jsonl"
    append_rows(path, [row("gossamer", 1.0)])
    assert "there are no rows of the suites sparse-layers, sparse-networks and ladder" in bench(
        "--table", path, "--figures", tmp_path / "figures").stderr
    monkeypatch.setattr(charts.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="--figures: matplotlib is not installed"):
        figures.write(case("alexnet/conv2"), tmp_path)
    assert not (tmp_path / "figures").exists()
