"""Stored measurements while they are written, and where writing fails."""

import os
import shutil
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest

from gossamer.errors import GossamerWarning
from gossamer.plan.store import tuning_cache
from tests.plan.store.tuning_cache.measurements import (
    TIMING,
    cache,
    good_file,
    measured,
    problem,
)


def _fill_disk(patch):
    """Lets no data base grow."""
    connect = sqlite3.connect

    def full(*arguments, **options):
        base = connect(*arguments, **options)
        base.execute("PRAGMA max_page_count = 1")
        return base

    patch.setattr(sqlite3, "connect", full)


@pytest.mark.parametrize("obstacle", ["a file for a folder", "read-only", "full"])
def test_a_folder_that_cannot_be_written_warns_once(tmp_path, monkeypatch, obstacle):
    big = measured("x" * 5000)
    good_file(tmp_path / "cache")
    folder = tmp_path / "cache"
    before = [measured()]
    if obstacle == "a file for a folder":
        folder, before = tmp_path / "file", None
        folder.write_text("mine")
    elif obstacle == "read-only":
        monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
        connect = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda name, **options: connect(
            name.replace("mode=rwc", "mode=ro"), **options))
    else:
        _fill_disk(monkeypatch)
    stored = cache(folder)
    assert stored.get(problem()) == before
    with pytest.warns(GossamerWarning, match="cannot be written") as caught:
        stored.put({problem(2): [big]})
        stored.put({problem(3): [measured("tile=4")]})
        stored.put_plans({"key": ("small, batch 1", TIMING)})
    assert len(caught) == 1
    assert stored.get_plan("key") == TIMING
    assert stored.get(problem(2)) == [big]
    assert stored.get(problem(3)) == [measured("tile=4")]
    assert stored.get(problem()) == before
    assert len(list(tmp_path.rglob("*.*"))) == 1
    monkeypatch.undo()
    monkeypatch.setattr(tuning_cache, "_source", lambda *_: "first source")
    if obstacle == "a file for a folder":
        folder.unlink()
    stored.put({problem(4): [measured()]})
    assert stored.is_kept and cache(folder).get(problem(2)) == [big]


def test_a_read_only_folder_with_a_journal_is_not_read(tmp_path, monkeypatch):
    path, _ = good_file(tmp_path)
    path.with_name(path.name + "-journal").write_bytes(b"pages")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    (notice,) = stored.notices
    assert f"{path} cannot be read (another process was writing" in notice


def test_what_could_not_be_written_is_written_with_the_next(tmp_path, monkeypatch):
    stored = cache(tmp_path)
    with monkeypatch.context() as patch, pytest.warns(GossamerWarning):
        _fill_disk(patch)
        stored.put({problem(1): [measured()]})
    stored.put({problem(2): [measured()]})
    assert cache(tmp_path).get(problem(1)) == cache(tmp_path).get(problem(2)) == [measured()]


def test_what_is_not_on_disk_is_told(tmp_path):
    stored = cache(tmp_path)
    assert stored.is_kept
    stored.put({problem(): [measured()]})
    assert stored.is_kept
    shutil.rmtree(tmp_path)
    tmp_path.write_text("no folder")
    with pytest.warns(GossamerWarning, match="cannot be written"):
        stored.put({problem(2): [measured()]})
    assert not stored.is_kept
    tmp_path.unlink()
    stored.put({problem(3): [measured()]})
    assert stored.is_kept and cache(tmp_path).get(problem(2)) == [measured()]


def test_writing_keeps_what_others_wrote_meanwhile(tmp_path):
    first, second = cache(tmp_path), cache(tmp_path)
    for rows in (1, 3):
        first.put({problem(rows): [measured()]})
        second.put({problem(rows + 1): [measured()]})
    assert all(cache(tmp_path).get(problem(rows)) == [measured()] for rows in (1, 2, 3, 4))


def test_a_process_that_is_ended_loses_nothing(tmp_path):
    code = textwrap.dedent("""
        import os
        import sys
        from pathlib import Path
        from gossamer.plan.store import tuning_cache
        from tests.plan.store.tuning_cache.measurements import TIMING, cache, measured, problem
        tuning_cache._source = lambda op, name, device: {"tiled": "first source"}.get(name)
        stored = cache(Path(sys.argv[1]))
        stored.put({problem(rows): [measured()] for rows in (1, 2)})
        stored.put_plans({"key": ("small, batch 1", TIMING)})
        stored.put_checks([(problem(), measured(), "weights")])
        os._exit(9)
        """)
    subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True)
    later = cache(tmp_path)
    assert later.get(problem(1)) == later.get(problem(2)) == [measured()]
    assert later.get_plan("key") == TIMING and later.has_check(problem(), measured(), "weights")


def test_a_clock_that_runs_backwards_changes_nothing(tmp_path, monkeypatch):
    stored = cache(tmp_path)
    stored.put({problem(1): [measured(median_us=9.0)]})
    os.utime(stored.path, (2**33, 2**33))
    times = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: next(times))
    later = cache(tmp_path)
    later.put({problem(1): [measured(median_us=8.0)]})
    os.utime(stored.path, (0, 0))
    stored.put({problem(2): [measured()]})
    assert cache(tmp_path).get(problem(1)) == [measured(median_us=8.0)]
    assert stored.notices == later.notices == []
