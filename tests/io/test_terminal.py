import re
import sys

import pytest

from gossamer.io import terminal


def test_narrow_terminals_cut_cells(monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    terminal.print_table({"a": "name", "b": "state"}, [{"a": "host", "b": "a long reason " * 5}])
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    heading, line = printed.splitlines()
    assert heading.split() == ["name", "state"]
    assert line.startswith("host  a long") and line.endswith("…") and len(line) <= 30


ROW = {"layer": "conv1", "config": "tile=128 " * 4, "us": "12.5", "algorithm": "direct_sparse",
       "why": "12.5 us against 10.0 us"}


@pytest.mark.parametrize(("columns", "headings", "left_out"), [
    (90, ["layer", "config", "us", "algorithm", "why"], None),
    (70, ["layer", "config", "us", "algorithm", "why"], None),  # the config is cut
    (60, ["layer", "us", "algorithm", "why"], "config"),
    (50, ["us", "algorithm", "why"], "layer, config"),
    (30, ["us", "algorithm", "why"], "layer, config"),
])
def test_narrow_terminals_lose_spare_columns(monkeypatch, capsys, columns, headings, left_out):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    terminal.print_table({key: key for key in ROW}, [ROW], spare=("config", "layer"))
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    heading, line, *below = printed.splitlines()
    assert heading.split() == headings and len(line) <= columns
    assert ("12.5 us against 10.0 us" in line and "direct_sparse" in line) is (columns >= 50)
    assert ("…" in line) is (columns in (70, 30))
    assert below == ([] if left_out is None else [
        f"(columns hidden because the terminal is narrow: {left_out}; pipe the "
        "output to less -S to see all columns)"])


def test_a_notice_is_printed_once_and_an_error_each_time(capsys):
    for kind in ("notice", "warning", "notice", "warning", "error", "error"):
        terminal.notice("the  same", kind)
    assert capsys.readouterr().err.splitlines() == [
        "notice: the same", "warning: the same", "error: the same", "error: the same"]


def test_pipes_get_every_column(capsys):
    terminal.print_table({key: key for key in ROW}, [ROW], spare=("config", "layer"))
    assert capsys.readouterr().out.splitlines()[0].split() == list(ROW)


@pytest.mark.parametrize(("columns", "moves"), [(90, False), (60, True), (40, True)])
def test_in_narrow_terminals_reasons_follow_the_table_uncut(monkeypatch, capsys, columns, moves):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    rows = [ROW, {"layer": "conv2", "us": "1.0"}]
    terminal.print_table({key: key for key in ROW}, rows, spare=("config",), below="why")
    printed = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)
    heading, _, _, *below = printed.splitlines()
    assert ("why" not in heading.split()) is moves
    assert below[:1] == (["conv1: 12.5 us against 10.0 us"] if moves else [])
    assert "why" not in "".join(below)
