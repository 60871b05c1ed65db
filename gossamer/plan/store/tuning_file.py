"""The file format of exported measurements of one device: JSON, checked before any of it is used.
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any, get_args, get_type_hints

from gossamer.errors import cut, quoted
from gossamer.measure import Timing
from gossamer.plan.candidate import Measurement, rounded

FORMAT = "gossamer measurements"
VERSION = 12
Section = dict[str, Any]
"""The measurements of one combination of driver, toolkit and gossamer version: lines by key, for
each kind of KINDS."""

_FIELDS = {"problem": str, "source": str, **get_type_hints(Measurement),
           "error": float | str | None}
"""The fields of a candidate's line, with their types."""
_PLAN_FIELDS = {"plan": str, **get_type_hints(Timing)}
"""The fields of a plan's line, with their types."""


class BadFile(Exception):
    """Raised for a file without valid measurements.

    kind: a word that becomes part of the file's name when the file is set aside.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def candidate_key(problem: str, measured: Measurement) -> str:
    """Return the key of a candidate's line.

    problem: key of the candidate's problem.
    """
    return f"{problem} {json.dumps(measured.candidate_key)}"


def problem_of(key: str) -> str:
    """Return the problem's key, the beginning of a candidate's key."""
    return key.partition(" ")[0]


def encode(problem: str, source: str, measured: Measurement) -> dict[str, Any]:
    """Return a measurement as JSON values.

    problem: description of the problem.
    source: the identity of the candidate's algorithm on the device, as keys.identity() returns it.
    """
    line = {"problem": problem, "source": source, **vars(measured)}
    line.update(inputs=list(measured.inputs), outputs=list(measured.outputs))
    if measured.error is not None and not math.isfinite(measured.error):
        line["error"] = str(measured.error)
    return line


def decode(line: dict[str, Any]) -> Measurement:
    """Return the measurement that encode() wrote. Raises ValueError for other values."""
    values = _fields(line, _FIELDS, "a candidate")
    if isinstance(line["error"], str):
        values["error"] = float(line["error"])
    values.update(inputs=tuple(line["inputs"]), outputs=tuple(line["outputs"]))
    del values["problem"], values["source"]
    return Measurement(**values)


def encode_plan(description: str, timing: Timing) -> dict[str, Any]:
    """Return the end-to-end time of a plan as JSON values."""
    return {"plan": description, **asdict(rounded(timing))}


def decode_plan(line: dict[str, Any]) -> Timing:
    """Return the time that encode_plan() wrote. Raises ValueError for other values."""
    values = _fields(line, _PLAN_FIELDS, "a plan")
    del values["plan"]
    if min(values.values()) < 0:
        raise ValueError(f"a plan has the times {list(values.values())}")
    return rounded(Timing(**values))


def _fields(line: dict[str, Any], kinds: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Return a copy of a line after checking its fields.

    kinds: the expected type of each field.
    what: name of the line in messages.

    Raises ValueError if a field is missing, unknown or of another type.
    """
    if set(line) != set(kinds):
        raise ValueError(f"{what} has the fields {', '.join(sorted(line))}")
    for name, value in line.items():
        allowed = get_args(kinds[name]) or (kinds[name],)
        if kinds[name] == tuple[str, ...]:
            is_right = isinstance(value, list) and all(isinstance(item, str) for item in value)
        elif type(value) is int:
            is_right = float in allowed or (int in allowed and value >= 0)
        else:
            is_right = type(value) in allowed
        if not is_right:
            raise ValueError(f"{what} has {name} {value}")
    return dict(line)


def parse(data: bytes) -> dict[str, Any]:
    """Return a file's content after checking all of it.

    Raises BadFile.
    """
    try:
        content = json.loads(data, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise BadFile("corrupt", f"is corrupt or cut short ({error})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise BadFile("foreign", "is not a file of gossamer measurements")
    version = content.get("version")
    if type(version) is int and version != VERSION:
        raise other_version(version)
    with damage_named():
        check(content)
    return content


def text(content: dict[str, Any]) -> bytes:
    """Return the text of a file. Equal content gives equal text."""
    return (json.dumps(content, sort_keys=True, allow_nan=False, indent=1) + "\n").encode()


def other_version(version: int) -> BadFile:
    """Return the error for a file of another version."""
    age = "newer" if version > VERSION else "older"
    return BadFile(age, f"was written by {'a' if age == 'newer' else 'an'} {age} gossamer "
                        f"(format {quoted(version)}, this one reads {VERSION})")


@contextlib.contextmanager
def damage_named() -> Iterator[None]:
    """Turn errors of invalid values within a `with` block into BadFile.
    """
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError,
            RecursionError) as error:
        raise BadFile("corrupt", f"is damaged ({type(error).__name__}: {error})") from None


def _finite(text: str) -> float:
    """Return the number in a text.

    Raises ValueError for NaN and infinity, which JSON does not support.
    """
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {cut(text)}")
    return number


def check(content: dict[str, Any]) -> None:
    """Raise an error that damage_named() turns into BadFile if the content is invalid."""
    if content["version"] != VERSION:
        raise ValueError(f"its format is {content['version']!r}")
    device = content["device"]
    if not all(isinstance(device[name], str) for name in ("api", "description")):
        raise TypeError("its device has no name")
    if type(device["compute_units"]) is not int:
        raise TypeError("its device has no number of compute units")
    for section in content["sections"]:
        if not all(isinstance(text, str) for text in section["made_by"].values()):
            raise TypeError("it does not say with which versions the measurements were made")
        for kind, decode_line in KINDS.items():
            for line in section.get(kind, {}).values():
                decode_line(line)


def _decode_check(line: Any) -> None:
    """Raise TypeError for a line that describes no check."""
    if not isinstance(line, str):
        raise TypeError("a check is not a string")


KINDS: dict[str, Callable[[Any], Any]] = {
    "candidates": decode, "plans": decode_plan, "checks": _decode_check}
"""The kinds of lines of a section, each with the function that checks such a line."""


def count(section: Section) -> tuple[int, int, int]:
    """Return a section's numbers of problems, candidates and plans."""
    candidates = section.get("candidates", {})
    return len(set(map(problem_of, candidates))), len(candidates), len(section.get("plans", {}))
