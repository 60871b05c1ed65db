"""Tests of tables in the terminal."""

from __future__ import annotations

import dataclasses

import pytest

from gossamer.bench.call_contest import Result
from gossamer_bench.peaks import Peaks
from gossamer_bench.report import terminal


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
