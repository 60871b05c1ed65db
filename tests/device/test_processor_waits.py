"""The time for which threads wait for processors, as the system's files tell it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.device import processor_waits
from gossamer.device.processor_waits import without_waits


@pytest.mark.parametrize(("after", "expected"), [
    ({"1": "8 200000 9"}, 100.0),
    ({"1": "8 250000 9"}, 80.0),
    ({"1": "8 250000 9", "2": "8 350000 9"}, 50.0),
    ({"1": "8 200000 9", "new": "8 900000 9"}, 100.0),
    ({"1": "0 0"}, 100.0),
    ({}, 100.0),
], ids=["no wait", "a wait", "two waits", "a new thread", "not counted", "no threads"])
def test_the_share_of_time_with_a_processor_counts(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: Mapping[str, str], expected: float
) -> None:
    """The sample takes 100 us, and threads run for 200 us in it; the second number in a thread's
    file is the nanoseconds that the thread has waited."""
    processor_s = 1.0
    monkeypatch.setattr(processor_waits, "_THREADS", tmp_path)
    monkeypatch.setattr(processor_waits, "time",
                        SimpleNamespace(process_time=lambda: processor_s))

    def write(files: Mapping[str, str]) -> None:
        for thread, line in files.items():
            (tmp_path / thread).mkdir(exist_ok=True)
            (tmp_path / thread / "schedstat").write_text(f"{line}\n")

    def sample() -> float:
        nonlocal processor_s
        processor_s += 200e-6
        write(after)
        return 100.0

    write({thread: "7 200000 8" for thread in after if thread != "new"})
    assert without_waits(sample) == pytest.approx(expected)


def test_a_thread_that_ends_has_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processor_waits, "_THREADS", tmp_path)
    (tmp_path / "1").mkdir()
    ended = tmp_path / "1" / "schedstat"
    ended.write_text("1000000 0 1\n")

    def sample() -> float:
        ended.unlink()
        return 100.0

    assert without_waits(sample) == 100.0
