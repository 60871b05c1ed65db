"""The page that --html writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from tests.cli.compile.command import Run, compile_
from tests.cli.compile.page import Page

FACTS = {"model": "m.onnx", "device": "host", "description": "cpu", "effort": "quick",
         "precision": "fp32", "measured": 1, "reused": 0, "version": "1.2", "date": "2026-01-31",
         "parameters": 12_345, "model_bytes": 2**20}


def test_the_page_of_a_file_whose_name_is_no_utf_8(
        run: Run, network: Path, tmp_path: Path) -> None:
    odd = tmp_path / "sm\udce4ll.onnx"
    try:
        odd.write_bytes(network.read_bytes())
    except OSError:
        pytest.skip("this file system takes no such name")
    result = compile_(run, odd, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    assert "sm\\udce4ll.onnx" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_page_stands_alone_and_says_it_all(run: Run, network: Path, tmp_path: Path) -> None:
    result = compile_(run, network, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "a.html").read_text()
    described = json.loads(compile_(run, network, "--json").stdout)
    content = Page(text)
    assert "url(" not in text and "@import" not in text
    assert content.links and all(link.removeprefix("#") in content.ids for link in content.links)
    assert "script" not in content.tags
    assert max(content.widths) == 100.0 and min(content.widths) >= 0
    for row in described["reports"][0]["rows"]:
        assert row["layer"] in content.text and row["problem"] in content.text
        for candidate in row["candidates"]:
            assert candidate["reason"] in content.text
        for reason in row["rejected"].values():
            assert reason in content.text


def test_the_page_is_called_as_its_file(run: Run, network: Path, tmp_path: Path) -> None:
    result = compile_(run, network, "--html", tmp_path / "a.html")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "a.html").read_text()
    assert f"<title>{network.name}</title>" in text
    assert '<meta name="viewport" content="width=device-width, initial-scale=1">' in text
    assert text.count('class="legend"') >= 1


def _row(**changes: object) -> dict[str, object]:
    return {"layer": "conv", "op": "conv2d", "problem": "3x3", "density": 0.5,
            "algorithm": "sparse", "config": "", "precision": "fp32", "layout": "NCHW",
            "device": "host", "flops": 0, "median_us": 12.0, "p25_us": 12.0, "p75_us": 12.0,
            "cold_us": None, "error": None, "best_dense_us": 10.0, "speedup": 10 / 12,
            "speedup_reason": "10.0 us against 12.0 us, but its formats cost more elsewhere",
            "build_s": None, "build_when": None, "build_cached": None, "device_bytes": None,
            "skips_zeros": True, "rejected": {}, "candidates": [], **changes}


def test_a_layer_that_is_slower_says_why() -> None:
    slower, faster = _row(), _row(layer="other", speedup=2.0, speedup_reason="", median_us=5.0)
    content = Page(page(FACTS, [Report("host", 1, [slower, faster], [])]))
    assert content.text.count(str(slower["speedup_reason"])) == 2
    assert "why below 1" in content.text
    assert sorted(set(content.widths)) == [41.7, 83.3, 100.0]
    assert "why below 1" not in Page(page(FACTS, [Report("host", 1, [faster], [])])).text


def test_a_plan_without_a_time_has_its_name() -> None:
    plan = {"plan": "im2col wherever it can", "median_us": None, "p25_us": None, "p75_us": None,
            "outcome": "not tried", "is_taken": False}
    content = Page(page(FACTS, [Report("host", 1, [], [], plans=[plan])]))
    assert "im2col wherever it can" in content.text and "not tried" in content.text


def test_the_page_escapes_names() -> None:
    name = '<script>alert("1")</script> & \'x\''
    row = {"layer": name, "op": name, "problem": name, "density": None, "algorithm": name,
           "config": name, "precision": "fp32", "layout": name, "device": name, "flops": 0,
           "median_us": 0.0, "p25_us": 0.0, "p75_us": 0.0, "cold_us": None, "error": None,
           "best_dense_us": None, "speedup": None, "build_s": None, "build_when": None,
           "build_cached": None, "device_bytes": None, "skips_zeros": False,
           "rejected": {name + "2": name},
           "candidates": [{"algorithm": name, "config": name, "layouts": [name],
                           "precision": name, "median_us": None, "p25_us": None, "p75_us": None,
                           "cold_us": None, "error": float("nan"), "build_s": 1.0,
                           "build_cached": True, "device_bytes": 0, "reason": name}]}
    facts = {**FACTS, **dict.fromkeys(("model", "device", "description", "effort", "precision",
                                       "version", "date"), name)}
    content = Page(page(facts, [Report(name, 1, [row], [name], [name])]))
    assert "script" not in content.tags
    assert content.text.count(name) >= 8


def _plan(name: str, median_us: float | None, outcome: str = "slower") -> dict[str, object]:
    return {"plan": name, "median_us": median_us, "p25_us": median_us, "p75_us": median_us,
            "outcome": outcome, "is_taken": False}


def test_the_page_begins_with_what_matters_most() -> None:
    plans = [_plan("measured choice", 50.0), _plan("dense algorithms only", 80.0),
             _plan("im2col_gemm wherever it can", 90.0), _plan("winograd wherever it can", None),
             _plan("cudnn wherever it can", 100.0), _plan("cublas wherever it can", 75.0)]
    text = " ".join(filter(None, Page(page(FACTS, [Report(
        "host", 2, [_row()], ["all is well", "scattered"], ["scattered"], end_to_end_us=50.0,
        plans=plans)])).text))
    start = text.index("gossamer 1.2, 2026-01-31")
    assert "12.3 k parameters, file of 1 MiB; on host (cpu), fp32" in text[:start]
    head = text[start:text.index("Plans, end to end")]
    assert "50.0 us end to end: 40,000 a second" in head
    assert "1.60 x as fast as the best dense plan (80.0 us)" in head
    assert ("1.50 x as fast as the best plan of one library wherever it can (cuBLAS, 75.0 us)"
            in head)
    assert "1.80 x as fast as the best plan of one algorithm wherever it can (im2col_gemm" in head
    assert "Notice: scattered" in head and "all is well" not in head
    assert "density 50%" in text


def test_a_dense_plan_that_was_not_timed_says_why() -> None:
    plan = _plan("dense algorithms only", None, "not tried: its layers take longer")
    text = Page(page(FACTS, [Report("host", 1, [], [], end_to_end_us=5.0, plans=[plan])])).text
    assert "the best dense plan (not tried: its layers take longer)" in text


def test_cells_name_their_columns_for_narrow_screens() -> None:
    text = page(FACTS, [Report("host", 1, [_row(break_even=0.0004, rejected={"a": "b"})], [])])
    for heading in ("density", "zeros win below", "why below 1", "quartiles"):
        assert f'<td data-name="{heading}"' in text and f"<th>{heading}</th>" in text
    assert "&lt;0.1%" in text
