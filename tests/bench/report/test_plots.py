"""Tests of plots of result rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from gossamer.bench.report import plots
from gossamer.bench.rows import write_output
from gossamer.errors import InputError
from tests.bench.rows import row

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
