"""Records of pictures that are read ahead: the blocks and groups of files, and their batches."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from gossamer.io import picture_batches, shared_blocks
from gossamer.io.picture_batches import PictureBatch
from gossamer.io.process_pool import NoProcessError
from tests.recorded import Recorded


class Reader:
    """Makes a picture of the number in a file's name; files whose name has an x are damaged."""

    def __init__(self, widths: int = 1) -> None:
        self._widths = widths

    def form(self) -> picture_batches.Form | None:
        return None if self._widths > 1 else ((1, 2), np.dtype(np.uint8))

    def __call__(self, file: str) -> np.ndarray | str:
        if "x" in file:
            return f"{file} is damaged"
        width = 2 if self._widths == 1 else 1 + int(file) % self._widths
        return np.full((1, width), int(file), np.uint8)


def names_of(rng: random.Random, count: int) -> list[str]:
    return [f"{index}{'x' if rng.random() < 0.2 else ''}" for index in range(count)]


def shown(batches: Sequence[PictureBatch]) -> str:
    texts = []
    for batch in batches:
        pictures = batch.pictures
        values = "" if pictures is None else f"{pictures.shape} {pictures[:, 0, 0].tolist()}"
        texts.append(f"{[error[:3] for error in batch.errors]}{values}")
    return " ".join(texts).replace(", ", ",").replace("''", "")


def test_batches_of_pictures(recorded: Recorded) -> None:
    rng = random.Random(0)
    found = {}
    for count, batch, widths in itertools.product((0, 1, 2, 3, 4, 5, 15, 16, 17, 40),
                                                  (1, 2, 3, 16, 17), (1, 2, 3)):
        names = names_of(rng, count)
        found[f"{count} by {batch} of {widths}"] = shown(list(picture_batches.picture_batches(
            Reader(widths), names, 2, batch)))
    recorded("io_batches", found)


def test_blocks_and_groups(recorded: Recorded) -> None:
    """Records which groups of files are read, when the pictures of a block are waited for, and what
    becomes of answers that bring pictures which shared memory had no room for."""
    rng = random.Random(1)
    found = {}
    for count, size, group, ahead, is_shared in itertools.product(
            (1, 2, 5, 6, 11), (1, 2, 3, 6), (1, 2, 4), (1, 2, 3, 6), (False, True)):
        names = names_of(rng, count)
        reader = Reader()
        notes: list[str] = []
        memory: Any = None
        if is_shared:
            memory = shared_blocks.SharedBlocks(size * 2)

        is_full = rng.random() < 0.3

        def submit(part: Sequence[str], place: int | None, notes: list[str] = notes,
                   memory: Any = memory, reader: Reader = reader,
                   is_full: bool = is_full) -> Future[Any]:
            notes.append(f"{','.join(part)}@{place}")
            future: Future[Any] = Future()
            target = None if place is None else (*memory.descriptors, place)
            if rng.random() < 0.1:
                future.set_exception(NoProcessError("none left"))
            else:
                answer = picture_batches.read_group(reader, part, target)
                if is_full and place is not None:
                    answer[0] = reader(part[0])
                future.set_result(answer)
            return future

        parts = []
        for part in picture_batches._read(
                reader, picture_batches._blocks(names, reader.form(), size, memory),
                picture_batches._Pool(submit, group, ahead)):
            notes.append("took")
            parts.append(PictureBatch(part.errors, None if part.pictures is None
                                      else part.pictures.copy()))
            del part
        key = f"{count} {size} {group} {ahead} {is_shared}"
        # the places of blocks depend on the size of a page
        text = " ".join(notes) if not is_shared else " ".join(
            note.partition("@")[0] for note in notes)
        found[key] = f"{text} {shown(parts)}"
        if memory is not None:
            memory.close()
    recorded("io_blocks", found)


def test_pictures_in_shared_memory(recorded: Recorded) -> None:
    found = {}
    for first, count in itertools.product((0, 2, 6), (1, 2, 3)):
        (descriptor,) = (os.memfd_create("test"),)
        left = picture_batches.read_group(Reader(), ["7", "8x", "9"][:count], (descriptor, first))
        found[f"{first} {count}"] = f"{sorted(left)} {os.pread(descriptor, 99, 0)!r}"
        os.close(descriptor)
        found[f"closed {first} {count}"] = str(sorted(picture_batches.read_group(
            Reader(), ["7", "8x", "9"][:count], (descriptor, first))))
    for left in ({}, {0: "x"}, {1: "x", 2: "y"}):
        memory = np.arange(6, dtype=np.uint8).reshape(3, 1, 2)
        moved = picture_batches._moved(memory, dict.fromkeys(left, ""))
        found[f"moved {list(left)}"] = str(
            [moved[index].tolist() for index in range(3) if index not in left])
    for form in (None, ((2, 3), np.dtype(np.float32)), ((), np.dtype(np.uint8))):
        found[f"bytes of {form}"] = str(picture_batches._nbytes(form))
    recorded("io_shared", found)
