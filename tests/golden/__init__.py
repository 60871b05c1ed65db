"""Texts that users read, kept as files that a person can review: errors, reports, help.

A test makes the texts and hands them to the fixture `golden`, which fails with the difference where
a file has others. Where a change is meant, `pytest --record` with the test writes the file again,
and it is read like other code before it is committed. Nothing else is kept here: no digests, and
nothing that a test can compute otherwise.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from gossamer.errors import InputError

FOLDER = Path(__file__).parent
SHOWN = 60
"""The most lines of a difference that a failure shows."""


class Golden:
    """Compares texts with the files of a folder, or writes them there to be read."""

    def __init__(self, record: bool, folder: Path = FOLDER) -> None:
        self.record = record
        self.folder = folder

    def text(self, name: str, text: str) -> None:
        """Compare a text with a file."""
        kept = self._read(name)
        if self.record:
            (self.folder / name).write_text(text, encoding="utf-8")
        else:
            _compare(name, kept, text)

    def table(self, name: str, section: str, rows: Mapping[str, str]) -> None:
        """Compare the texts of cases, a line each, with a section of a file. Files that several
        tests share are recorded by one process."""
        text = "".join(f"{case}: {row}".replace("\n", "\\n") + "\n" for case, row in rows.items())
        sections = dict(each.split("\n", 1) for each in self._read(name).split("## ")[1:])
        if self.record:
            sections[section] = f"{text}\n"
            self.text(name, "".join(f"## {title}\n{each}"
                                    for title, each in sorted(sections.items())))
        else:
            _compare(f"{name}, {section}", sections.get(section, "").rstrip("\n"), text)

    def refusals(self, section: str, cases: Mapping[str, Callable[[], object]],
                 folder: Path | None = None, kind: type[Exception] = InputError) -> None:
        """Compare the messages with which cases are refused, without the folder of their files,
        with a section of errors.txt."""
        rows: dict[str, str] = {}
        for case, work in cases.items():
            with pytest.raises(kind) as caught:
                work()
            rows[case] = str(caught.value).replace(f"{folder}/", "")
            assert "\n" not in rows[case]
        self.table("errors.txt", section, rows)

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""


def _compare(name: str, kept: str, now: str) -> None:
    difference = list(difflib.unified_diff(
        kept.splitlines(), now.splitlines(), f"{name}: recorded", f"{name}: now", lineterm="", n=0))
    if difference:
        pytest.fail("\n".join([
            *difference[:SHOWN], *["..."] * (len(difference) > SHOWN),
            "if that is meant, run the test with --record and read the file"]), pytrace=False)
