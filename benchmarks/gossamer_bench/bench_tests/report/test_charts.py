"""The chart of the published ladder."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from gossamer.bench.rows import ResultRow
from gossamer.cli.app import app
from gossamer_bench.ladder.rungs import Rung
from gossamer_bench.report.charts import Ladder, ladder_figure, ladders
from gossamer_bench.report.tables import markdown
from gossamer_bench.row_files import append_rows
from tests.bench.verb import row


def run(machine: str = "Chip", factor: float = 1.0, date: str = "2026-01-02"
        ) -> list[ResultRow]:
    """Returns rows of every rung, 7 ms for the first and less for each that follows, in float32
    twice as fast as in double precision, and of gossamer in both of its precisions."""
    def made(contender: str, precision: str, milliseconds: float) -> ResultRow:
        return row(contender, 1000 * factor * milliseconds, suite="ladder", precision=precision,
                   machine=machine, run_id=f"{machine} {date}", date=f"{date}T00:00:00+00:00")

    return [*(made(rung.contender, precision, (8.0 - rung) / part) for rung in Rung
              for precision, part in (("fp64", 1), ("fp32", 2))),
            made("gossamer", "fp32", 0.5), made("gossamer", "fp16", 0.25),
            made("torch-graph", "fp32", 0.75)]


def test_each_machine_has_its_newest_run() -> None:
    rows = [*run(factor=3.0, date="2026-01-01"), *run(), *run("Other"),
            row("gossamer", 1.0, suite="mobilenet")]
    found = ladders(rows)
    assert [ladder.where for ladder in found] == [("Chip", "cuda"), ("Other", "cuda")]
    # peers that were measured beside the rungs are no part of the ladder
    assert len(found[0].times) == 2 * len(Rung) + 2
    assert found[0].times["ladder:1-pixels", "fp64"].median_us == 7000


@pytest.mark.slow
def test_bars_are_the_times_from_the_first_rung_to_the_plan() -> None:
    pytest.importorskip("matplotlib")
    (ladder,) = ladders(run())
    (axis,) = ladder_figure(ladder).axes
    expected = [time for rung in Rung for time in (8.0 - rung, (8.0 - rung) / 2)] + [0.5, 0.25]
    assert [bar.get_width() for bar in axis.patches] == expected
    assert [text.get_text() for text in axis.texts] == [f"{time:.3g}" for time in expected]
    heights = [bar.get_y() for bar in axis.patches]
    assert heights == sorted(heights) and axis.get_ylim()[0] > axis.get_ylim()[1]
    labels = [label.get_text() for label in axis.get_yticklabels()]
    assert labels[0] == "1. one thread a pixel" and labels[-1] == "gossamer's plan"
    assert "Chip through CUDA" in axis.get_title()
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["fp64", "fp32", "fp16"]


def test_rungs_that_were_not_measured_leave_no_gap() -> None:
    pytest.importorskip("matplotlib")
    (ladder,) = ladders(run())
    few = Ladder(ladder.where, {key: value for key, value in ladder.times.items()
                                if key[0] in ("ladder:6-pointwise", "gossamer")
                                and key[1] == "fp32"})
    (axis,) = ladder_figure(few).axes
    assert [label.get_text() for label in axis.get_yticklabels()] == [
        "6. a kernel for 1x1", "gossamer's plan"]


def test_one_command_draws_the_ladder_of_every_machine(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    append_rows(tmp_path / "rows.jsonl", [*run(), *run("Other")])
    result = CliRunner().invoke(app, ["bench", "ladder", "--table", str(tmp_path / "rows.jsonl"),
                                      "--figures", str(tmp_path / "figures")])
    assert result.exit_code == 0, result.output
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")) == [
        "figures/chip-cuda/ladder.png", "figures/other-cuda/ladder.png", "rows.jsonl"]
    assert (tmp_path / "figures/chip-cuda/ladder.png").read_bytes().startswith(b"\x89PNG")


def test_double_precision_has_a_table_of_its_own_before_the_others() -> None:
    text = markdown(run())
    titles = [line for line in text.splitlines() if line.startswith("**")]
    assert [title.split(", ")[1] for title in titles] == ["fp64", "fp32", "fp16"]
    double = text.split("\n\n")[1]
    # gossamer does not compute in double precision
    assert "gossamer" not in double and double.count("| ladder:") == len(Rung)
