"""Tests of plots of result rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from gossamer.errors import InputError
from gossamer_bench.report import plots
from gossamer_bench.row_files import write_output
from tests.bench.verb import row

pytest.importorskip("matplotlib")


def test_a_plot_is_written_completely_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    with pytest.raises(InputError, match="no rows to show"):
        plots.png([])


def drawn(monkeypatch: pytest.MonkeyPatch, cases: int) -> list[Any]:
    """Returns the panels of a plot of cases with two batches, precisions and contenders each."""
    figures: list[Any] = []
    monkeypatch.setattr(plots, "as_png", lambda figure: figures.append(figure) or b"")
    plots.png([row(contender, median + number, case=f"net/{number}", batch=batch,
                   precision=precision, speed_of_light_us=light)
               for number in range(cases) for batch in (1, 64)
               for precision, light, medians in (("fp32", 9.0, (500.0, 300.0)),
                                                 ("fp16", 3.0, (200.0, 100.0)))
               for contender, median in zip(("cudnn", "gossamer"), medians, strict=True)])
    return [axis for axis in figures[0].axes if axis.get_visible()]


def test_few_cases_have_a_panel_for_each_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = ([axis.get_title() for axis in drawn(monkeypatch, cases)] for cases in (6, 7))
    assert few == [f"mobilenet, Chip (cuda), batch {batch}, {precision}"
                   for batch in (1, 64) for precision in ("fp32", "fp16")]
    assert many == [f"mobilenet, Chip (cuda), net, batch {batch}" for batch in (1, 64)]


@pytest.mark.parametrize("cases", [1, 6])
def test_bars_do_not_overlap(monkeypatch: pytest.MonkeyPatch, cases: int) -> None:
    for axis, medians in zip(drawn(monkeypatch, cases), 2 * [(300.0, 500.0), (100.0, 200.0)],
                             strict=True):
        bars = sorted(axis.patches, key=lambda bar: bar.get_y())
        assert [bar.get_width() for bar in bars] == [
            median + number for number in range(cases) for median in medians]
        edges = [edge for bar in bars for edge in (bar.get_y(), bar.get_y() + bar.get_height())]
        assert all(one <= after + 1e-9 for one, after in pairwise(edges))
        bottom, top = axis.get_ylim()
        assert top < edges[0] and edges[-1] <= bottom
        # the name of a case stands where its two bars meet, and a gap is between cases
        assert list(axis.get_yticks()) == pytest.approx(edges[1::4])
        assert edges[1::4] == pytest.approx(edges[2::4])
        assert all(one < after for one, after in zip(edges[3::4], edges[4::4], strict=False))
        assert axis.get_xlim()[0] < min(medians[0], 3.0 if medians[0] == 100.0 else 9.0)


def test_marks_of_a_precision_share_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for axis in drawn(monkeypatch, 7):
        marks = sorted((float(line.get_ydata()[0]), float(line.get_xdata()[0]))
                       for line in axis.lines)
        assert [x for _, x in marks] == [median + number for number in range(7)
                                         for median in (300.0, 500.0, 100.0, 200.0)]
        places = [y for y, _ in marks]
        assert places[::2] == places[1::2] and sorted(set(places)) == places[::2]
        bottom, top = axis.get_ylim()
        assert top < places[0] and places[-1] < bottom


@pytest.mark.slow
def test_many_cases_are_marks_in_a_panel_a_network_and_batch(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[str, int]] = []
    draw = plots._draw
    monkeypatch.setattr(plots, "_draw", lambda axis, title, panel, colours, form: (
        drawn.append((title, len(panel))), draw(axis, title, panel, colours, form)))
    rows = [row(contender, 100.0, suite="conv-layers", case=f"{network}/{number}", batch=batch,
                precision=precision, speed_of_light_us=None if precision == "tf32" else 5.0)
            for network, count in (("large", 8), ("small", 2)) for number in range(count)
            for batch in (64, 1) for precision in ("fp32", "tf32", "fp16")
            for contender in ("gossamer", "cudnn")]
    assert plots.png(rows).startswith(b"\x89PNG")
    assert drawn == [("conv-layers, Chip (cuda), large, batch 1", 24),
                     ("conv-layers, Chip (cuda), large, batch 64", 24),
                     ("conv-layers, Chip (cuda), small, batch 1", 6),
                     ("conv-layers, Chip (cuda), small, batch 64", 6)]
