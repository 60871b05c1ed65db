"""Writing measurements: what is on disk when, in one process and in several."""

import contextlib
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time

import pytest

from gossamer.errors import GossamerWarning
from gossamer.plan.store import database, tuning_cache
from tests.plan.store.tuning_cache.measurements import (
    TIMING,
    cache,
    fill_disk,
    good_file,
    measured,
    problem,
)


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
        fill_disk(monkeypatch)
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
    assert not stored.is_kept


def test_a_read_only_folder_with_a_journal_is_not_read(tmp_path, monkeypatch):
    path, _ = good_file(tmp_path)
    path.with_name(path.name + "-journal").write_bytes(b"pages")
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    (notice,) = stored.messages
    assert f"{path} cannot be read (another process was writing" in notice


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
        stored.put_check(problem(), measured(), "weights")
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
    assert stored.messages == later.messages == {}


posix = pytest.mark.skipif(sys.platform == "win32", reason="locks and signals of POSIX")


def test_a_data_base_that_is_locked_too_long_is_not_waited_for_again(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.3)
    stored = cache(tmp_path)
    stored.put({problem(0): [measured()]})
    with contextlib.closing(sqlite3.connect(stored.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        with pytest.warns(GossamerWarning, match="locked"):
            for _ in range(10):
                stored.put({problem(1): [measured()]})
        # many writes wait no longer than one
        assert 0.2 < time.monotonic() - start < 1.5
        assert not stored.is_kept and stored.get(problem(1)) == [measured()]


def _tune(folder, number, barrier):
    tuning_cache._source = lambda op, name, device: {"tiled": "first source"}.get(name)
    stored = cache(folder)
    barrier.wait()
    for rows in range(40):
        stored.put({problem(1000 * number + rows): [measured("tile=8")]})
        stored.put({problem(rows): [measured(f"tile={number}"), measured("same")]})
        stored.put_plans({f"{number}, {rows}": ("small, batch 1", TIMING)})


@pytest.mark.slow
@posix
def test_two_processes_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_tune, args=(tmp_path, number, barrier))
                 for number in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    stored = cache(tmp_path)
    for rows in range(40):
        assert {measurement.config for measurement in stored.get(problem(rows))} == {
            "tile=1", "tile=2", "same"}
        for number in (1, 2):
            assert stored.get(problem(1000 * number + rows)) == [measured("tile=8")]
            assert stored.get_plan(f"{number}, {rows}") == TIMING
    assert stored.messages == {}


def _rows(path):
    """Returns the numbers of rows of all stored problems."""
    try:
        (section,) = database.read(path)["sections"]
    except FileNotFoundError:
        return set()
    described = (line["problem"] for line in section["candidates"].values())
    return {int(text.removeprefix("gemm ").partition("x")[0]) for text in described}


def _tune_until_killed(folder, first, acknowledged):
    tuning_cache._source = lambda op, name, device: {"tiled": "first source"}.get(name)
    stored = cache(folder)
    rows = first
    while True:
        stored.put({problem(rows): [measured()]})
        acknowledged.send_bytes(str(rows).encode())
        rows += 1


@pytest.mark.slow
@posix
def test_200_kills_leave_a_readable_file_that_lost_nothing(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    chance = random.Random(0)
    known = set()
    for attempt in range(200):
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=_tune_until_killed,
                                  args=(tmp_path, attempt % 15 * 1000, writer))
        process.start()
        writer.close()
        for _ in range(chance.randrange(4)):
            known.add(int(reader.recv_bytes()))
        time.sleep(chance.uniform(0, 0.003))
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        while True:
            try:
                known.add(int(reader.recv_bytes()))
            except (EOFError, OSError):
                break
        assert known <= _rows(cache(tmp_path).path)
    cache(tmp_path).put({problem(9): [measured()]})
    assert [path.name for path in tmp_path.iterdir()] == [cache(tmp_path).path.name]


def _tune_until_line(folder, line, rows):
    tuning_cache._source = lambda op, name, device: {"tiled": "first source"}.get(name)
    stored = cache(folder)
    passed = 0

    def trace(frame, *_):
        nonlocal passed
        if frame.f_code.co_name in ("_write", "_connected", "_version", "_insert"):
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    stored.put({problem(rows): [measured()]})
    sys.settrace(None)


@pytest.mark.slow
@posix
def test_a_kill_at_any_line_of_the_writing_loses_nothing_older(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    stored = cache(tmp_path)
    stored.put({problem(): [measured()]})
    before = {1}
    line = left_over = 0
    ended = False
    while not ended:
        line += 1
        process = context.Process(target=_tune_until_line, args=(tmp_path, line, 100 + line))
        process.start()
        process.join()
        ended = process.exitcode == 0
        assert ended or process.exitcode == -signal.SIGKILL
        left_over += len(list(tmp_path.glob("*-journal")))
        after = _rows(stored.path)
        assert before <= after <= before | {100 + line}
        before = after
    assert line > 20 and left_over and 100 + line in before
    assert not list(tmp_path.glob("*-journal"))
