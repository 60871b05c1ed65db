"""Tables: in the terminal, in Markdown, and in the files that carry them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from gossamer.bench import plots, report
from gossamer.bench.contest import Result
from gossamer.bench.rows import Row, read_rows, write_output
from gossamer.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"


def row(contender: str, median: float, **values: object) -> Row:
    base = Row("mobilenet", "mobilenetv2", contender, "cuda", "fp32", "NCHW", "a 1", 1, median,
               median - 1, median + 1, 1e-6, 10.0, 1.0, "Chip", {}, "gossamer bench", "abc",
               "run", "2026-01-02T03:04:05+00:00")
    return dataclasses.replace(base, **values)


def test_a_result_is_printed(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    report.print_result(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("tiny, batch 3: ")
    assert lines[2].split()[:2] == ["contender", "median"]
    shown = [line.split()[0] for line in lines[3:3 + len(result.rows)]]
    assert shown == [row.contender for row in result.rows]
    assert "absent: somebody: not installed: pip install something" in lines
    assert "failed: nobody (first): ValueError: no such layer" in lines


def test_markdown_of_rows() -> None:
    table = report.markdown([row("gossamer", 100.0), row("torch-graph", 200.0),
                             row("gossamer", 4000.0, batch=64)])
    lines = table.splitlines()
    assert lines[0] == "**mobilenetv2, fp32, Chip through CUDA**, 2026-01-02"
    assert len(lines) == 7 and len({line.count("|") for line in lines[2:]}) == 1
    assert lines[4].startswith("| mobilenetv2 | 1 | gossamer | 100.0 | 99.0 to 101.0 | 1.00 |")
    assert "| torch-graph | 200.0 | 199.0 to 201.0 | 0.50 | 1.0e-06 | 5.0% |" in lines[5]
    assert "| 64 | gossamer | 4000 |" in lines[6]


def test_only_the_newest_run_counts_on_each_machine() -> None:
    rows = [row("gossamer", 90.0, run_id="new", date="2026-02-01T00:00:00+00:00"),
            row("gossamer", 100.0), row("torch-graph", 50.0),
            row("gossamer", 300.0, machine="Other", run_id="other")]
    table = report.markdown(rows)
    assert "90.0" in table and "300.0" in table
    assert "100.0" not in table and "torch-graph" not in table


def test_tables_go_between_their_marks() -> None:
    text = "before\n<!-- bench:mobilenet -->\nold\n<!-- /bench -->\nafter\n"
    rows = [row("gossamer", 100.0)]
    written = report.with_tables(text, rows)
    assert written == (f"before\n<!-- bench:mobilenet -->\n{report.markdown(rows)}\n"
                       "<!-- /bench -->\nafter\n")
    assert report.with_tables(written, rows) == written


@pytest.mark.parametrize(("text", "reason"), [
    ("nothing", "no place for tables"),
    ("<!-- bench:mobilenet -->", "has no partner"),
    ("<!-- /bench --> <!-- bench:mobilenet -->", "has no partner"),
    ("<!-- bench:mobilenet --> <!-- bench:mobilenet --> <!-- /bench -->", "has no partner"),
    ("<!-- bench:gemm --><!-- /bench -->", "'gemm', of which there are no rows"),
])
def test_bad_marks_leave_the_file_alone(text: str, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        report.rewrite(path, [row("gossamer", 100.0)])
    assert path.read_text() == text


def test_readme_shows_the_committed_rows() -> None:
    files = sorted(RESULTS.rglob("*.jsonl"))
    if not files:
        pytest.skip(f"no rows in {RESULTS.relative_to(ROOT)}")
    text = (ROOT / "README.md").read_text()
    assert report.with_tables(text, read_rows(RESULTS), "README.md") == text, (
        "run: gossamer bench --table benchmarks/results --into README.md")


def test_summary_is_the_geometric_mean_over_cases() -> None:
    rows = [row("gossamer", 100.0, case="a"), row("torch-graph", 200.0, case="a"),
            row("gossamer:direct", 10.0, case="a"), row("torch-graph", 50.0, case="a",
                                                        precision="tf32"),
            row("gossamer", 100.0, case="b", run_id="b"),
            row("torch-graph", 800.0, case="b", run_id="b")]
    (line,) = report.summary(rows)
    assert line == ("mobilenet, batch 1, fp32, Chip through CUDA: speed of gossamer, geometric "
                    "mean over 2 cases: 4.00 against torch-graph (2 cases, faster in 2); "
                    "0.50 against torch-graph (tf32) (1 cases, faster in 0)")
    assert report.markdown(rows).endswith(line)
    assert report.summary(rows[:4]) == []


def test_a_plot_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    picture = plots.png([row("gossamer", 100.0), row("torch-graph", 200.0),
                         row("gossamer", 50.0, batch=64)])
    assert picture.startswith(b"\x89PNG")
    path = tmp_path / "rows.png"
    write_output("--plot", path, picture)
    assert path.read_bytes() == picture

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match=r"--plot .*No space left"):
        write_output("--plot", path, b"other")
    assert path.read_bytes() == picture and list(tmp_path.iterdir()) == [path]


def test_no_rows_no_plot() -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(InputError, match="no rows to show"):
        plots.png([])
