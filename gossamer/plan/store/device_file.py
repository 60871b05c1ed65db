"""One device's file of measurements, and the measurements that are not in it yet."""

from __future__ import annotations

import atexit
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossamer.device.kernel_cache import write_atomically
from gossamer.errors import cut
from gossamer.io.atomic import replacing
from gossamer.plan.measurement import CandidateKey, counted
from gossamer.plan.store.tuning_file import (
    FORMAT,
    VERSION,
    BadFile,
    decode,
    locked,
    parse,
    set_aside,
    sweep,
)
from gossamer.plan.store.tuning_text import Texts

WRITE_SECONDS = 2.0
"""Seconds from one writing of the file to the next while measurements are added."""

Section = dict[str, Any]
"""Part of the file with the measurements of one driver, toolkit and gossamer version: problems,
plans and checks by key."""


class DeviceFile:
    """The measurements in the file of one device, and those that were added and wait to be written.
    Other processes may read the file and add to it at the same time.

    Each writing takes the whole file, so while problems are added the file is written at most every
    WRITE_SECONDS: a killed process loses no more than it measured in that time. Where the file
    cannot be read or written, what was added stays in memory.

    path: the file. device: the device as the file describes it. made_by: the driver, toolkit and
    gossamer version of this process.
    """

    def __init__(self, path: Path, device: Mapping[str, Any], made_by: Mapping[str, str]) -> None:
        self.path = path
        self.made_by = dict(made_by)
        self.messages: dict[str, None] = {}
        """Sentences for the user about bad files, each once."""
        self.unwritten: Section = _nothing()
        self._device = dict(device)
        self._content: dict[str, Any] | None = None
        self._text: bytes | None = None
        """Text of the file that gave `_content`; parsing a large file takes long."""
        self._texts = Texts()
        self._attempted = -math.inf
        """When writing was last tried, by the monotonic clock."""

    @property
    def sections(self) -> list[Section]:
        """The sections of all drivers, toolkits and gossamer versions, as the file was last read or
        written."""
        if self._content is None:
            self._content = self._load()
        return self._content["sections"]  # type: ignore[no-any-return]

    @property
    def own_section(self) -> Section:
        """The section of this process's driver, toolkit and gossamer version; empty where the file
        has none."""
        return next((section for section in self.sections if section["made_by"] == self.made_by),
                    {"made_by": self.made_by, "problems": {}})

    def add_problems(self, problems: Mapping[str, Any]) -> None:
        """Adds problems by key; they are written at once, or later with others."""
        _merge(self.unwritten["problems"], problems)
        if time.monotonic() - self._attempted >= WRITE_SECONDS:
            self.flush()

    def add_plans(self, plans: Mapping[str, Any]) -> None:
        """Adds times of plans by key, and writes all that waits."""
        self.unwritten["plans"].update(plans)
        self.flush()

    def add_check(self, key: str, text: str) -> None:
        """Adds a check that a candidate passed; it is written later, with others."""
        self.unwritten["checks"][key] = text

    def flush(self) -> None:
        """Writes all that waits, beside the measurements of other processes."""
        if not self.is_kept:
            try:
                self._write()
            finally:
                self._attempted = time.monotonic()

    def close(self) -> None:
        """Writes all that waits when the cache is dropped or the process ends."""
        self.flush()
        if not self.is_kept:
            # the garbage collector may have dropped the cache while this thread had the lock
            atexit.register(self.flush)

    @property
    def is_kept(self) -> bool:
        """Whether all that was added is in the file."""
        return not any(self.unwritten.values())

    def take(self, content: dict[str, Any], name: str) -> None:
        """Adds all that another file of measurements holds, and replaces measurements of the same
        candidates and times of the same plans. name: the device's, for messages.

        Raises BadFile where the measurements were made on another device, or none by the present
        driver, toolkit and gossamer; OSError where they cannot be kept.
        """
        if content["device"] != self._device:
            raise BadFile("foreign", f"was measured on {_device_text(content['device'])}; "
                                     f"{name} is {_device_text(self._device)}")
        made_by = [section["made_by"] for section in content["sections"]]
        if self.made_by not in made_by:
            others = " and with ".join(_versions_text(other) for other in made_by) or "nothing"
            raise BadFile("foreign", f"was measured with {others}; here is "
                                     f"{_versions_text(self.made_by)}")
        with locked(self.path.parent) as lock:
            if lock == "busy":
                raise OSError(0, f"another process keeps {self.path.parent} locked")
            merged = self._read(lock)
            if merged is None:
                raise OSError(0, next(reversed(self.messages)))
            for section in content["sections"]:
                target = _section(merged, section["made_by"])
                _merge(target["problems"], section["problems"])
                for kind in ("plans", "checks"):
                    if kind in section:
                        target.setdefault(kind, {}).update(section[kind])
            data = self._texts.of(merged)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with replacing(self.path) as file:
                    file.write(data)
            except OSError as error:
                raise OSError(0, f"{self.path} cannot be written ({error.strerror}); set "
                                 "GOSSAMER_CACHE to a folder of yours") from None
            self._content, self._text = merged, data

    def _write(self) -> None:
        with locked(self.path.parent) as lock:
            if lock == "busy":
                self._say(f"another process keeps {self.path.parent} locked: measurements are "
                          "in memory only until it is free")
                return
            content = self._read(lock)
            if content is None:
                return
            section = _section(content, self.made_by)
            _merge(section["problems"], self.unwritten["problems"])
            for kind in ("plans", "checks"):
                section.setdefault(kind, {}).update(self.unwritten[kind])
            if lock == "held":
                sweep(self.path.parent)
            data = self._texts.of(content)
            if write_atomically(self.path, data):
                self.unwritten = _nothing()
                self._content, self._text = content, data

    def _load(self) -> dict[str, Any]:
        """Returns the file's content. The lock is taken only where a bad file is set aside."""
        try:
            return self._parsed()
        except (FileNotFoundError, NotADirectoryError):
            return self._empty()
        except (OSError, BadFile):
            with locked(self.path.parent) as lock:
                return self._read(lock) or self._empty()

    def _parsed(self) -> dict[str, Any]:
        """Returns the file's content. Raises OSError or BadFile."""
        if self.path.exists() and not self.path.is_file():
            raise BadFile("foreign", "is no file")
        data = self.path.read_bytes()
        if self._content is not None and data == self._text:
            return self._content
        content = parse(data)
        if content["device"] != self._device:
            raise BadFile("foreign", "was measured on another device "
                                     f"({content['device']['description']})")
        return content

    def _read(self, lock: str) -> dict[str, Any] | None:
        """Returns the file's content, empty where there is no file or a bad one was set aside; None
        where the file must stay as it is. lock: the state of the folder's lock."""
        try:
            return self._parsed()
        except (FileNotFoundError, NotADirectoryError):
            return self._empty()
        except OSError as error:
            self._say(f"{self.path} cannot be read ({error.strerror}): what it holds is measured "
                      "again, and not kept")
            return None
        except BadFile as bad:
            try:
                if lock == "busy":
                    raise OSError(0, "another process keeps the folder locked")
                name = set_aside(self.path, bad.kind)
            except OSError as error:
                self._say(f"{self.path} {bad}, and cannot be set aside ({error.strerror}): "
                          "measured again, and not kept")
                return None
            self._say(f"{self.path} {bad}: set aside as {name}, measured again")
            return self._empty()

    def _empty(self) -> dict[str, Any]:
        return {"format": FORMAT, "version": VERSION, "device": self._device, "sections": []}

    def _say(self, line: str) -> None:
        self.messages[line] = None


def _nothing() -> Section:
    return {"problems": {}, "plans": {}, "checks": {}}


def _section(content: dict[str, Any], made_by: Mapping[str, str]) -> Section:
    """Returns the section of a driver, toolkit and gossamer version; adds it where it is missing.
    """
    for section in content["sections"]:
        if section["made_by"] == made_by:
            return section  # type: ignore[no-any-return]
    content["sections"].append({"made_by": dict(made_by), "problems": {}})
    return content["sections"][-1]  # type: ignore[no-any-return]


def _device_text(device: Mapping[str, Any]) -> str:
    """Returns the device of a file of measurements in words."""
    return (f"{cut(device['description'])} ({cut(device['api'])}, "
            f"{cut(counted(device['compute_units'], 'compute unit'))})")


def _versions_text(made_by: Mapping[str, str]) -> str:
    """Returns the driver, toolkit and gossamer that a section was made with in words."""
    return ", ".join(cut(f"{name} {version}") for name, version in made_by.items() if version)


def _merge(target: dict[str, Any], added: Mapping[str, Any]) -> None:
    """Adds problems to others; of two measurements of one candidate the added one remains."""
    for problem, entry in added.items():
        described = {"problem": entry["problem"], "fields": entry["fields"], "algorithms": {}}
        algorithms = target.setdefault(problem, described)["algorithms"]
        for name, new in entry["algorithms"].items():
            old = algorithms.get(name)
            lines = [*new["candidates"]]
            if old is not None and old["source"] == new["source"]:
                lines = [*old["candidates"], *lines]
            merged: dict[CandidateKey, Any] = {
                decode(name, line).candidate_key: line for line in lines}
            algorithms[name] = {"source": new["source"],
                                "candidates": [merged[key] for key in sorted(merged)]}
