"""Results of many drawn cases, kept as texts that tests compare with what the code gives now.

A lost candidate, another order, a message that names the wrong node: such changes make no output
wrong, so that a test of outputs does not see them. A test collects what the code gives for its
cases, one text each, and hands them to the fixture `recorded`; the texts of a test in
`tests/FOLDER` are kept in `tests/recorded/FOLDER/NAME.txt`, long texts by their beginning and a
digest. Where a change is intended, `pytest --record` with the test writes the file again, and the
difference is read like other code before it is committed.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
SHOWN = 8
"""Number of differences that a failure shows."""
LONGEST = 240
"""The most characters of a text that is kept as a whole."""
_BEGINNING = 200
"""Number of characters that are kept of a longer text."""


def compare(name: str, found: Mapping[str, str], record: bool, folder: Path = FOLDER) -> None:
    """Compares the texts of the cases with the file of that name; writes the file instead if it is
    to be recorded. Fails where a case is new, gone or different."""
    path = folder / f"{name}.txt"
    lines = {_in_one_line(case): _in_one_line(_shortened(text)) for case, text in found.items()}
    assert not any(": " in case for case in lines), "the name of a case has no colon and space"
    if record:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{case}: {text}\n" for case, text in lines.items()))
        return
    assert path.exists(), f"{path} does not exist; run the test with --record"
    kept = dict(line.split(": ", 1) for line in path.read_text().splitlines())
    different = [f"{case}\n  recorded: {kept.get(case, 'nothing')}\n  now:      "
                 f"{lines.get(case, 'nothing')}"
                 for case in dict.fromkeys([*kept, *lines]) if kept.get(case) != lines.get(case)]
    assert not different, (
        f"{len(different)} of {len(lines)} cases differ from {path}; if that is intended, run the "
        "test with --record and read the difference:\n" + "\n".join(different[:SHOWN]))


def _in_one_line(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _shortened(text: str) -> str:
    """Returns a text, or the beginning of a long text with a digest of the whole text."""
    return text if len(text) <= LONGEST else f"{text[:_BEGINNING]}... {digest(text)}"


def digest(value: Any) -> str:
    """Returns eight hexadecimal digits that differ for values that differ."""
    return hashlib.blake2b(as_text(value).encode(), digest_size=4).hexdigest()


def as_text(value: Any) -> str:
    """Returns a text of a value that is the same in every process: sets are sorted, arrays are
    digests, floats have nine digits. Raises TypeError for values without such a text."""
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | str):
        return repr(value)
    if isinstance(value, float | np.floating):
        return f"{float(value):.9g}"
    if isinstance(value, np.integer | np.bool_):
        return repr(value.item())
    if isinstance(value, bytes):
        return f"bytes {hashlib.blake2b(value, digest_size=4).hexdigest()}"
    if isinstance(value, np.ndarray):
        content = hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=4)
        return f"{value.dtype}{list(value.shape)} {content.hexdigest()}"
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        return str(value.__qualname__)
    if isinstance(value, np.dtype):
        return str(value)
    if dataclasses.is_dataclass(value):
        fields = (f"{field.name}={as_text(getattr(value, field.name))}"
                  for field in dataclasses.fields(value) if field.compare)
        return f"{type(value).__name__}({', '.join(fields)})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{as_text(key)}: {as_text(each)}' for key, each in value.items())}}}"
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(as_text, value)))}}}"
    if isinstance(value, list | tuple):
        return f"({', '.join(map(as_text, value))})"
    raise TypeError(f"a {type(value).__name__} has no text that is the same in every process; "
                    "record its parts")


Recorded = Callable[[str, Mapping[str, str]], None]
"""The type of the fixture `recorded`: takes the name of the file and the text of each case."""
