"""Bad data bases and files of measurements do no harm: they are renamed, or refused."""

import json
import os
import random
import sqlite3
from pathlib import Path
from unittest.mock import Mock

import pytest

from gossamer.errors import GossamerWarning
from gossamer.plan.store import database
from gossamer.plan.store.tuning_file import VERSION, BadFile, parse, text
from tests.plan.store.tuning_cache.measurements import (
    cache,
    disk_error,
    good_file,
    measured,
    problem,
)


def _changed(content, *keys, value):
    container = content
    for key in keys[:-1]:
        container = container[key] if key != "*" else next(iter(container.values()))
    container[keys[-1]] = value
    return json.dumps(content).encode()


_PLAN = ("sections", 0, "plans", "plan key")
_LINE = ("sections", 0, "candidates", "*")
BAD = {
    "empty": (lambda c: b"", "corrupt"),
    "half": (lambda c: json.dumps(c).encode()[:-40], "corrupt"),
    "garbage": (lambda c: random.Random(0).randbytes(999), "corrupt"),
    "zeros": (lambda c: bytes(4096), "corrupt"),
    "deep": (lambda c: b"[" * 200_000, "corrupt"),
    "list": (lambda c: b"[1, 2]", "foreign"),
    "number": (lambda c: b"17", "foreign"),
    "other json": (lambda c: b'{"name": "package", "version": 99}', "foreign"),
    "device": (lambda c: _changed(c, "device", "compute_units", value="2"), "corrupt"),
    "newer": (lambda c: _changed(c, "version", value=VERSION + 1), "newer"),
    "newer, all else unknown": (
        lambda c: json.dumps({"format": c["format"], "version": VERSION + 1}).encode(), "newer"),
    "older": (lambda c: _changed(c, "version", value=VERSION - 1), "older"),
    "version": (lambda c: _changed(c, "version", value="1"), "corrupt"),
    "sections": (lambda c: _changed(c, "sections", value={"a": 1}), "corrupt"),
    "candidates": (lambda c: _changed(c, *_LINE[:3], value=[]), "corrupt"),
    "no fields": (lambda c: _changed(c, *_LINE, value={}), "corrupt"),
    "problem": (lambda c: _changed(c, *_LINE, "problem", value=7), "corrupt"),
    "source": (lambda c: _changed(c, *_LINE, "source", value=None), "corrupt"),
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




@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_of_measurements_is_refused(tmp_path, name):
    _, content = good_file(tmp_path)
    assert parse(text(content)) == json.loads(text(content))
    damage, kind = BAD[name]
    with pytest.raises(BadFile) as refused:
        parse(damage(content))
    assert refused.value.kind == kind and "\n" not in str(refused.value)


def _sql(path, *statements):
    with sqlite3.connect(path) as base:
        for statement in statements:
            base.execute(statement)
    base.close()


def _bytes(change):
    return lambda path: path.write_bytes(change(path.read_bytes()))


BAD_BASES = {
    "half": (_bytes(lambda data: data[:len(data) // 2]), "corrupt"),
    "garbage": (_bytes(lambda data: random.Random(0).randbytes(9999)), "corrupt"),
    "zeros": (_bytes(lambda data: bytes(len(data))), "corrupt"),
    "text": (_bytes(lambda data: b"{}"), "corrupt"),
    "pages": (_bytes(lambda data: data[:4096] + random.Random(0).randbytes(len(data) - 4096)),
              "corrupt"),
    "another application's": (lambda path: _sql(path, "PRAGMA application_id = 5"), "foreign"),
    "newer": (lambda path: _sql(path, f"PRAGMA user_version = {VERSION + 1}"), "newer"),
    "older": (lambda path: _sql(path, f"PRAGMA user_version = {VERSION - 1}"), "older"),
    "no table": (lambda path: _sql(path, "DROP TABLE line"), "corrupt"),
    "no device": (lambda path: _sql(path, "DELETE FROM device"), "corrupt"),
    "other device": (lambda path: _sql(
        path, "UPDATE device SET described = replace(described, 'Abacus 3000', 'Slide rule')"),
        "foreign"),
    "no JSON": (lambda path: _sql(path, "UPDATE line SET line = '{'"), "corrupt"),
    "bytes": (lambda path: _sql(path, "UPDATE line SET line = x'ff00'"), "corrupt"),
    "other JSON": (lambda path: _sql(path, "UPDATE line SET line = '{}'"), "corrupt"),
    "plan": (lambda path: _sql(path, "UPDATE line SET line = '[]' WHERE kind = 'plans'"),
             "corrupt"),
    "another kind": (lambda path: _sql(path, "UPDATE line SET kind = 'songs'"), "corrupt"),
    "made by": (lambda path: _sql(path, "UPDATE line SET made_by = '17'"), "corrupt"),
}


@pytest.mark.parametrize("first", ["get", "put"])
@pytest.mark.parametrize("name", BAD_BASES)
def test_a_bad_data_base_is_set_aside_whole(tmp_path, name, first):
    path, _ = good_file(tmp_path)
    damage, kind = BAD_BASES[name]
    damage(path)
    bad = path.read_bytes()
    stored = cache(tmp_path)
    if first == "get":
        assert stored.get(problem()) is None
    stored.put({problem(2): [measured()]})
    assert stored.get_plan("plan key") is None
    (notice,) = stored.messages
    aside = path.with_name(f"{path.name}.{kind}")
    assert str(path) in notice and aside.name in notice and "\n" not in notice
    assert aside.read_bytes() == bad
    assert cache(tmp_path).get(problem(2)) == [measured()]
    assert cache(tmp_path).get(problem()) is None


def test_the_journal_of_a_bad_data_base_does_not_reach_the_next_one(tmp_path):
    path, _ = good_file(tmp_path)
    path.write_bytes(b"bad")
    journal = path.with_name(path.name + "-journal")
    journal.write_bytes(b"old pages")
    cache(tmp_path).put({problem(2): [measured()]})
    assert not journal.exists()
    assert cache(tmp_path).get(problem(2)) == [measured()]


def test_an_empty_file_is_a_data_base_without_measurements(tmp_path):
    path, _ = good_file(tmp_path)
    path.write_bytes(b"")
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    stored.put({problem(): [measured()]})
    assert cache(tmp_path).get(problem()) == [measured()] and stored.messages == {}


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
    stored.put({problem(): [measured()]})
    assert path.is_file() and path.with_name(path.name + ".foreign").exists()
    assert len(stored.messages) == 1


def test_a_file_that_cannot_be_set_aside_is_left_as_it_is(tmp_path, monkeypatch):
    path, _ = good_file(tmp_path)
    path.write_text("bad")
    monkeypatch.setattr(Path, "rename", Mock(side_effect=PermissionError(13, "Permission denied")))
    stored = cache(tmp_path)
    assert stored.get(problem()) is None
    with pytest.warns(GossamerWarning, match=r"cannot be written \(Permission denied"):
        stored.put({problem(): [measured()]})
        stored.put({problem(2): [measured()]})
    assert stored.get(problem()) == [measured()]
    assert path.read_text() == "bad"


def test_a_file_that_cannot_be_read_is_left_as_it_is(tmp_path, monkeypatch):
    path, content = good_file(tmp_path)
    stored = cache(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", Mock(side_effect=disk_error(
            sqlite3.SQLITE_CANTOPEN, "unable to open database file")))
        assert stored.get(problem()) is None
        with pytest.warns(GossamerWarning, match="unable to open database file"):
            stored.put({problem(2): [measured()]})
        assert stored.get(problem(2)) == [measured()]
    (notice,) = stored.messages
    assert f"{path} cannot be read (unable to open database file)" in notice
    assert database.read(path) == content
