"""The page that --html writes, read back."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from gossamer.plan.report.html import page
from gossamer.plan.report.report import Report
from tests.cli.compile.command import Run, compile_


class Page(HTMLParser):
    """Collects the links and the text of a page, and checks that tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.text: list[str] = []
        self.tags: list[str] = []
        self.widths: list[float] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in ("meta",):
            self._open.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "action"):
                self.links.append(str(value))
            if name == "style":
                self.widths.append(float(str(value).removeprefix("width:").removesuffix("%")))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data.strip())


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
    compile_(run, odd, "--html", tmp_path / "a.html")
    assert "sm\\udce4ll.onnx" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_the_page_stands_alone_and_says_it_all(run: Run, network: Path, tmp_path: Path) -> None:
    compile_(run, network, "--html", tmp_path / "a.html")
    text = (tmp_path / "a.html").read_text()
    described = json.loads(compile_(run, network, "--json").stdout)
    content = Page(text)
    assert "url(" not in text and "@import" not in text
    assert f"<title>{network.name}</title>" in text
    assert content.links == []
    assert "script" not in content.tags
    assert max(content.widths) == 100.0 and min(content.widths) >= 0
    for row in described["reports"][0]["rows"]:
        assert row["layer"] in content.text and row["problem"] in content.text
        for candidate in row["candidates"]:
            assert candidate["reason"] in content.text
        for reason in row["rejected"].values():
            assert reason in content.text


def test_the_page_escapes_names() -> None:
    name = '<script>alert("1")</script> & \'x\''
    row = {"layer": name, "op": name, "problem": name, "density": None, "algorithm": name,
           "config": name, "precision": "fp32", "layout": name, "device": name, "flops": 0,
           "median_us": 0.0, "p25_us": 0.0, "p75_us": 0.0, "error": None,
           "best_dense_us": None, "speedup": None, "skips_zeros": False,
           "rejected": {name + "2": name},
           "candidates": [{"algorithm": name, "config": name, "layouts": [name],
                           "precision": name, "median_us": None, "p25_us": None, "p75_us": None,
                           "error": float("nan"), "reason": name}]}
    facts = {**FACTS, **dict.fromkeys(("model", "device", "description", "effort", "precision",
                                       "version", "date"), name)}
    content = Page(page(facts, [Report(name, 1, [row], [name], [name])]))
    assert "script" not in content.tags
    assert content.text.count(name) >= 8


def _plan(name: str, median_us: float | None, outcome: str = "slower",
          is_equal: bool = False) -> dict[str, object]:
    return {"plan": name, "median_us": median_us, "p25_us": median_us, "p75_us": median_us,
            "outcome": outcome, "is_taken": False, "is_equal": is_equal}


def test_a_dense_plan_that_was_not_timed_says_why() -> None:
    plan = _plan("dense algorithms only", None, "not tried: its layers take longer")
    text = Page(page(FACTS, [Report("host", 1, [], [], end_to_end_us=5.0, plans=[plan])])).text
    assert "the best dense plan (not tried: its layers take longer)" in text


def test_a_dense_plan_that_is_equal_within_noise_is_no_slower_one() -> None:
    outcome = "5.1 us against 5.0 us, equal within noise"
    plans = [{**_plan("measured choice", 5.0), "is_taken": True},
             _plan("dense algorithms only", 5.1, outcome, is_equal=True)]
    text = Page(page(FACTS, [Report("host", 1, [], [], end_to_end_us=4.0, plans=plans)])).text
    assert "to the best dense plan (5.1 us)" in text and "equal within noise" in text
    text = Page(page(FACTS, [Report("host", 1, [], [], end_to_end_us=4.0, plans=[
        plans[0], _plan("dense algorithms only", 6.0)])])).text
    # both of the comparison, whatever another measurement of the plan says
    assert "1.20 x" in text
