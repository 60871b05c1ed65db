"""The form in which the measurements of one device travel: JSON, all of which is checked."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, fields
from typing import Any, get_args, get_type_hints

from gossamer.errors import cut, quoted
from gossamer.measure import Timing
from gossamer.plan.measurement import Measurement, rounded

FORMAT = "gossamer measurements"
VERSION = 8
Section = dict[str, Any]
"""What one combination of driver, toolkit and gossamer version measured: problems, plans and checks
by key."""
_MOST_NESTED = 50
"""Most levels of the fields of a problem, several times as many as any has."""

_KINDS = {name: hint for name, hint in get_type_hints(Measurement).items() if name != "algorithm"}
_TIMING = tuple(field.name for field in fields(Timing))


class BadFile(Exception):
    """Raised for a file without valid measurements. kind: a word for the file's new name."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def encode(measured: Measurement) -> dict[str, Any]:
    """Returns a measurement as JSON values, without the algorithm, which is its key in the file."""
    line = {name: getattr(measured, name) for name in _KINDS}
    line.update(inputs=list(measured.inputs), outputs=list(measured.outputs))
    if measured.error is not None and not math.isfinite(measured.error):
        line["error"] = str(measured.error)
    return line


def decode(algorithm: str, line: dict[str, Any]) -> Measurement:
    """Returns the measurement that encode() wrote. Raises ValueError for other values."""
    if set(line) != set(_KINDS):
        raise ValueError(f"a candidate of {algorithm} has the fields {', '.join(sorted(line))}")
    values = dict(line)
    if isinstance(line["error"], str):
        values["error"] = float(line["error"])
    for name, kind in _KINDS.items():
        if not _is(values[name], kind):
            raise ValueError(f"a candidate of {algorithm} has {name} {line[name]}")
    if bool(line["search"]) != line["not_tried"]:
        raise ValueError(f"a candidate of {algorithm} is of the search {line['search']!r}")
    values.update(inputs=tuple(line["inputs"]), outputs=tuple(line["outputs"]))
    return Measurement(algorithm, **values)


def _is(value: Any, kind: Any) -> bool:
    """Whether a JSON value is of the type of a field of Measurement."""
    if kind == tuple[str, ...]:
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    kinds = get_args(kind) or (kind,)
    if type(value) is int:
        return float in kinds or (int in kinds and value >= 0)
    return type(value) in kinds


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
        raise other_version(version)
    with damage_named():
        check(content)
    return content


def text(content: dict[str, Any]) -> bytes:
    """Returns the text of a file, which is the same for the same content."""
    return (json.dumps(content, sort_keys=True, allow_nan=False, indent=1) + "\n").encode()


def other_version(version: int) -> BadFile:
    """Returns the error for a file of another version."""
    age = "newer" if version > VERSION else "older"
    return BadFile(age, f"was written by {'a' if age == 'newer' else 'an'} {age} gossamer "
                        f"(format {quoted(version)}, this one reads {VERSION})")


@contextlib.contextmanager
def damage_named() -> Iterator[None]:
    """In the body, errors that values of other types cause are raised as BadFile."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError,
            RecursionError) as error:
        raise BadFile("corrupt", f"is damaged ({type(error).__name__}: {error})") from None


def _finite(text: str) -> float:
    """Returns the number of a text. Raises ValueError for one that JSON does not have."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {cut(text)}")
    return number


def check(content: dict[str, Any]) -> None:
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
