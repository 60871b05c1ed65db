"""Tests of reading pictures ahead: whatever reads them, the batches are the same."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.io import picture_batches as module
from gossamer.io.picture_batches import PictureBatch, picture_batches
from gossamer.io.process_pool import ProcessEndedError
from gossamer.io.shared_memory import SharedMemory

HOW = ("threads", "processes", "processes without shared memory", "processes without room in it",
       "no process", "no process without shared memory")
FORM = (2, 3), np.dtype(np.int32)


@dataclass(frozen=True)
class NumberReader:
    """Makes pictures of the names of files: a number, "bad", or number:side for one with a size of
    its own. keeps_size: whether pictures have sizes of their own."""

    keeps_size: bool = False

    def form(self) -> Any:
        return None if self.keeps_size else FORM

    def __call__(self, file: str) -> np.ndarray | str:
        if file == "bad":
            return "is bad"
        number, _, side = file.partition(":")
        return np.full((2, int(side or 3)), int(number), np.int32)


class ProcessReader(NumberReader):
    """One whose pictures are the numbers of the processes that read them."""

    def __call__(self, file: str) -> np.ndarray | str:
        return np.full((2, 3), os.getpid(), np.int32)


class EndingReader(NumberReader):
    """One that ends its process."""

    def __call__(self, file: str) -> np.ndarray | str:
        assert Path("/proc/self/oom_score_adj").read_text().strip() == "500", "no pool's process"
        os.kill(os.getpid(), 9)
        return ""


def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that grows by the address of every array in shared memory."""
    found = []
    empty = SharedMemory.empty

    def noted(memory: SharedMemory, *arguments: Any) -> Any:
        array = empty(memory, *arguments)
        found.append(array.ctypes.data)
        return array

    monkeypatch.setattr(SharedMemory, "empty", noted)
    return found


def by_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PROCESSORS", 1)
    monkeypatch.setattr(module, "_FILES", 1)


def prepared(how: str, monkeypatch: pytest.MonkeyPatch, keeps_size: bool = False) -> NumberReader:
    """Has pictures read in one of the ways of HOW, and returns what reads them."""
    if how != "threads":
        by_processes(monkeypatch)
    if how.endswith("without shared memory"):
        monkeypatch.delattr(os, "memfd_create", raising=False)
    if how.endswith("room in it"):
        monkeypatch.setattr("gossamer.io.shared_memory._MOST_BYTES", 2**14)
    if how.startswith("no process"):
        monkeypatch.setattr("sys.executable", "")
    return NumberReader(keeps_size)


def expected(reader: NumberReader, files: list[str], batch: int) -> Iterator[PictureBatch]:
    """Yields the batches as one loop makes them."""
    errors: list[str] = []
    pictures: list[np.ndarray] = []
    for file in files:
        picture = reader(file)
        if not isinstance(picture, str):
            if pictures and (len(pictures) == batch or picture.shape != pictures[0].shape):
                yield PictureBatch(errors, np.stack(pictures))
                errors, pictures = [], []
            pictures.append(picture)
        errors.append(picture if isinstance(picture, str) else "")
    if errors:
        yield PictureBatch(errors, np.stack(pictures) if pictures else None)


def assert_same(found: list[PictureBatch], right: list[PictureBatch]) -> None:
    assert [part.errors for part in found] == [part.errors for part in right]
    for part, other in zip(found, right, strict=True):
        np.testing.assert_array_equal(part.pictures, other.pictures)  # type: ignore[arg-type]


def names(count: int, bad: int = 0) -> list[str]:
    """Returns the names of files, of which each so many-th is bad."""
    return ["bad" if bad and index % bad == bad // 2 else str(index) for index in range(count)]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("batch", [1, 5, 32, 200])
def test_batches_come_in_order(monkeypatch: pytest.MonkeyPatch, how: str, batch: int) -> None:
    reader = prepared(how, monkeypatch)
    files = names(99)
    found = list(picture_batches(reader, files, 2, batch))
    assert_same(found, list(expected(NumberReader(), files, batch)))


@pytest.mark.parametrize("how", HOW[:2])
@pytest.mark.parametrize("count, bad, batch", [
    (0, 0, 4), (1, 0, 4), (99, 7, 4), (99, 2, 1), (70, 33, 32), (5, 1, 2), (40, 1, 2),
    (99, 50, 99)])
def test_files_that_cannot_be_read_count_in_no_batch(
        monkeypatch: pytest.MonkeyPatch, how: str, count: int, bad: int, batch: int) -> None:
    reader = prepared(how, monkeypatch)
    files = names(count, bad)
    assert_same(list(picture_batches(reader, files, 2, batch)),
                list(expected(reader, files, batch)))


@pytest.mark.parametrize("how", HOW[:2])
@pytest.mark.parametrize("batch", [1, 2, 3, 40])
def test_pictures_of_sizes_of_their_own(monkeypatch: pytest.MonkeyPatch, how: str,
                                        batch: int) -> None:
    reader = prepared(how, monkeypatch, keeps_size=True)
    files = ["bad", *(f"{index}:{4 + index % 7 // 3}" for index in range(40)), "bad", "41:9", "bad"]
    assert_same(list(picture_batches(reader, files, 2, batch)),
                list(expected(reader, files, batch)))


@pytest.mark.parametrize("batch", [1, 16, 48])
def test_other_processes_put_pictures_where_they_stay(monkeypatch: pytest.MonkeyPatch,
                                                      batch: int) -> None:
    by_processes(monkeypatch)
    blocks = taken(monkeypatch)
    parts = list(picture_batches(ProcessReader(), names(192), 2, batch))
    assert os.getpid() not in {int(number) for part in parts for number in part.pictures.flat}
    assert blocks and set(blocks) <= {part.pictures.ctypes.data for part in parts}


def test_memory_does_not_grow_with_the_number_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    by_processes(monkeypatch)
    blocks = taken(monkeypatch)
    for part in picture_batches(NumberReader(), names(1600), 2, 16):
        del part
    assert len(blocks) == 100 and len(set(blocks)) < 25


def test_a_process_that_ends_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    by_processes(monkeypatch)
    with pytest.raises(ProcessEndedError, match="read pictures was ended by signal 9"):
        list(picture_batches(EndingReader(), ["0"], 1, 1))
