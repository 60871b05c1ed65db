"""The chart of what zeros would bring."""

from __future__ import annotations

from typing import Any

import pytest

from gossamer.advise import chart
from gossamer.advise.advice import AS_IT_IS, Advice

US = {AS_IT_IS: 100.0, "80%": 80.0, "90%": 50.0, "2:4": 40.0, "half the channels": 25.0}


def test_one_curve_of_any_weights_and_one_mark_for_each_pattern(
        monkeypatch: pytest.MonkeyPatch) -> None:
    figures: list[Any] = []
    monkeypatch.setattr(chart, "as_png", lambda figure: figures.append(figure) or b"PNG")
    found = Advice("cuda:0", "a GPU", 8, (), dict.fromkeys(US, 0.0), US, {})
    assert chart.png(found, "net") == b"PNG"
    (axis,) = figures[0].axes
    drawn = {line.get_label(): [tuple(point) for point in line.get_xydata().round(6).tolist()]
             for line in axis.lines if not line.get_label().startswith("_")}
    assert drawn == {"any weights": [(0, 1), (80, 1.25), (90, 2)], "pattern 2:4": [(50, 2.5)],
                     "half the channels": [(50, 4)]}
    assert axis.get_title() == "net, batch 8, a GPU" and axis.get_ylim()[0] == 0
    assert [text.get_text() for text in axis.texts] == ["as it is: 100.0 us"]
