"""Tests of Markdown tables of rows, their summaries, and the files that hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.errors import InputError
from gossamer_bench.report import tables
from gossamer_bench.row_files import append_rows, read_rows
from tests.bench.verb import row

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results"


def test_markdown_of_rows() -> None:
    table = tables.markdown([row("gossamer", 100.0), row("torch-graph", 200.0),
                             row("gossamer", 4000.0, batch=64)])
    lines = table.splitlines()
    assert lines[0] == "**mobilenetv2, fp32, Chip through CUDA**, 2026-01-02"
    assert len(lines) == 7 and len({line.count("|") for line in lines[2:]}) == 1
    assert "| 1 | gossamer | 100.0 us | 99.0 to 101.0 us | 1.00 |" in lines[4]
    assert "| torch-graph | 200.0 us | 199.0 to 201.0 us | 0.50 | 1.0e-06 | 5.0% |" in lines[5]
    assert "| 64 | gossamer | 4.00 ms | 4.00 to 4.00 ms |" in lines[6]


def test_only_the_newest_run_counts_on_each_machine() -> None:
    rows = [row("gossamer", 90.0, run_id="new", date="2026-02-01T00:00:00+00:00"),
            row("gossamer", 100.0), row("torch-graph", 50.0),
            row("gossamer", 300.0, machine="Other", run_id="other")]
    table = tables.markdown(rows)
    assert "90.0" in table and "300.0" in table
    assert "100.0" not in table and "torch-graph" not in table


def test_tables_go_between_their_marks() -> None:
    text = "before\n<!-- bench:mobilenet -->\nold\n<!-- /bench -->\nafter\n"
    rows = [row("gossamer", 100.0)]
    written = tables.with_tables(text, rows)
    assert written == (f"before\n<!-- bench:mobilenet -->\n{tables.markdown(rows)}\n"
                       "<!-- /bench -->\nafter\n")
    assert tables.with_tables(written, rows) == written


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
        append_rows(tmp_path / "rows.jsonl", [row("gossamer", 100.0)])
        tables.rewrite(path, tmp_path)
    assert path.read_text() == text


@pytest.mark.slow
def test_documentation_shows_the_committed_rows() -> None:
    files = sorted(RESULTS.rglob("*.jsonl"))
    if not files:
        pytest.skip(f"no rows in {RESULTS.relative_to(ROOT)}")
    page = ROOT / "docs" / "benchmarks.md"
    text = page.read_text()
    hint = "run: gossamer bench --table benchmarks/results --into docs/benchmarks.md"
    assert tables.with_tables(text, read_rows(RESULTS), page.name) == text, hint
    # other pages name the module that makes them
    beside = {path: content for path in RESULTS.rglob("*.md")
              if not (content := path.read_text()).startswith("<!-- made by python -m ")}
    assert tables.full_tables(text, RESULTS) == beside, hint


def test_lines_of_a_run_are_geometric_means_over_cases() -> None:
    rows = [row("gossamer", 100.0, case="a"), row("torch-graph", 200.0, case="a"),
            row("gossamer:direct", 10.0, case="a"),
            row("torch-graph", 50.0, case="a", precision="tf32"),
            row("gossamer", 100.0, case="b", run_id="b"),
            row("torch-graph", 800.0, case="b", run_id="b")]
    (line,) = tables.summary_lines(rows)
    assert line == ("mobilenet, batch 1, fp32, Chip through CUDA: speed of gossamer, geometric "
                    "mean over 2 cases: 4.00 against torch-graph (2 cases, as fast or faster in "
                    "2)")
    assert tables.markdown(rows).endswith(line)
    assert tables.summary_lines(rows[:4]) == []


def test_lines_of_a_run_have_the_plan_without_fusions() -> None:
    rows = [row(contender, time, suite="mobilenet-blocks", case=f"net/{case}")
            for case, time, unfused in (("a", 10.0, 20.0), ("b", 10.0, 45.0))
            for contender, time in (("gossamer", time), ("gossamer:unfused", unfused))]
    (line,) = tables.summary_lines(rows)
    assert line.endswith("3.00 against gossamer:unfused (2 cases, as fast or faster in 2)")
    assert tables.summary(rows, "mobilenet-blocks").splitlines()[2:] == [
        "| network | batch | precision | cases | gossamer:unfused |",
        "| --- | --- | --- | --- | --- |", "| net | 1 | fp32 | 2 | 3.00 (2 of 2) |"]


def test_pointwise_layers_compare_their_algorithm_with_the_fastest_library() -> None:
    times = {"net/a": {"gossamer": 10.0, "gossamer:pointwise_mma": 10.0, "cudnn": 40.0,
                       "cublas-lowering": 20.0, "torch-graph": 5.0},
             "net/b": {"gossamer": 10.0, "gossamer:pointwise_mma": 20.0, "cudnn": 10.0},
             "net/c": {"gossamer": 10.0, "cudnn": 10.0}}
    rows = [row(contender, time, suite="pointwise-layers", case=case)
            for case, of_case in times.items() for contender, time in of_case.items()]
    line = ("pointwise-layers, batch 1, fp32, Chip through CUDA: speed of gossamer:pointwise_mma "
            "against the fastest of NVIDIA's libraries, geometric mean over 2 cases: 1.00 (as fast "
            "or faster in 1)")
    assert tables.summary_lines(rows)[1:] == [line]
    assert tables.summary(rows, "pointwise-layers").endswith(f"\n\n{line}")
    assert not any("pointwise_mma" in line for line in tables.summary_lines(
        [each for each in rows if each.contender != "gossamer:pointwise_mma"]))


def layers(precision: str, own: float, *peers: float) -> list[object]:
    """Returns rows of two layers of one network, with gossamer's time and cuDNN's two times."""
    rows = []
    for case, peer in zip(("net/a", "net/b"), peers, strict=True):
        rows += [row("gossamer", own, suite="conv-layers", case=case, precision=precision),
                 row("cudnn", peer, suite="conv-layers", case=case, precision=precision)]
    return rows


def test_a_summary_has_a_line_a_network_batch_and_precision() -> None:
    rows = [*layers("fp16", 10.0, 9.9, 5.0), *layers("fp32", 100.0, 200.0, 800.0),
            row("torch-graph", 200.0, suite="conv-layers", case="net/a")]
    lines = tables.summary(rows, "conv-layers").splitlines()
    assert lines[0].startswith("**conv-layers, Chip through CUDA**, 2026-01-02: how many times as "
                               "fast gossamer is, geometric mean (and in how many cases it is as "
                               "fast, within 2%, or faster)")
    assert lines[2:] == [
        "| network | batch | precision | cases | cudnn | torch-graph |",
        "| --- | --- | --- | --- | --- | --- |",
        "| net | 1 | fp32 | 2 | 4.00 (2 of 2) | 2.00 (1 of 1) |",
        "| net | 1 | fp16 | 2 | 0.70 (1 of 2) |  |"]


def test_a_summary_of_planning_has_seconds() -> None:
    text = tables.summary([
        row("gossamer", 8.49e6, suite="tuning", case="net/quick", config="plan 131 us"),
        row("torch-compile", 2.3e7, suite="tuning", case="net/quick"),
        row("gossamer", 1.06e7, suite="tuning", case="net/quick", precision="fp16")], "tuning")
    assert text.splitlines()[2:] == [
        "| network and effort | batch | precision | gossamer s | torch-compile s | outcome |",
        "| --- | --- | --- | --- | --- | --- |",
        "| net/quick | 1 | fp32 | 8.5 | 23.0 | plan 131 us |",
        "| net/quick | 1 | fp16 | 10.6 |  | a 1 |"]


def test_a_summary_of_whole_networks_has_their_times() -> None:
    rows = [row("gossamer", 100.0, suite="networks"), row("cudnn", 150.0, suite="networks"),
            row("gossamer:direct", 99.0, suite="networks"),
            row("onnxruntime", 900.0, suite="networks", device="host", machine="Processor")]
    lines = tables.summary(rows, "networks").splitlines()
    assert lines[0].endswith("how many times as fast gossamer is")
    assert lines[2] == ("| network | batch | precision | gossamer | cudnn | onnxruntime (host) "
                        "| gossamer:direct |")
    assert lines[4] == "| mobilenetv2 | 1 | fp32 | 100.0 us | 1.50 | 9.00 | 0.99 |"


def test_all_tables_stand_beside_the_rows_that_a_text_sums_up(tmp_path: Path) -> None:
    folder, readme = tmp_path / "results", tmp_path / "README.md"
    append_rows(folder / "chip" / "conv-layers.jsonl", layers("fp32", 100.0, 200.0, 800.0))
    append_rows(folder / "chip" / "mobilenet.jsonl", [row("gossamer", 100.0)])
    readme.write_text("<!-- bench:conv-layers summary -->\n<!-- /bench -->\n"
                      "<!-- bench:mobilenet -->\n<!-- /bench -->\n")
    beside = folder / "chip" / "conv-layers.md"
    assert tables.rewrite(readme, folder) == [readme, beside]
    assert "| net | 1 | fp32 | 2 | 4.00 (2 of 2) |" in readme.read_text()
    assert "| net/b | 1 | gossamer | 100.0 us |" in beside.read_text()
    before = readme.read_text(), beside.read_text()
    tables.rewrite(readme, folder)
    assert before == (readme.read_text(), beside.read_text())
