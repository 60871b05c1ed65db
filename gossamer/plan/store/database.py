"""The database of one device's measurements.

Several processes may read and write it at the same time.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping
from itertools import count, groupby
from pathlib import Path
from typing import Any

from gossamer.device.kernel_cache import PRIVATE, make_private, warn_unwritable
from gossamer.errors import cut
from gossamer.plan.candidate import counted
from gossamer.plan.store.tuning_file import (
    FORMAT,
    KINDS,
    VERSION,
    BadFile,
    Section,
    check,
    damage_named,
    other_version,
    problem_of,
)

_BUSY_SECONDS = 10.0
"""Seconds for which an access waits for another process that writes to a database."""
_APPLICATION = int.from_bytes(b"gsmr", "big")
_TABLES = (
    "CREATE TABLE device (described TEXT NOT NULL)",
    "CREATE TABLE line (made_by TEXT, kind TEXT, key TEXT, line TEXT NOT NULL,"
    " PRIMARY KEY (made_by, kind, key)) WITHOUT ROWID",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {VERSION}",
)


class Database:
    """The measurements in one device's database.

    The database consists of lines. A line is a JSON value that contains one measured candidate, the
    time of one plan, or one passed check (see KINDS).

    Each access is a short transaction with its own connection, so that processes wait for each
    other only as long as a transaction takes. Once a line cannot be written, this process keeps all
    further lines in memory alone.

    path: the file.
    name: name of the device, for messages.
    device: description of the device in the file.
    made_by: driver, toolkit and gossamer version of this process.
    """

    def __init__(self, path: Path, name: str, device: Mapping[str, Any],
                 made_by: Mapping[str, str]) -> None:
        self.path = path
        self.made_by = dict(made_by)
        self.messages: dict[str, None] = {}
        """Messages for the user about the file; the keys of a dict, so that none is repeated."""
        self.is_kept = True
        """Whether the file has all lines that were added."""
        self._name = name
        self._device = dict(device)
        self._known: dict[tuple[str, str], dict[str, Any]] | None = None

    @property
    def known(self) -> dict[tuple[str, str], dict[str, Any]]:
        """The lines made with this process's driver, toolkit and gossamer version.

        They are those of the file, which is read once, and those that this process added. The keys
        are pairs of kind and group. The candidates of a problem form a group; every other line is a
        group of its own.
        """
        if self._known is None:
            self._known = {}
            sections = self._load()
            for section in sections:
                if section["made_by"] == self.made_by:
                    self._learn(section)
            if sections and not self._known:
                others = " and with ".join(_versions_text(each["made_by"]) for each in sections)
                self._say(f"{self.path}: its measurements were made with {others}, now it is "
                          f"{_versions_text(self.made_by)}: measured again")
        return self._known

    def _learn(self, section: Section) -> None:
        for kind in KINDS:
            for key, line in section.get(kind, {}).items():
                group = problem_of(key) if kind == "candidates" else key
                self.known.setdefault((kind, group), {})[key] = line

    def add(self, kind: str, added: Mapping[str, Any]) -> None:
        """Write lines of one kind in one transaction.

        kind: one of KINDS.
        added: lines by key.
        """
        section = {"made_by": self.made_by, kind: dict(added)}
        self._learn(section)
        try:
            if self.is_kept:
                self._write([section])
        except (OSError, BadFile) as error:
            self.is_kept = False
            warn_unwritable(self.path.parent, str(getattr(error, "strerror", None) or error))

    def take(self, content: dict[str, Any]) -> None:
        """Add all lines of a measurement file.

        The lines replace measurements of the same candidates and times of the same plans.

        Raises BadFile if the measurements were made on another device, or if none was made with the
        current driver, toolkit and gossamer. Raises OSError if the lines cannot be written.
        """
        if content["device"] != self._device:
            raise BadFile("foreign", f"was measured on {_device_text(content['device'])}, but "
                                     f"{self._name} is {_device_text(self._device)}")
        made_by = [section["made_by"] for section in content["sections"]]
        if self.made_by not in made_by:
            others = " and with ".join(_versions_text(other) for other in made_by) or "nothing"
            raise BadFile("foreign", f"was measured with {others}, but the versions here are "
                                     f"{_versions_text(self.made_by)}")
        try:
            self._write(content["sections"])
        except (OSError, BadFile) as error:
            reason = getattr(error, "strerror", None) or error
            raise OSError(0, f"{self.path} cannot be written ({reason}); set GOSSAMER_CACHE to a "
                             "writable folder") from None
        self._known = None

    def _load(self) -> list[Section]:
        try:
            content = read(self.path)
            if content["device"] != self._device:
                raise BadFile("foreign", "was measured on another device "
                                         f"({content['device']['description']})")
            return content["sections"]  # type: ignore[no-any-return]
        except (FileNotFoundError, NotADirectoryError):
            pass
        except BadFile as bad:
            with contextlib.suppress(OSError):
                self._set_aside(bad)
        except OSError as error:
            self._say(f"{self.path} cannot be read ({error.strerror}): its contents are measured "
                      "again")
        return []

    def _write(self, sections: list[Section]) -> None:
        """Write lines to the file, replacing a bad file.

        Raises OSError or BadFile.
        """
        make_private(self.path.parent)
        try:
            _insert(self.path, self._device, sections)
        except BadFile as bad:
            self._set_aside(bad)
            _insert(self.path, self._device, sections)

    def _set_aside(self, bad: BadFile) -> None:
        """Rename a bad file; the new name says what is wrong.

        Raises OSError.
        """
        names = (f"{self.path.name}.{bad.kind}" + (f"-{number}" if number > 1 else "")
                 for number in count(1))
        name = next(name for name in names if not os.path.lexists(self.path.with_name(name)))
        # SQLite must not apply the journal of this file to the next file of this name
        for end in ("-journal", ""):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + end).rename(self.path.with_name(name + end))
        self._say(f"{self.path} {bad}: set aside as {name}, measured again")

    def _say(self, line: str) -> None:
        self.messages[line] = None


def read(path: Path) -> dict[str, Any]:
    """Return a database's content after checking all of it.

    The content has the structure that parse() returns for an exported file. Raises OSError, or
    BadFile if the file contains no valid gossamer measurements.
    """
    if not path.exists():
        raise FileNotFoundError(2, "No such file", str(path))
    writable = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    if not writable and os.path.exists(f"{path}-journal"):
        raise OSError(0, "another process was writing, and the folder is read-only now")
    content: dict[str, Any] = {"format": FORMAT, "version": VERSION, "device": None, "sections": []}
    with _connected(path, "rw" if writable else "ro&immutable=1") as base, damage_named():
        if _version(base) is None:
            raise FileNotFoundError(2, "No such file", str(path))
        for (text,) in base.execute("SELECT described FROM device"):
            content["device"] = json.loads(text)
        for made_by, lines in groupby(
                base.execute("SELECT made_by, kind, key, line FROM line ORDER BY 1, 2, 3"),
                key=lambda row: row[0]):
            section = {"made_by": json.loads(made_by), **{kind: {} for kind in KINDS}}
            for _, kind, key, line in lines:
                section[kind][key] = json.loads(line)
            content["sections"].append(section)
        check(content)
    return content


def clear(path: Path) -> None:
    """Remove a database while no other process writes to it. Raises OSError."""
    try:
        with _connected(path, "rw", exclusive=True):
            path.unlink()
    except BadFile:
        path.unlink()
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + "-journal").unlink()


@contextlib.contextmanager
def _connected(path: Path, mode: str, *, exclusive: bool = False) -> Iterator[sqlite3.Connection]:
    """Open a database and begin a transaction within a `with` block.

    The transaction is rolled back unless the block commits it. Raises OSError or BadFile.

    mode: "ro", "rw", or "rwc" to create the file and to write.
    exclusive: whether no other process can read or write the file within the block.
    """
    kind = "EXCLUSIVE" if exclusive else "IMMEDIATE" if mode == "rwc" else "DEFERRED"
    try:
        if path.exists() and not path.is_file():
            raise BadFile("foreign", "is not a file")
        if mode == "rwc":
            path.touch(PRIVATE)
        with contextlib.closing(sqlite3.connect(
                f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None,
                timeout=_BUSY_SECONDS)) as base:
            base.execute(f"BEGIN {kind}")
            yield base
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
        if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise BadFile("corrupt", f"is corrupt or cut short ({error})") from None
        raise OSError(0, str(error)) from None


def _version(base: sqlite3.Connection) -> int | None:
    """Return the version of a database; None for an empty database.

    Raises BadFile for a version that this gossamer does not read.
    """
    (application,) = base.execute("PRAGMA application_id").fetchone()
    (version,) = base.execute("PRAGMA user_version").fetchone()
    if not application and not base.execute("SELECT 1 FROM sqlite_master").fetchone():
        return None
    if application != _APPLICATION:
        raise BadFile("foreign", "contains no gossamer measurements")
    if version != VERSION:
        raise other_version(version)
    return VERSION


def _insert(path: Path, device: Mapping[str, Any], sections: list[Section]) -> None:
    """Add sections' lines to a database, creating it if missing.

    A line replaces the existing line of the same section, kind and key.
    """
    with _connected(path, "rwc") as base:
        if _version(base) is None:
            for statement in _TABLES:
                base.execute(statement)
            base.execute("INSERT INTO device VALUES (?)", (_text(device),))
        base.executemany("INSERT OR REPLACE INTO line VALUES (?, ?, ?, ?)", [
            (_text(section["made_by"]), kind, key, _text(line))
            for section in sections for kind in KINDS
            for key, line in section.get(kind, {}).items()])
        base.execute("COMMIT")


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _device_text(device: Mapping[str, Any]) -> str:
    """Return text that names the device of a measurement file."""
    return (f"{cut(device['description'])} ({cut(device['api'])}, "
            f"{cut(counted(device['compute_units'], 'compute unit'))})")


def _versions_text(made_by: Mapping[str, str]) -> str:
    """Return text that lists the versions of a section."""
    return ", ".join(cut(f"{name} {version}") for name, version in made_by.items() if version)
