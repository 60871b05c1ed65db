"""Tests of files of result rows, which are written completely or not at all and read strictly."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.bench import rows
from gossamer.bench.call_contest import Result
from gossamer.device.registry import find
from gossamer.errors import InputError
from gossamer_bench.row_files import KEYS, append_rows, check_appendable, csv_bytes, read_rows
from tests.bench.verb import row

SCHEMA = ["suite", "case", "contender", "device", "precision", "layout", "config", "batch",
          "median_us", "p25_us", "p75_us", "error", "speed_of_light_us", "density", "machine",
          "versions", "command", "commit", "run_id", "date", "notice", "tail"]


def test_appended_rows_come_back(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "chip" / "suite.jsonl"
    append_rows(path, result.rows[:1])
    append_rows(path, result.rows)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(KEYS) == SCHEMA
    # a notice stands before the tail where the times scatter
    assert all([*dict.fromkeys([*line, "notice", "tail"])] == SCHEMA for line in lines)
    read = read_rows(tmp_path)
    assert [row.contender for row in read] == [
        row.contender for row in [*result.rows[:1], *result.rows]]
    assert read[0].median_us == pytest.approx(result.rows[0].median_us, rel=1e-5)
    assert os.listdir(path.parent) == ["suite.jsonl"]


def test_a_speed_of_light_that_is_not_known_is_null(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    unknown, known = (row("gossamer", 100.0, speed_of_light_us=light) for light in (None, 25.0))
    append_rows(path, [unknown, known])
    assert [json.loads(line)["speed_of_light_us"]
            for line in path.read_text().splitlines()] == [None, 25.0]
    assert read_rows(path) == [unknown, known]
    sheet = list(csv.DictReader(io.StringIO(csv_bytes([unknown, known]).decode())))
    assert [(line["speed_of_light_us"], line["share_of_light"]) for line in sheet] == [
        ("", ""), ("25.0", "0.25")]


def test_a_notice_is_written_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    spoilt, quiet = row("gossamer", 100.0, notice="the processors were busy"), row("torch", 90.0)
    append_rows(path, [spoilt, quiet])
    assert ["notice" in json.loads(line) for line in path.read_text().splitlines()] == [True, False]
    assert read_rows(path) == [spoilt, quiet]


def test_a_failed_append_leaves_the_file_alone(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "suite.jsonl"
    append_rows(path, result.rows)
    before = path.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(InputError, match="No space left"):
        append_rows(path, result.rows)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["suite.jsonl"]


def test_two_processes_lose_nothing(result: Result, tmp_path: Path) -> None:
    path = tmp_path / "suite.jsonl"
    append_rows(path, result.rows[:1])
    program = ("import sys; from pathlib import Path\n"
               "from gossamer_bench.row_files import append_rows, read_rows\n"
               "path = Path(sys.argv[1]); row = read_rows(path)[:1]\n"
               "for _ in range(50): append_rows(path, row)")
    workers = [subprocess.Popen([sys.executable, "-c", program, str(path)]) for _ in range(2)]
    assert [worker.wait() for worker in workers] == [0, 0]
    assert len(read_rows(path)) == 101


@pytest.mark.parametrize(("line", "reason"), [
    ("{", "line 2 is not JSON"),
    ("[]", "line 2 is no result row"),
    ('{"suite": "mobilenet"}', "expected the keys suite, case, contender"),
])
def test_a_damaged_file_is_named(result: Result, tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "suite.jsonl"
    append_rows(path, result.rows[:1])
    path.write_text(path.read_text() + line)
    for reader in (read_rows, check_appendable):
        with pytest.raises(InputError, match=reason):
            reader(path)


@pytest.mark.parametrize(("name", "reason"), [
    ("rows.txt", "ends in .jsonl"), ("folder.jsonl", "is a folder"),
    ("file/rows.jsonl", "cannot be written to")])
def test_where_rows_cannot_go(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "folder.jsonl").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=reason):
        check_appendable(tmp_path / name)


def test_commit_is_that_of_the_checkout() -> None:
    root = Path(rows.__file__).resolve().parents[2]
    commit = rows.checkout_commit()
    if not (root / ".git").exists():
        assert commit is None
        return
    head = subprocess.run(["git", "-C", str(root), "rev-parse", "HEAD"], text=True,
                          capture_output=True, check=True).stdout.strip()
    assert commit in (head, f"{head}-dirty")


def test_a_commit_that_is_named_is_recorded() -> None:
    assert rows.Stamp.of(find("host"), "words", "abc").commit == "abc"
