"""The file of one device's measurements: its format, its lock, and how a bad file is set aside."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Literal

from gossamer.errors import cut, quoted
from gossamer.measure import Timing
from gossamer.plan.measurement import TIMES, Measurement, rounded

try:
    import fcntl
except ImportError:  # Windows: two writers at once may lose each other's latest entries there
    fcntl = None  # type: ignore[assignment]

FORMAT = "gossamer measurements"
VERSION = 7
_LOCK_SECONDS = 10.0
_MOST_NESTED = 50
"""Most levels of the fields of a problem, several times as many as any has."""

_FIELDS = {field.name for field in fields(Measurement)} - {"algorithm"}
_TIMING = tuple(field.name for field in fields(Timing))


class BadFile(Exception):
    """Raised for a file without valid measurements. kind: a word for the file's new name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def encode(measured: Measurement) -> dict[str, Any]:
    """Returns a measurement as JSON values, without the algorithm, which is its key in the file."""
    line = {name: getattr(measured, name) for name in _FIELDS}
    line.update(inputs=list(measured.inputs), outputs=list(measured.outputs))
    if measured.error is not None and not math.isfinite(measured.error):
        line["error"] = str(measured.error)
    return line


def decode(algorithm: str, line: dict[str, Any]) -> Measurement:
    """Returns the measurement that encode() wrote. Raises ValueError for other values."""
    if set(line) != _FIELDS:
        raise ValueError(f"a candidate of {algorithm} has the fields {', '.join(sorted(line))}")
    inputs, outputs, error = line["inputs"], line["outputs"], line["error"]
    texts = [line["config"], line["precision"], line["weights"], line["search"]]
    if line["failure"] is not None:
        texts.append(line["failure"])
    if not all(isinstance(layouts, list) for layouts in (inputs, outputs)) or not all(
            isinstance(text, str) for text in (*texts, *inputs, *outputs)):
        raise ValueError(f"a candidate of {algorithm} is described by other than text")
    times = {name: line[name] for name in TIMES}
    if not all(value is None or type(value) in (int, float) for value in times.values()):
        raise ValueError(f"a candidate of {algorithm} has the times {times}")
    if type(line["samples"]) is not int or line["samples"] < 0:
        raise ValueError(f"a candidate of {algorithm} has {line['samples']} samples")
    if bool(line["search"]) != line["not_tried"]:
        raise ValueError(f"a candidate of {algorithm} is of the search {line['search']!r}")
    cached, nbytes = line["build_cached"], line["device_bytes"]
    for name in ("wrong_numbers", "not_tried"):
        if type(line[name]) is not bool:
            raise ValueError(f"a candidate of {algorithm} has {name} {line[name]}")
    if type(cached) is not bool or (nbytes is not None
                                    and (type(nbytes) is not int or nbytes < 0)):
        raise ValueError(f"a candidate of {algorithm} keeps {nbytes} bytes, cached: {cached}")
    return Measurement(algorithm, line["config"], tuple(inputs), tuple(outputs), line["precision"],
                       error=None if error is None else float(error), failure=line["failure"],
                       not_tried=line["not_tried"], search=line["search"],
                       wrong_numbers=line["wrong_numbers"],
                       samples=line["samples"], weights=line["weights"], build_cached=cached,
                       device_bytes=nbytes, **times)


def encode_plan(description: str, timing: Timing) -> dict[str, Any]:
    """Returns the time of a plan from end to end as JSON values."""
    return {"plan": description, **asdict(rounded(timing))}


def decode_plan(line: dict[str, Any]) -> Timing:
    """Returns the time that encode_plan() wrote. Raises ValueError for other values."""
    if set(line) != {"plan", *_TIMING} or not isinstance(line["plan"], str):
        raise ValueError(f"a plan has the fields {', '.join(sorted(line))}")
    numbers = [line[name] for name in _TIMING]
    if not all(type(number) in (int, float) and 0 <= number < math.inf for number in numbers):
        raise ValueError(f"a plan has the times {numbers}")
    return rounded(Timing(*numbers))


def parse(data: bytes) -> dict[str, Any]:
    """Returns the content of a file, all of which is checked. Raises BadFile."""
    try:
        content = json.loads(data, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise BadFile("corrupt", f"is corrupt or cut short ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadFile("foreign", "is no file of measurements of gossamer's")
    version = content.get("version")
    if type(version) is int and version != VERSION:
        age = "newer" if version > VERSION else "older"
        raise BadFile(age, f"was written by {'a' if age == 'newer' else 'an'} {age} gossamer "
                           f"(format {quoted(version)}, this one reads {VERSION})")
    try:
        _check(content)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise BadFile("corrupt", f"is damaged ({type(error).__name__}: {error})") from None
    return content


def _finite(text: str) -> float:
    """Returns the number of a text. Raises ValueError for one that JSON does not have."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {cut(text)}")
    return number


def _check(content: dict[str, Any]) -> None:
    """Raises one of several errors where a file's content is not valid."""
    if content["version"] != VERSION:
        raise ValueError(f"its format is {content['version']!r}")
    device = content["device"]
    if not all(isinstance(device[name], str) for name in ("api", "description")):
        raise TypeError("its device has no name")
    if type(device["compute_units"]) is not int:
        raise TypeError("its device has no number of compute units")
    for section in content["sections"]:
        if not all(isinstance(text, str) for text in section["made_by"].values()):
            raise TypeError("it does not say what the measurements were made by")
        for problem in section["problems"].values():
            if not isinstance(problem["problem"], str):
                raise TypeError("a problem has no description")
            _check_nesting(problem["fields"])
            for name, algorithm in problem["algorithms"].items():
                if not isinstance(algorithm["source"], str):
                    raise TypeError(f"{name} has no source hash")
                for line in algorithm["candidates"]:
                    decode(name, line)
        for line in section.get("plans", {}).values():
            decode_plan(line)
        if not all(isinstance(text, str) for text in section.get("checks", {}).values()):
            raise TypeError("a check is no text")


def _check_nesting(fields: Any) -> None:
    """Raises ValueError where the fields of a problem are nested so deeply that a reader with less
    room for recursion could not read the file that they are in."""
    level = [fields]
    for _ in range(_MOST_NESTED):
        level = [item for value in level if isinstance(value, dict | list)
                 for item in (value.values() if isinstance(value, dict) else value)]
    if level:
        raise ValueError(f"the fields of a problem are nested more than {_MOST_NESTED} deep")


def count(section: dict[str, Any]) -> tuple[int, int, int]:
    """Returns the numbers of problems, candidates and plans in a section."""
    problems = section["problems"].values()
    candidates = sum(len(algorithm["candidates"]) for problem in problems
                     for algorithm in problem["algorithms"].values())
    return len(problems), candidates, len(section.get("plans", {}))


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[Literal["held", "busy", "absent"]]:
    """Takes the folder's lock and releases it afterwards. The value is "held" where this process
    has it, "busy" where another process has held it for too long, and "absent" where the folder or
    its file system has none."""
    descriptor = None
    with contextlib.suppress(OSError):
        if fcntl is not None:
            folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT, 0o666)
    if descriptor is None:
        yield "absent"
        return
    try:
        state = _acquire(descriptor)
        try:
            yield state
        finally:
            if state == "held":
                # a forked child may have the descriptor too, so that closing it would not unlock
                fcntl.flock(descriptor, fcntl.LOCK_UN)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int) -> Literal["held", "busy", "absent"]:
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "held"
        except BlockingIOError:
            if time.monotonic() > end:
                return "busy"
            time.sleep(0.002)
        except OSError:
            return "absent"


def sweep(folder: Path) -> None:
    """Removes the partial files of killed writers; only the holder of the lock may call this."""
    for path in folder.glob(".partial-*"):
        with contextlib.suppress(OSError):
            path.unlink()


def set_aside(path: Path, kind: str) -> str:
    """Renames a bad file to a new name that says what it is, and returns that. Raises OSError."""
    number = 1
    while True:
        target = path.with_name(f"{path.name}.{kind}" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(target):
            path.rename(target)
            return target.name
        number += 1
