import re
import sys

import numpy as np
import pytest

from gossamer import show


def test_narrow_terminals_cut_cells(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    show.print_table({"a": "name", "b": "state"}, [{"a": "host", "b": "a long reason " * 5}])
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    heading, line = printed.splitlines()
    assert heading.split() == ["name", "state"]
    assert line.startswith("host  a long") and line.endswith("…") and len(line) <= 30


def test_best_classes():
    top = show.best(np.array([1.0, 3.0, 3.0, -2.0]), 2, ["a", "b", "c", "d"])
    assert [line["name"] for line in top] == ["b", "c"]
    powers = np.exp([1.0, 3.0, 3.0, -2.0])
    assert top[0]["probability"] == pytest.approx(powers[1] / powers.sum())
    probabilities = show.best(np.array([0.25, 0.75]).reshape(2, 1, 1), 9, None)
    assert [line["probability"] for line in probabilities] == [0.75, 0.25]


def test_imagenet_names_ship_with_the_package():
    names = show.labels(None, 1000)
    assert names[285] == "Egyptian cat" and names[0] == "tench" and names[999] == "toilet tissue"
    assert show.labels(None, 10) is None
