"""Views of rows, and tables in the terminal."""

from __future__ import annotations

import dataclasses

import pytest

from gossamer.bench.call_contest import Result
from gossamer_bench.peaks import Peaks
from gossamer_bench.report import terminal
from gossamer_bench.report.views import standings, views
from tests.bench.verb import row

RUN = [row("gossamer", 100.0), row("gossamer", 40.0, precision="fp16"),
       row("cudnn", 80.0), row("cudnn", 90.0, precision="tf32"),
       row("torch-graph", 300.0), row("torch-graph", 30.0, precision="fp16"),
       row("onnxruntime", 500.0, device="host", machine="Processor")]


def test_each_precision_shows_its_rows_and_ours() -> None:
    shown = {view.precision: [view.name(row) for row in view.rows] for view in views(RUN)}
    assert shown == {
        "fp32": ["cudnn", "gossamer", "torch-graph", "onnxruntime (host)"],
        "tf32": ["cudnn", "gossamer (fp32)"],
        "fp16": ["torch-graph", "gossamer"]}
    assert list(shown) == ["fp32", "tf32", "fp16"]


def test_what_ran_elsewhere_has_no_speed_of_light() -> None:
    (view,) = views([row("onnxruntime", 5.0, device="host", speed_of_light_us=None),
                     row("gossamer", 100.0)])
    assert view.light == 10.0
    (view,) = views([row("gossamer", 100.0, speed_of_light_us=None)])
    assert view.light is None


def test_who_allows_a_precision_may_stay_more_precise() -> None:
    fp32, tf32, fp16 = views(RUN)
    assert {name: standing.speed for name, standing in standings([fp32]).items()} == pytest.approx(
        {"cudnn": 0.8, "torch-graph": 3.0, "onnxruntime (host)": 5.0})
    # cuDNN's float32 counts, which is faster than its TF32
    assert standings([tf32])["cudnn"].speed == pytest.approx(0.8)
    assert standings([fp16])["torch-graph"].speed == pytest.approx(0.75)


def test_the_plan_without_fusions_may_stay_more_precise_too() -> None:
    _, fp16 = views([row("gossamer", 100.0), row("gossamer", 50.0, precision="fp16"),
                     row("gossamer:unfused", 80.0)])
    assert standings([fp16])["gossamer:unfused"].speed == pytest.approx(1.6)


def test_integers_are_allowed_whatever_precision_is() -> None:
    bits, integers, fp16 = views([
        row("gossamer", 5.0, precision="b1"), row("cudnn-int8", 20.0, precision="int8"),
        row("torch-graph", 30.0, precision="fp16")])
    assert [bits.name(row) for row in bits.rows] == ["gossamer"]
    assert [integers.name(row) for row in integers.rows] == ["gossamer (b1)", "cudnn-int8"]
    assert [fp16.name(row) for row in fp16.rows] == ["gossamer (b1)", "torch-graph"]
    assert standings([fp16])["torch-graph"].speed == 6.0


def test_planning_is_compared_in_each_precision_by_itself() -> None:
    shown = views([row("gossamer", 8e6, suite="tuning"),
                   row("gossamer", 9e6, suite="tuning", precision="fp16")])
    assert [[each.median_us for each in view.rows] for view in shown] == [[8e6], [9e6]]


def test_as_fast_is_within_two_percent() -> None:
    group = views([case_row for case, peer in (("a", 99.0), ("b", 97.0), ("c", 300.0))
                   for case_row in (row("gossamer", 100.0, case=case),
                                    row("cudnn", peer, case=case))])
    assert (standings(group)["cudnn"].held, standings(group)["cudnn"].cases) == (2, 3)


def test_a_newer_run_replaces_only_the_precisions_it_has() -> None:
    later = {"run_id": "new", "date": "2026-02-01T00:00:00+00:00"}
    shown = {view.precision: view for view in views([
        *RUN, row("gossamer", 70.0, **later), row("cudnn", 60.0, **later)])}
    assert [row.median_us for row in shown["fp32"].rows] == [60.0, 70.0]
    assert [row.median_us for row in shown["fp16"].rows] == [30.0, 40.0]


def test_a_share_of_light_above_1_is_left_out() -> None:
    assert row("gossamer", 100.0, speed_of_light_us=50.0).share_of_light == 0.5
    assert row("gossamer", 100.0, speed_of_light_us=100.1).share_of_light is None


def test_a_result_is_printed(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_result(result)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("tiny, batch 3: ")
    assert lines[2].startswith("fp32, speed of light ")
    assert lines[3].split()[:2] == ["contender", "median"]
    shown = [line.split()[0] for line in lines[4:4 + len(result.rows)]]
    assert shown == [row.contender for row in result.rows]
    assert "absent: somebody: not installed: pip install something" in lines
    assert "failed: nobody (first): ValueError: no such layer" in lines


def test_each_precision_has_a_table(result: Result, capsys: pytest.CaptureFixture[str]) -> None:
    own = next(row for row in result.rows if row.contender == "gossamer")
    other = dataclasses.replace(own, contender="peer", precision="fp16", median_us=1.0,
                                speed_of_light_us=None)
    terminal.print_result(dataclasses.replace(result, rows=[own, other], absent={}, failed={},
                                               notice=""))
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert [line[0] for line in lines] == [
        "fp32,", "contender", "gossamer", "fp16", "contender", "peer", "gossamer"]
    assert lines[-1] == ["gossamer", "(fp32)"]


def test_unknown_peak_rates_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_peaks("cuda:0", "Chip", Peaks("cuda:0", {"fp32": 6e13}, 4e12, {"fp16": "why"}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("peak rates measured: 60 TFLOP/s in fp32, 4 TB/s copied")
    assert lines[2] == "peak rate in fp16 unknown: why"
