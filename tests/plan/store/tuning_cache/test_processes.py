"""Stored measurements survive writers at the same time and killed writers."""

import contextlib
import multiprocessing
import os
import random
import signal
import sqlite3
import sys
import time

import pytest

from gossamer.plan.store import database, tuning_cache
from tests.plan.store.tuning_cache.measurements import TIMING, cache, measured, problem

posix = pytest.mark.skipif(sys.platform == "win32", reason="locks and signals of POSIX")


def test_a_data_base_that_is_locked_too_long_only_delays_the_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "_BUSY_SECONDS", 0.3)
    stored = cache(tmp_path)
    stored.put({problem(0): [measured()]})
    with contextlib.closing(sqlite3.connect(stored.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        start = time.monotonic()
        for _ in range(10):
            stored.put({problem(1): [measured()]})
            cache(tmp_path).get(problem(0))
        # many accesses wait no longer than one
        assert 0.2 < time.monotonic() - start < 1.5
        assert not stored.is_kept and stored.get(problem(1)) == [measured()]
    (notice,) = stored.notices
    assert "locked" in notice and str(stored.path) in notice
    stored.put({problem(2): [measured()]})
    assert stored.is_kept and cache(tmp_path).get(problem(1)) == [measured()]


def test_what_is_removed_while_a_writer_waits_is_not_written_to(tmp_path, monkeypatch):
    stored = cache(tmp_path)
    stored.put({problem(1): [measured()]})
    connect = sqlite3.connect

    def removed_meanwhile(*arguments, **options):
        opened = connect(*arguments, **options)
        monkeypatch.undo()
        database.clear(stored.path)
        return opened

    monkeypatch.setattr(sqlite3, "connect", removed_meanwhile)
    stored.put({problem(2): [measured()]})
    monkeypatch.setattr(tuning_cache, "_source", lambda *_: "first source")
    assert cache(tmp_path).get(problem(2)) == [measured()]
    assert cache(tmp_path).get(problem(1)) is None


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
    assert stored.notices == []


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
        if frame.f_code.co_name in ("_write", "_connected", "_version", "_insert", "_candidate"):
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
