"""The harness finds what it looks for, and every reader stands a short run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from gossamer.errors import CompileError, InputError
from tests.fuzz import harness
from tests.fuzz.harness import KEPT, Outcome, applied, fuzz, mutation, outcome
from tests.fuzz.mutators import any_bytes
from tests.fuzz.targets import TARGETS, Target, read
from tests.processes import python

SHORT = 40
"""Mutations of each reader that the tests try; `make fuzz` tries many more."""


def found(action: Callable[[Path], object], folder: Path) -> Outcome:
    target = Target(lambda: [{"file": b"x"}], any_bytes, action, ("no such kind",))
    return outcome(target, {"file": b"x"}, folder)


def refuses(message: str) -> Callable[[Path], object]:
    return Mock(side_effect=InputError(message))


def test_what_is_read_or_refused_is_no_failure(tmp_path: Path) -> None:
    assert found(lambda path: path.read_bytes(), tmp_path) == Outcome()
    assert found(refuses("file: line 3: wrong"), tmp_path) == Outcome(refused=True)
    assert found(refuses("no such kind"), tmp_path) == Outcome(refused=True, passed=False)


def test_other_errors_and_messages_of_several_lines_are_failures(tmp_path: Path) -> None:
    two_lines = Mock(side_effect=CompileError("a\nb"))

    def divides(path: Path) -> float:
        return 1 / (len(path.read_bytes()) - 1)

    assert found(two_lines, tmp_path).failure.startswith("message of 3 characters")
    assert found(divides, tmp_path).failure.startswith("ZeroDivisionError at ")


def test_limits_of_time_and_memory(tmp_path: Path) -> None:
    script = (
        "import os\n"
        "from pathlib import Path\n"
        "from tests.fuzz import harness\n"
        "from tests.fuzz.test_harness import found\n"
        "harness.SECONDS = 0.2\n"
        "harness.prepare()\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "def forever(path):\n    while True:\n        pass\n"
        "print(found(forever, folder).failure)\n"
        "print(found(lambda path: bytearray(3 * 2**30), folder).failure)\n"
        "print(found(lambda path: os.system('true'), folder).failure)\n")
    finished = python(script, cwd=Path(__file__).parents[2])
    forever, memory, program = finished.stdout.splitlines()
    assert forever.startswith("longer than 0.2 s") and memory.startswith("MemoryError")
    assert program == "starts os.system"


def test_mutations_are_the_same_each_time() -> None:
    for name, target in TARGETS.items():
        once, again = (applied(target, *mutation(name, 3, 5)) for _ in range(2))
        assert once == again, name


def test_seeds_are_read(tmp_path: Path) -> None:
    for index, (name, target) in enumerate(TARGETS.items()):
        for number, files in enumerate(target.corpus):
            folder = tmp_path / f"{index}.{number}"
            folder.mkdir()
            try:
                read(target, files, folder)
            except InputError as error:
                pytest.fail(f"{name}: {error}")


@pytest.mark.parametrize("name", TARGETS)
def test_a_short_run(name: str) -> None:
    counts = fuzz(name, SHORT)
    assert counts.mutations == SHORT
    assert not counts.failures
    assert counts.passed > SHORT / 3


def test_what_failed_once(tmp_path: Path) -> None:
    for about in sorted(KEPT.glob("*/about.json")):
        case = json.loads(about.read_text())
        files = {name: (about.parent / name).read_bytes() for name in case["files"]}
        failure = outcome(TARGETS[case["target"]], files, tmp_path).failure
        assert not failure, about.parent.name


def test_a_failure_is_reduced_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_it(path: Path) -> None:
        if b"!" in path.read_bytes():
            raise ZeroDivisionError

    def mark(data: bytes, rng: random.Random) -> bytes:
        return data + rng.choice((b"!", b".", b","))

    target = Target(lambda: [{"file": b"x"}], mark, read_it, ())
    monkeypatch.setitem(TARGETS, "marks", target)
    monkeypatch.setattr(harness, "KEPT", tmp_path / "kept")
    index = next(index for index in range(1000) if len(mutation("marks", 0, index)[1]) == 3
                 and b"!" in applied(target, *mutation("marks", 0, index))["file"])
    failure = outcome(target, applied(target, *mutation("marks", 0, index)), tmp_path).failure
    files = harness.minimised("marks", 0, index, failure, tmp_path)
    assert files == {"file": b"x!"}
    folder = harness.keep("marks", files, failure)
    assert json.loads((folder / "about.json").read_text())["target"] == "marks"
    assert (folder / "file").read_bytes() == b"x!"
