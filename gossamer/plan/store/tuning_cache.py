"""The tuning cache: stored measurements, so that no candidate is measured twice on a device."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer.device.base import Device
from gossamer.device.kernel_cache import cache_folder, write_atomically
from gossamer.measure import Timing
from gossamer.ops.algorithm import Problem
from gossamer.ops.canonical import canonical
from gossamer.ops.registry import OPS
from gossamer.plan.store.keys import identity, problem_key
from gossamer.plan.store.tuning_file import (
    FORMAT,
    VERSION,
    BadFile,
    CandidateKey,
    Measurement,
    candidate_key,
    counted,
    decode,
    decode_plan,
    encode,
    encode_plan,
    locked,
    parse,
    set_aside,
    sweep,
)
from gossamer.plan.store.tuning_text import Texts
from gossamer.version import PACKAGE_VERSION

__all__ = ["CandidateKey", "Measurement", "TuningCache", "candidate_key", "tuning_folder"]

Section = dict[str, Any]
"""Part of the file with the measurements of one driver, toolkit and gossamer version: problems and
plans by key."""


def tuning_folder() -> Path:
    """Returns the folder of the files of measurements."""
    return cache_folder() / "tuning"


class TuningCache:
    """The measurements made on one device, in one file. Other processes may read the file and add
    to it at the same time; an object is used by one thread at a time.

    The file has one section for each combination of driver, toolkit and gossamer version with
    which measurements were made; only the one of this process is read. Where the file cannot be
    read or written, new measurements stay in memory.
    """

    def __init__(self, device: Device, folder: Path | None = None) -> None:
        self._owner = device
        self._device = {"api": device.api, "description": device.description,
                        "compute_units": device.limits.compute_units}
        self._made_by = {"driver": device.driver, "toolkit": device.toolkit,
                         "gossamer": PACKAGE_VERSION}
        self.path = (folder or tuning_folder()) / file_name(device)
        self._content: dict[str, Any] | None = None
        self._text: bytes | None = None
        """Text of the file that gave `_content`; parsing a large file takes long."""
        self._unwritten: Section = {"problems": {}, "plans": {}}
        self._texts = Texts()
        self._messages: dict[str, None] = {}
        self._foreign: dict[str, str] = {}
        self._outdated: dict[tuple[str, str], None] = {}

    def get(self, problem: Problem) -> list[Measurement] | None:
        """Returns the measurements of the problem's candidates that the present versions of the
        algorithms made, in a fixed order; None where there are none."""
        if self._content is None:
            self._content = self._load()
        key = problem_key(problem)
        sources = _sources(problem.op, self._owner)
        measurements: dict[CandidateKey, Measurement] = {}
        for section in (self._section(self._content), self._unwritten):
            for name, stored in section["problems"].get(key, {}).get("algorithms", {}).items():
                if stored["source"] == sources.get(name):
                    for line in stored["candidates"]:
                        measured = decode(name, line)
                        measurements[measured.candidate_key] = measured
                elif name in sources:
                    self._outdated[name, key] = None
        if not measurements and key not in self._foreign:
            self._note_other_sections(key)
        return [measurements[candidate] for candidate in sorted(measurements)] or None

    def put(self, problem: Problem, measured: Sequence[Measurement]) -> None:
        """Adds measurements that the present versions of the algorithms made, and replaces those
        of the same candidates. They are on disk, beside those of other processes, when this
        returns.

        Raises ValueError for an algorithm that the problem's op does not have.
        """
        sources = _sources(problem.op, self._owner)
        algorithms: dict[str, Any] = {}
        for measurement in measured:
            name = measurement.algorithm
            if name not in sources:
                raise ValueError(f"{problem.op} has no algorithm {name}")
            algorithms.setdefault(name, {"source": sources[name], "candidates": []})[
                "candidates"].append(encode(measurement))
        if algorithms:
            _merge(self._unwritten["problems"], {problem_key(problem): {
                "problem": f"{problem.op} {problem.describe()}", "fields": canonical(problem),
                "algorithms": algorithms}})
            self._write()

    def get_plan(self, key: str) -> Timing | None:
        """Returns the time of a plan from end to end; None where it was not timed. key: identifies
        all that the plan runs, the sources of its algorithms included."""
        if self._content is None:
            self._content = self._load()
        for section in (self._unwritten, self._section(self._content)):
            if line := section.get("plans", {}).get(key):
                return decode_plan(line)
        return None

    def put_plans(self, timings: Mapping[str, tuple[str, Timing]]) -> None:
        """Adds the times of plans from end to end by key, each with a description for the reader of
        the file, and replaces those of the same keys. They are on disk when this returns."""
        if timings:
            self._unwritten["plans"].update(
                {key: encode_plan(*described) for key, described in timings.items()})
            self._write()

    def take(self, content: dict[str, Any]) -> None:
        """Adds all that another file of measurements holds, and replaces measurements of the same
        candidates and times of the same plans.

        Raises BadFile where the measurements were made on another device, or none by the present
        driver, toolkit and gossamer; OSError where they cannot be kept.
        """
        if content["device"] != self._device:
            raise BadFile("foreign", f"was measured on {_device_text(content['device'])}; "
                                     f"{self._owner.name} is {_device_text(self._device)}")
        made_by = [section["made_by"] for section in content["sections"]]
        if self._made_by not in made_by:
            others = " and with ".join(_versions_text(other) for other in made_by) or "nothing"
            raise BadFile("foreign", f"was measured with {others}; here is "
                                     f"{_versions_text(self._made_by)}")
        with locked(self.path.parent) as lock:
            if lock == "busy":
                raise OSError(0, f"another process keeps {self.path.parent} locked")
            merged = self._read(lock)
            if merged is None:
                raise OSError(0, next(reversed(self._messages)))
            for section in content["sections"]:
                target = self._section(merged, section["made_by"])
                _merge(target["problems"], section["problems"])
                if "plans" in section:
                    target.setdefault("plans", {}).update(section["plans"])
            data = self._texts.of(merged)
            if not write_atomically(self.path, data):
                raise OSError(0, f"{self.path} cannot be written")
            self._content, self._text = merged, data

    @property
    def is_kept(self) -> bool:
        """Whether all measurements that were added are on disk."""
        return not any(self._unwritten.values())

    @property
    def notices(self) -> list[str]:
        """Sentences for the user about bad files and measurements that are no longer valid."""
        lines = list(self._messages)
        for difference, number in Counter(self._foreign.values()).items():
            if difference:
                lines.append(f"measurements of {counted(number, 'layer')} were made with "
                             f"{difference}: measured again")
        for name, number in Counter(name for name, _ in self._outdated).items():
            lines.append(f"measurements of {counted(number, 'layer')} by {name} were made before "
                         "it was changed: measured again")
        return lines

    def _write(self) -> None:
        with locked(self.path.parent) as lock:
            if lock == "busy":
                self._say(f"another process keeps {self.path.parent} locked: measurements are "
                          "in memory only until it is free")
                return
            content = self._read(lock)
            if content is None:
                return
            section = self._section(content)
            _merge(section["problems"], self._unwritten["problems"])
            section.setdefault("plans", {}).update(self._unwritten["plans"])
            if lock == "held":
                sweep(self.path.parent)
            data = self._texts.of(content)
            if write_atomically(self.path, data):
                self._unwritten = {"problems": {}, "plans": {}}
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

    def _section(self, content: dict[str, Any],
                 made_by: dict[str, str] | None = None) -> Section:
        """Returns the section of a driver, toolkit and gossamer version, by default those of this
        process; adds it where it is missing."""
        made_by = self._made_by if made_by is None else made_by
        for section in content["sections"]:
            if section["made_by"] == made_by:
                return section  # type: ignore[no-any-return]
        content["sections"].append({"made_by": made_by, "problems": {}})
        return content["sections"][-1]  # type: ignore[no-any-return]

    def _note_other_sections(self, key: str) -> None:
        """Records how the section that is most like this process's, among those with measurements
        of a problem, differs from it."""
        assert self._content is not None
        differences = [
            [f"{name} {before or 'none'}, now {now or 'none'}"
             for name, now in self._made_by.items()
             if (before := section["made_by"].get(name, "")) != now]
            for section in self._content["sections"] if key in section["problems"]]
        nearest = min(differences, key=len, default=[])
        self._foreign[key] = " and ".join(nearest)

    def _say(self, line: str) -> None:
        self._messages[line] = None


def file_name(device: Device) -> str:
    """Returns the name of a device's file, such as 'cuda-NVIDIA-H200-sm_90-1a2b3c4d.json', which is
    the same for all devices of one kind."""
    identity = f"{device.api}\0{device.description}\0{device.limits.compute_units}"
    readable = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{device.api}-{device.description}")
    return f"{readable[:80].strip('-')}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}.json"


def _device_text(device: Mapping[str, Any]) -> str:
    """Returns the device of a file of measurements in words."""
    return (f"{device['description']} ({device['api']}, "
            f"{counted(device['compute_units'], 'compute unit')})")


def _versions_text(made_by: Mapping[str, str]) -> str:
    """Returns the driver, toolkit and gossamer that a section was made with in words."""
    return ", ".join(f"{name} {version}" for name, version in made_by.items() if version)


def _merge(target: dict[str, Any], added: dict[str, Any]) -> None:
    """Adds problems to others; of two measurements of one candidate the added one remains."""
    for problem, entry in added.items():
        algorithms = target.setdefault(problem, {**entry, "algorithms": {}})["algorithms"]
        for name, new in entry["algorithms"].items():
            old = algorithms.get(name)
            lines = [*new["candidates"]]
            if old is not None and old["source"] == new["source"]:
                lines = [*old["candidates"], *lines]
            merged = {decode(name, line).candidate_key: line for line in lines}
            algorithms[name] = {"source": new["source"],
                                "candidates": [merged[key] for key in sorted(merged)]}


def _sources(op: str, device: Device) -> dict[str, str]:
    """Returns the identity of each algorithm of an op on a device, by the algorithm's name."""
    return {algorithm.name: identity(algorithm, device) for algorithm in OPS[op].algorithms}
