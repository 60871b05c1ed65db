"""Bad files of measurements do no harm: they are renamed or left as they are."""

import json
import os
import random
from pathlib import Path

import pytest

from gossamer.plan.store.tuning_file import VERSION
from tests.plan.store.tuning_cache.measurements import cache, good_file, measured, problem


def _changed(content, *keys, value):
    container = content
    for key in keys[:-1]:
        container = container[key] if key != "*" else next(iter(container.values()))
    container[keys[-1]] = value
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
    "device": (lambda c: _changed(c, "device", "compute_units", value="2"), "corrupt"),
    "newer": (lambda c: _changed(c, "version", value=VERSION + 1), "newer"),
    "newer, all else unknown": (
        lambda c: json.dumps({"format": c["format"], "version": VERSION + 1}).encode(), "newer"),
    "older": (lambda c: _changed(c, "version", value=VERSION - 1), "older"),
    "version": (lambda c: _changed(c, "version", value="1"), "corrupt"),
    "sections": (lambda c: _changed(c, "sections", value={"a": 1}), "corrupt"),
    "problems": (lambda c: _changed(c, *_LINE[:3], value=[]), "corrupt"),
    "deep fields": (lambda c: _changed(c, *_LINE[:4], "fields", value=json.loads(
        "[" * 60 + "]" * 60)), "corrupt"),
    "no fields": (lambda c: _changed(c, *_LINE[:4], value={"problem": "", "algorithms": {}}),
                  "corrupt"),
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
    path, content = good_file(tmp_path)
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
    path, _ = good_file(tmp_path)
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
    path, _ = good_file(tmp_path)
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
    path, content = good_file(tmp_path)
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
