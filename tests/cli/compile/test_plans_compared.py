"""Plans that the verb `compile` compares from end to end, and what it prints about them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from onnx import helper

from gossamer.measure import Timing
from gossamer.ops.generated import GeneratedCode
from gossamer.ops.registry import OPS
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import plan_times
from tests.cli.compile.command import Run, compile_
from tests.cli.compile.test_html import Page
from tests.model.onnx_models import model, save, weights


@pytest.fixture
def separable(tmp_path: Path) -> Path:
    """A network for which the host has two choices; the one that is slower
    layer by layer is faster from end to end."""
    node = helper.make_node
    proto = model([node("Conv", ["x", "w0"], ["a"], "thin", group=3, pads=[1, 1, 1, 1]),
                   node("Conv", ["a", "w1"], ["y"], "mix")], {"x": ["N", 3, 6, 5]}, {"y": 4},
                  {"w0": weights(3, 1, 3, 3), "w1": weights(4, 3, 1, 1)})
    return save(proto, tmp_path)


@pytest.fixture
def wholes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make whole programs take 50 us with host_im2col alone and 100 us otherwise; the result is
    the number of programs in each comparison. The layers have the same algorithms with or without
    llvmlite."""
    timed: list[int] = []
    for algorithm in OPS["conv2d"].algorithms:
        if isinstance(algorithm, GeneratedCode):
            monkeypatch.setattr(type(algorithm), "supports",
                                lambda self, problem, device: "left out")

    def interleave(tasks: Any, **options: Any) -> list[Timing]:
        timed.append(len(tasks))
        names = [{step.algorithm.name for step in task.work.__self__.program.steps}
                 for task in tasks]
        return [Timing(time, time - 1, time + 1, 5)
                for time in (50.0 if algorithms == {"host_im2col"} else 100.0
                             for algorithms in names)]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    cost = Candidate.cost.fget  # type: ignore[attr-defined]
    monkeypatch.setattr(Candidate, "cost", property(
        lambda self: cost(self) * (1e-3 if self.algorithm.name == "host_depthwise" else 1.0)))
    return timed


def test_the_next_choice_is_compared_from_end_to_end(
        run: Run, separable: Path, wholes: list[int], tmp_path: Path) -> None:
    html = tmp_path / "a.html"
    result = compile_(run, separable, "--effort", "max", "--explain", "thin", "--html", html)
    rows = ["measured choice +100.0 us +99.0 to 101.0 us +100.0 us against 50.0 us",
            "second choice +50.0 us +49.0 to 51.0 us +taken: the fastest"]
    assert re.search("^plan +end to end +quartiles +outcome\n" + "\n".join(rows)
                     + "\n\nend to end, batch 1: 50.0 us\nof 50.0 us end to end: .*on the host",
                     result.stdout, re.M)
    why = "but the plan is no faster with it"
    assert re.search(rf"^host_depthwise .*{why}$", result.stdout, re.M)
    assert wholes == [2]
    again = compile_(run, separable, "--effort", "max", "--json")
    assert wholes == [2]
    (report,) = json.loads(again.stdout)["reports"]
    assert [plan["median_us"] for plan in report["plans"]] == [100.0, 50.0]
    assert sum(report["shares"].values()) == pytest.approx(1)
    content = Page(html.read_text())
    for plan in report["plans"]:
        assert plan["plan"] in content.text and plan["outcome"] in content.text
    assert any(text.startswith("of 50.0 us end to end: ") for text in content.text)


def test_ctrl_c_while_plans_are_compared_keeps_the_candidates(
        run: Run, separable: Path, wholes: list[int], tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(plan_times, "interleave", Mock(side_effect=KeyboardInterrupt))
        result = compile_(run, separable, "--effort", "max", "-o", tmp_path / "a.plan", code=130)
    match = re.match(r"error: interrupted: (\d+) candidates measured, stored in ", result.stderr)
    assert match and not (tmp_path / "a.plan").exists()
    described = json.loads(compile_(run, separable, "--effort", "max", "--json").stdout)
    assert (described["measured"], described["reused"]) == (0, int(match[1])) and wholes == [2]
