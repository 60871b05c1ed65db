"""Stored measurements: they come back, survive company and kills, and bad files do no harm."""

import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

from gossamer.device import find, kernel_cache
from gossamer.errors import GossamerWarning
from gossamer.measure import Timing
from gossamer.ops import OPS
from gossamer.ops.algorithm import Variant
from gossamer.ops.conv2d.cudnn import Cudnn
from gossamer.ops.conv2d.problem import Conv2dProblem
from gossamer.ops.gemm.problem import GemmProblem
from gossamer.plan import tuning_cache, tuning_file
from gossamer.plan.tuning_cache import Measured, TuningCache, candidate, file_name
from gossamer.plan.tuning_file import parse
from gossamer.plan.tuning_text import Texts
from gossamer.tensor import TensorSpec

posix = pytest.mark.skipif(sys.platform == "win32", reason="locks and signals of POSIX")


def device(**changed):
    """What a cache asks of a device."""
    fields = {"api": "opencl", "description": "Abacus 3000 (wooden)", "driver": "beads 1.0",
              "units": 4, **changed}
    return SimpleNamespace(limits=SimpleNamespace(units=fields.pop("units")), **fields)


def problem(rows=1):
    return GemmProblem(rows, 10, 20)


def measured(config="tile=8", algorithm="tiled", median_us=12.0, **others):
    return Measured(algorithm, config, ("row",), ("row",), "fp32", median_us, median_us - 1,
                    median_us + 1, **others)


@pytest.fixture(autouse=True)
def algorithms(monkeypatch):
    """Two algorithms of gemm, with sources that a test may change."""
    found = {"tiled": "first source", "few_rows": "other source"}
    monkeypatch.setattr(tuning_cache, "_sources", lambda op, device: found)
    return found


@pytest.fixture(autouse=True)
def silence_of_other_tests(monkeypatch):
    monkeypatch.setattr(kernel_cache, "_warned", set())


def cache(folder, **changed):
    return TuningCache(device(**changed), folder)


def test_what_was_put_comes_back(tmp_path):
    put = [measured("tile=8", median_us=123.456789, cold_us=200.04, error=1.23456e-7,
                    build_s=3.21098765, build_cached=True, device_bytes=4096),
           measured("tile=16", failure="wrong numbers (error inf)", error=float("inf")),
           Measured("few_rows", "", ("NHWC float16 c8 b1,1,1,1", "row"), ("row",), "fp16",
                    failure="did not compile: no such thing\nas \"this\"")]
    first = cache(tmp_path)
    assert first.get(problem()) is None
    first.put(problem(), put)
    second = cache(tmp_path)
    assert second.get(problem()) == first.get(problem()) == [put[2], put[1], put[0]]
    assert second.get(problem(2)) is None
    assert first.notices == second.notices == []
    assert put[0].build_s == 3.211
    assert put[0].median_us == 123.5 and put[0].error == 1.235e-7


def test_the_file_can_be_read_by_people(tmp_path):
    stored = cache(tmp_path)
    stored.put(problem(), [measured("tile=8"), measured("tile=16"),
                           measured("", "few_rows", failure="wrong numbers (error 0.3)")])
    lines = stored.path.read_text().splitlines()
    (line,) = [line for line in lines if '"tile=8"' in line]
    assert json.loads(line.strip().rstrip(",")) == {
        "config": "tile=8", "inputs": ["row"], "outputs": ["row"], "precision": "fp32",
        "median_us": 12.0, "p25_us": 11.0, "p75_us": 13.0, "cold_us": None, "error": None,
        "failure": None, "samples": 0, "weights": "", "build_s": None, "build_cached": False,
        "device_bytes": None}
    assert any(f'"problem": "gemm {problem().describe()}"' in line for line in lines)
    assert any('"driver": "beads 1.0"' in line for line in lines)
    again = cache(tmp_path / "again")
    again.put(problem(), [measured("", "few_rows", failure="wrong numbers (error 0.3)"),
                          measured("tile=16"), measured("tile=8")])
    assert again.path.read_bytes() == stored.path.read_bytes()


def test_a_variant_is_found_again():
    tiled = OPS["gemm"].algorithms[0]
    spec = TensorSpec((1, 8, 4, 4), "float16", "NHWC", 8, (1, 1, 1, 1))
    variant = Variant((("tile", 8), ("order", "n")), (spec, TensorSpec((3,))),
                      (spec.with_layout("CHWN"),), "fp16")
    result = Measured.of(tiled, variant, Timing(2.0, 1.0, 3.0, 5), cold_us=4.0, error=0.0)
    assert result.candidate == candidate(tiled, variant) == (
        tiled.name, "tile=8 order=n", ("NHWC float16 c8 b1,1,1,1", "row"),
        ("CHWN float16 c8 b1,1,1,1",), "fp16")
    assert (result.median_us, result.p25_us, result.p75_us, result.cold_us) == (2, 1, 3, 4)


def test_what_cannot_be_measured_is_refused(tmp_path):
    for wrong in (None, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="tiled"):
            Measured("tiled", "", (), (), "fp32", wrong)
    with pytest.raises(ValueError, match="abacus"):
        cache(tmp_path).put(problem(), [measured(algorithm="abacus")])
    assert list(tmp_path.iterdir()) == []


def test_a_later_measurement_replaces_an_earlier_one(tmp_path):
    stored = cache(tmp_path)
    stored.put(problem(), [measured(median_us=5.0), measured("tile=16", median_us=6.0)])
    stored.put(problem(), [measured(median_us=7.0)])
    assert [each.median_us for each in cache(tmp_path).get(problem())] == [6.0, 7.0]


def test_a_changed_algorithm_is_measured_again_alone(tmp_path, algorithms):
    cache(tmp_path).put(problem(), [measured("tile=8"), measured("", "few_rows")])
    algorithms["tiled"] = "second source"
    stored = cache(tmp_path)
    assert stored.get(problem()) == [measured("", "few_rows")]
    assert stored.notices == ["measurements of 1 layer by tiled were made before it was changed: "
                              "measured again"]
    stored.put(problem(), [measured("tile=16")])
    fresh = cache(tmp_path)
    assert fresh.get(problem()) == [measured("", "few_rows"), measured("tile=16")]
    assert fresh.notices == []
    del algorithms["few_rows"]
    assert cache(tmp_path).get(problem()) == [measured("tile=16")]


def test_another_driver_or_version_is_measured_again_and_nothing_is_lost(tmp_path, monkeypatch):
    for rows in (1, 2, 3):
        cache(tmp_path).put(problem(rows), [measured()])
    newer = cache(tmp_path, driver="beads 2.0")
    assert newer.get(problem(1)) is None and newer.get(problem(1)) is None
    assert newer.get(problem(2)) is None and newer.get(problem(9)) is None
    assert newer.notices == ["measurements of 2 layers were made with driver beads 1.0, now "
                             "beads 2.0: measured again"]
    newer.put(problem(1), [measured(median_us=3.0)])
    assert cache(tmp_path, driver="beads 2.0").get(problem(1)) == [measured(median_us=3.0)]
    assert cache(tmp_path).get(problem(1)) == [measured()]
    monkeypatch.setattr("gossamer.__version__", "99")
    later = cache(tmp_path, driver="beads 2.0")
    assert later.get(problem(1)) is None
    (notice,) = later.notices
    assert "gossamer " in notice and "now 99" in notice and "beads" not in notice


TIMING = Timing(123.4, 120.0, 130.1, 20)


def test_the_host_with_fewer_threads_is_measured_again(tmp_path, monkeypatch):
    for threads in (2, 1):
        pools = [{"user_api": "openmp", "num_threads": 9}, {"user_api": "blas",
                                                           "num_threads": threads}]
        monkeypatch.setattr(tuning_cache, "threadpool_info", lambda pools=pools: pools)
        here = cache(tmp_path, api="host")
        assert here.get(problem()) is None
        here.put(problem(), [measured(median_us=float(threads))])
    (notice,) = here.notices
    assert "BLAS with 2 threads, now BLAS with 1 thread: measured again" in notice
    assert cache(tmp_path, api="host").get(problem()) == [measured(median_us=1.0)]


def test_times_of_plans_come_back(tmp_path):
    first = cache(tmp_path)
    assert first.get_plan("key") is None
    first.put_plans({"key": ("small, batch 1", Timing(123.4444, 120.0, 130.1, 20)),
                     "other": ("small, batch 1", Timing(5.0, 5.0, 5.0, 3))})
    first.put(problem(), [measured()])
    for stored in (first, cache(tmp_path)):
        assert stored.get_plan("key") == TIMING and stored.get_plan("absent") is None
        assert stored.get_plan("other") == Timing(5.0, 5.0, 5.0, 3)
    (line,) = [line for line in first.path.read_text().splitlines() if '"key"' in line]
    assert json.loads("{" + line.strip().rstrip(",") + "}") == {"key": {
        "plan": "small, batch 1", "median_us": 123.4, "p25_us": 120.0, "p75_us": 130.1,
        "repeats": 20}}
    first.put_plans({"other": ("small, batch 1", TIMING)})
    later = cache(tmp_path)
    assert later.get_plan("key") == later.get_plan("other") == TIMING
    assert cache(tmp_path, driver="beads 2.0").get_plan("key") is None
    assert later.notices == []


def test_a_file_from_before_plans_were_timed_is_kept(tmp_path):
    path, content = _good(tmp_path)
    del content["sections"][0]["plans"]
    path.write_text(json.dumps(content))
    stored = cache(tmp_path)
    assert stored.get_plan("key") is None and stored.get(problem()) == [measured()]
    stored.put_plans({"key": ("small, batch 1", TIMING)})
    later = cache(tmp_path)
    assert later.get_plan("key") == TIMING and later.get(problem()) == [measured()]
    assert stored.notices == []


def test_devices_of_one_kind_share_a_file_and_others_do_not(tmp_path):
    names = {file_name(device(**changed)) for changed in (
        {}, {"units": 8}, {"api": "cuda"}, {"description": "Abacus 3000 wooden"},
        {"description": "x" * 500}, {"description": "x" * 501}, {"description": "../../ö"})}
    assert len(names) == 7
    assert all(len(name) < 110 and "/" not in name for name in names)
    assert file_name(device(driver="beads 2.0")) in names


def _good(folder):
    stored = cache(folder)
    stored.put(problem(), [measured()])
    stored.put_plans({"plan key": ("small, batch 1", Timing(9.0, 8.0, 10.0, 20))})
    return stored.path, json.loads(stored.path.read_text())


def _changed(content, *keys, value):
    place = content
    for key in keys[:-1]:
        place = place[key] if key != "*" else next(iter(place.values()))
    place[keys[-1]] = value
    return json.dumps(content).encode()


_PLAN = ("sections", 0, "plans", "plan key")
_LINE = ("sections", 0, "problems", "*", "algorithms", "*", "candidates", 0)
BAD = {
    "empty": (lambda c: b"", "corrupt"),
    "half": (lambda c: json.dumps(c).encode()[:-40], "corrupt"),
    "garbage": (lambda c: random.Random(0).randbytes(999), "corrupt"),
    "zeros": (lambda c: bytes(4096), "corrupt"),
    "deep": (lambda c: b"[" * 200_000, "corrupt"),
    "list": (lambda c: b"[1, 2]", "foreign"),
    "number": (lambda c: b"17", "foreign"),
    "other json": (lambda c: b'{"name": "package", "version": 99}', "foreign"),
    "other device": (lambda c: _changed(c, "device", "description", value="Slide rule"),
                     "foreign"),
    "newer": (lambda c: _changed(c, "version", value=2), "newer"),
    "newer, all else unknown": (
        lambda c: json.dumps({"format": c["format"], "version": 7}).encode(), "newer"),
    "version": (lambda c: _changed(c, "version", value="1"), "corrupt"),
    "sections": (lambda c: _changed(c, "sections", value={"a": 1}), "corrupt"),
    "problems": (lambda c: _changed(c, *_LINE[:3], value=[]), "corrupt"),
    "source": (lambda c: _changed(c, *_LINE[:6], "source", value=None), "corrupt"),
    "candidates": (lambda c: _changed(c, *_LINE[:6], "candidates", value=3), "corrupt"),
    "line": (lambda c: _changed(c, *_LINE, value="x"), "corrupt"),
    "text": (lambda c: _changed(c, *_LINE, "inputs", value="row"), "corrupt"),
    "time": (lambda c: _changed(c, *_LINE, "median_us", value="fast"), "corrupt"),
    "negative time": (lambda c: _changed(c, *_LINE, "median_us", value=-1), "corrupt"),
    "infinite time": (lambda c: _changed(c, *_LINE, "median_us", value=float("inf")), "corrupt"),
    "no time": (lambda c: _changed(c, *_LINE, "median_us", value=None), "corrupt"),
    "huge time": (lambda c: _changed(c, *_LINE, "median_us", value=10**400), "corrupt"),
    "error": (lambda c: _changed(c, *_LINE, "error", value=[]), "corrupt"),
    "plans": (lambda c: _changed(c, *_PLAN[:3], value=["plan key"]), "corrupt"),
    "plan": (lambda c: _changed(c, *_PLAN, value=None), "corrupt"),
    "plan of fewer fields": (lambda c: _changed(c, *_PLAN, value={"plan": "x"}), "corrupt"),
    "plan's name": (lambda c: _changed(c, *_PLAN, "plan", value=3), "corrupt"),
    "plan's time": (lambda c: _changed(c, *_PLAN, "median_us", value="9"), "corrupt"),
    "plan's negative time": (lambda c: _changed(c, *_PLAN, "p25_us", value=-1.0), "corrupt"),
    "plan's huge time": (lambda c: _changed(c, *_PLAN, "p75_us", value=10**400), "corrupt"),
    "more fields": (lambda c: _changed(c, *_LINE, "colour", value="red"), "corrupt"),
}


@pytest.mark.parametrize("first", ["get", "put"])
@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_set_aside_whole(tmp_path, name, first):
    path, content = _good(tmp_path)
    damage, kind = BAD[name]
    path.write_bytes(damage(content))
    bad = path.read_bytes()
    stored = cache(tmp_path)
    if first == "get":
        assert stored.get(problem()) is None
    assert stored.get_plan("plan key") is None
    stored.put(problem(2), [measured()])
    (notice,) = stored.notices
    aside = path.with_name(f"{path.name}.{kind}")
    assert str(path) in notice and aside.name in notice and "\n" not in notice
    assert aside.read_bytes() == bad
    assert cache(tmp_path).get(problem(2)) == [measured()]
    assert cache(tmp_path).get(problem()) is None


def test_bad_files_do_not_replace_each_other(tmp_path):
    path, _ = _good(tmp_path)
    for index in range(3):
        path.write_text(f"bad {index}")
        assert cache(tmp_path).get(problem()) is None
    names = [path.name + end for end in (".corrupt", ".corrupt-2", ".corrupt-3")]
    assert [path.with_name(name).read_text() for name in names] == ["bad 0", "bad 1", "bad 2"]


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_is_no_file_is_set_aside(tmp_path, kind):
    path = cache(tmp_path).path
    if kind == "pipe" and not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    os.mkdir(path) if kind == "folder" else os.mkfifo(path)
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    stored.put(problem(), [measured()])
    assert path.is_file() and path.with_name(path.name + ".foreign").exists()
    assert len(stored.notices) == 1


def test_a_file_that_cannot_be_set_aside_is_left_as_it_is(tmp_path, monkeypatch):
    path, _ = _good(tmp_path)
    path.write_text("bad")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "rename", refused)
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    stored.put(problem(), [measured()])
    stored.put(problem(2), [measured()])
    assert stored.get(problem()) == [measured()]
    assert path.read_text() == "bad"
    (notice,) = stored.notices
    assert "cannot be set aside (Permission denied)" in notice


def test_a_file_that_cannot_be_read_is_left_as_it_is(tmp_path, monkeypatch):
    path, content = _good(tmp_path)
    stored = cache(tmp_path)
    with monkeypatch.context() as patch:
        def refused(_):
            raise PermissionError(13, "Permission denied")

        patch.setattr(Path, "read_bytes", refused)
        assert stored.get(problem()) is None
        stored.put(problem(2), [measured()])
        assert stored.get(problem(2)) == [measured()]
    (notice,) = stored.notices
    assert f"{path} cannot be read (Permission denied)" in notice
    assert json.loads(path.read_text()) == content


@pytest.mark.parametrize("obstacle", ["a file for a folder", "read-only", "full"])
def test_a_folder_that_cannot_be_written_warns_once(tmp_path, monkeypatch, obstacle):
    _good(tmp_path / "cache")
    folder = tmp_path / "cache"
    before = None

    def refused(*_, **__):
        raise OSError(*((30, "Read-only file system") if obstacle == "read-only"
                        else (28, "No space left on device")))

    if obstacle == "a file for a folder":
        folder = tmp_path / "file"
        folder.write_text("mine")
    else:
        monkeypatch.setattr("tempfile.mkstemp" if obstacle == "read-only" else "os.replace",
                            refused)
        monkeypatch.setattr(tuning_file.os, "open", refused) if obstacle == "read-only" else None
        before = [measured()]
    stored = cache(folder)
    assert stored.get(problem()) == before
    with pytest.warns(GossamerWarning, match="cannot be written") as caught:
        stored.put(problem(2), [measured()])
        stored.put(problem(3), [measured("tile=4")])
        stored.put_plans({"key": ("small, batch 1", TIMING)})
    assert len(caught) == 1
    assert stored.get_plan("key") == TIMING
    assert stored.get(problem(2)) == [measured()]
    assert stored.get(problem(3)) == [measured("tile=4")]
    assert stored.get(problem()) == before
    assert not list(tmp_path.rglob(".partial-*"))
    monkeypatch.undo()


def test_what_could_not_be_written_is_written_with_the_next(tmp_path, monkeypatch):
    stored = cache(tmp_path)
    with monkeypatch.context() as patch, pytest.warns(GossamerWarning):
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError(28, "full")))
        stored.put(problem(1), [measured()])
    stored.put(problem(2), [measured()])
    assert cache(tmp_path).get(problem(1)) == cache(tmp_path).get(problem(2)) == [measured()]


def test_a_clock_that_runs_backwards_changes_nothing(tmp_path, monkeypatch):
    stored = cache(tmp_path)
    stored.put(problem(1), [measured(median_us=9.0)])
    os.utime(stored.path, (2**33, 2**33))
    times = iter(range(10**6, 0, -1))
    monkeypatch.setattr(time, "time", lambda: next(times))
    later = cache(tmp_path)
    later.put(problem(1), [measured(median_us=8.0)])
    os.utime(stored.path, (0, 0))
    stored.put(problem(2), [measured()])
    assert stored.get(problem(1)) == cache(tmp_path).get(problem(1)) == [measured(median_us=8.0)]
    assert stored.notices == later.notices == []


@posix
def test_a_lock_that_is_kept_too_long_only_delays_the_writing(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_file, "_LOCK_SECONDS", 0.01)
    stored = cache(tmp_path)
    with tuning_file.locked(tmp_path) as lock:
        assert lock == "held"
        stored.put(problem(1), [measured()])
        assert not stored.path.exists() and stored.get(problem(1)) == [measured()]
    (notice,) = stored.notices
    assert "locked" in notice and str(tmp_path) in notice
    stored.put(problem(2), [measured()])
    assert cache(tmp_path).get(problem(1)) == cache(tmp_path).get(problem(2)) == [measured()]


def test_without_locks_it_works_too(tmp_path, monkeypatch):
    monkeypatch.setattr(tuning_file, "fcntl", None)
    stored = cache(tmp_path)
    stored.put(problem(1), [measured()])
    assert cache(tmp_path).get(problem(1)) == [measured()]
    assert not (tmp_path / ".lock").exists()


def _tune(folder, own, barrier):
    tuning_cache._sources = lambda op, device: {"tiled": "first source"}
    stored = cache(folder)
    barrier.wait()
    for rows in range(40):
        stored.put(problem(1000 * own + rows), [measured("tile=8")])
        stored.put(problem(rows), [measured(f"tile={own}"), measured("same")])
        stored.put_plans({f"{own}, {rows}": ("small, batch 1", TIMING)})


@posix
def test_two_processes_lose_nothing(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_tune, args=(tmp_path, own, barrier)) for own in (1, 2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    stored = cache(tmp_path)
    for rows in range(40):
        assert {each.config for each in stored.get(problem(rows))} == {"tile=1", "tile=2", "same"}
        for own in (1, 2):
            assert stored.get(problem(1000 * own + rows)) == [measured("tile=8")]
            assert stored.get_plan(f"{own}, {rows}") == TIMING
    assert stored.notices == []


def _rows(path):
    """The rows of every stored problem."""
    if not path.exists():
        return set()
    (section,) = parse(path.read_bytes())["sections"]
    return {entry["fields"]["rows"] for entry in section["problems"].values()}


def _tune_until_killed(folder, first, acknowledged):
    tuning_cache._sources = lambda op, device: {"tiled": "first source"}
    stored = cache(folder)
    rows = first
    while True:
        stored.put(problem(rows), [measured()])
        acknowledged.send_bytes(str(rows).encode())
        rows += 1


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
    assert not [path for path in tmp_path.iterdir() if path.suffix not in ("", ".json")]


def _tune_until_line(folder, line, rows):
    tuning_cache._sources = lambda op, device: {"tiled": "first source"}
    stored = cache(folder)
    passed = 0

    def trace(frame, *_):
        nonlocal passed
        if frame.f_code.co_name in ("_write", "locked", "_acquire", "sweep", "write_atomically"):
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    stored.put(problem(rows), [measured()])
    sys.settrace(None)


@posix
def test_a_kill_at_any_line_of_the_writing_loses_nothing_older(tmp_path):
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    stored = cache(tmp_path)
    stored.put(problem(), [measured()])
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
        after = _rows(stored.path)
        assert before <= after <= before | {100 + line}
        left_over += len(list(tmp_path.glob(".partial-*")))
        before = after
    assert line > 20 and left_over and 100 + line in before
    assert not list(tmp_path.glob(".partial-*"))


def test_real_problems_have_real_sources(tmp_path, monkeypatch):
    monkeypatch.undo()
    conv = Conv2dProblem(1, 3, 8, 8, 4, (3, 3))
    algorithm = OPS["conv2d"].algorithms[0]
    result = Measured(algorithm.name, "", ("NCHW",), ("NCHW",), "fp32", 1.0, 1.0, 1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        TuningCache(find("host"), tmp_path).put(conv, [result])
    assert TuningCache(find("host"), tmp_path).get(conv) == [result]


def test_another_version_of_a_vendors_library_is_measured_again(tmp_path, monkeypatch):
    monkeypatch.undo()
    conv = Conv2dProblem(1, 3, 8, 8, 4, (3, 3))
    ours = OPS["conv2d"].algorithms[0].name
    results = [Measured(name, "", ("NCHW",), ("NCHW",), "fp32", 1.0, 1.0, 1.0)
               for name in ("cudnn", ours)]
    monkeypatch.setattr(Cudnn, "version", lambda self, device: "9.19.0")
    TuningCache(find("host"), tmp_path).put(conv, results)
    assert len(TuningCache(find("host"), tmp_path).get(conv)) == 2
    monkeypatch.setattr(Cudnn, "version", lambda self, device: "9.20.0")
    stored = TuningCache(find("host"), tmp_path)
    assert [each.algorithm for each in stored.get(conv)] == [ours]
    assert stored.notices == ["measurements of 1 layer by cudnn were made before it was changed: "
                              "measured again"]


def test_what_is_not_on_disk_is_told(tmp_path):
    stored = cache(tmp_path)
    assert stored.is_kept
    stored.put(problem(), [measured()])
    assert stored.is_kept
    shutil.rmtree(tmp_path)
    tmp_path.write_text("no folder")
    with pytest.warns(GossamerWarning, match="cannot be written"):
        stored.put(problem(2), [measured()])
    assert not stored.is_kept
    tmp_path.unlink()
    stored.put(problem(3), [measured()])
    assert stored.is_kept and cache(tmp_path).get(problem(2)) == [measured()]


def test_what_was_written_before_does_not_show_in_what_is_written_next():
    def content(*medians):
        candidates = [{"config": "a", "median_us": median} for median in medians]
        return {"device": {"units": 3}, "sections": [{"problems": {
            "1a": {"fields": {"n": [1, 2]}, "algorithms": {"b": {"candidates": candidates}}}}}]}

    texts, grown = Texts(), content(1.0, 2.0)
    texts.of(grown)
    lines = grown["sections"][0]["problems"]["1a"]["algorithms"]["b"]["candidates"]
    lines[0] = {**lines[0], "median_us": 3.0}
    lines.append({"config": "a", "median_us": 4.0})
    assert texts.of(grown) == Texts().of(content(3.0, 2.0, 4.0))
    assert texts.of(content(5.0)) == Texts().of(content(5.0))
