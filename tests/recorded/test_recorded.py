"""Records are compared case by case."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path

import numpy as np
import pytest

from tests.recorded import LONGEST, SHOWN, as_text, compare, digest


def test_what_differs_is_named(tmp_path: Path) -> None:
    compare("a", {"one": "1\n2", "two": "a\\n: b"}, True, tmp_path)
    compare("a", {"one": "1\n2", "two": "a\\n: b"}, False, tmp_path)
    for now, shown in (({"one": "1\n2"}, "two\n  recorded: a\\\\\\\\n: b\n  now:      nothing"),
                       ({"one": "1", "two": "a\\n: b"}, "one\n  recorded: 1\\\\n2\n  now:      1"),
                       ({"one": "1\n2", "two": "a\\n: b", "three": "3"},
                        "three\n  recorded: nothing\n  now:      3")):
        with pytest.raises(AssertionError) as error:
            compare("a", now, False, tmp_path)
        assert shown.replace("\\\\", "\\") in str(error.value)


def test_a_failure_shows_a_few(tmp_path: Path) -> None:
    compare("a", {}, True, tmp_path)
    with pytest.raises(AssertionError, match=f"{SHOWN + 3} of {SHOWN + 3} cases differ") as error:
        compare("a", {str(index): "" for index in range(SHOWN + 3)}, False, tmp_path)
    assert str(error.value).count("recorded: nothing") == SHOWN


def test_long_texts_are_kept_by_their_beginning(tmp_path: Path) -> None:
    text = "a" * LONGEST
    compare("a", {"one": text, "two": text + "b"}, True, tmp_path / "new")
    one, two = (tmp_path / "new" / "a.txt").read_text().splitlines()
    assert one == f"one: {text}" and two == f"two: {'a' * 200}... {digest(text + 'b')}"
    with pytest.raises(AssertionError, match="1 of 2 cases"):
        compare("a", {"one": text, "two": text + "c"}, False, tmp_path / "new")


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"b\.txt does not exist; run the test with --record"):
        compare("b", {"one": "1"}, False, tmp_path)
    with pytest.raises(AssertionError, match="no colon and space"):
        compare("b", {"one: two": "1"}, True, tmp_path)


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass(frozen=True)
class Point:
    x: float
    name: str = dataclasses.field(default="", compare=False)


def test_texts() -> None:
    assert as_text([None, True, 3, "a", 0.1, np.float32(0.5), np.int64(4), Colour.RED]) == (
        "(None, True, 3, 'a', 0.1, 0.5, 4, Colour.RED)")
    assert as_text({"b": {3, 1, 2}, "a": Point(1.0)}) == "{'b': {1, 2, 3}, 'a': Point(x=1)}"
    assert as_text((Point, as_text, np.dtype("int8"))) == "(Point, as_text, int8)"
    first, second = np.arange(4), np.arange(4).reshape(2, 2)
    assert len({as_text(first), as_text(second), as_text(first[::-1]),
                as_text(first.astype(np.float32))}) == 4
    assert as_text(second.T.copy()) == as_text(second.T)
    assert as_text(b"a") != as_text(b"b") and len(digest(b"a")) == 8
    assert digest([1, 2]) != digest([2, 1])


def test_what_has_no_text() -> None:
    with pytest.raises(TypeError, match="a object has no text"):
        as_text(object())
