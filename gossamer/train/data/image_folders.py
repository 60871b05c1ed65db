"""Labelled pictures in folders: one folder a class, named after it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from gossamer.errors import InputError
from gossamer.io.images import load_image
from gossamer.train.data.dataset import Dataset

SUFFIXES = (".bmp", ".png", ".jpg", ".jpeg")


def read(folder: Path, limit: int | None) -> Dataset:
    """The pictures of a folder's folders, in grey, all of one size; labelled with the folders'
    names, or int64 where all of them are whole numbers. Other files and hidden folders are passed
    over. `limit`: the most samples.

    The classes are evenly mixed, each in the order of its files' names: trained on one class
    after the other, a network forgets the first.
    """
    classes = sorted(entry for entry in folder.iterdir()
                     if entry.is_dir() and not entry.name.startswith((".", "__")))
    if not classes:
        raise InputError(f"{folder}: has no folders; expected one a class, with pictures "
                         f"({', '.join(SUFFIXES)}), or files to train on")
    found: list[tuple[float, int, Path]] = []
    for index, each in enumerate(classes):
        files = sorted(file for file in each.iterdir() if file.suffix.lower() in SUFFIXES
                       and not file.name.startswith("."))
        if not files:
            raise InputError(f"{each}: the class has no pictures ({', '.join(SUFFIXES)})")
        found += [((place + 0.5) / len(files), index, file) for place, file in enumerate(files)]
    found = sorted(found)[:limit]
    first = found[0][2]
    shape = _grey(first).shape
    x = np.empty((len(found), shape[0] * shape[1]), np.float32)
    for row, (_, _, file) in zip(x, found, strict=True):
        pixels = _grey(file)
        if pixels.shape != shape:
            raise InputError(f"{file}: is {pixels.shape[0]}x{pixels.shape[1]}, {first} is "
                             f"{shape[0]}x{shape[1]}; expected pictures of one size (height x "
                             "width)")
        row[:] = pixels.reshape(-1)
    y = _labels([each.name for each in classes])[[index for _, index, _ in found]]
    return Dataset(x, y, (shape[0], shape[1]), True, str(folder))


def _grey(path: Path) -> np.ndarray:
    return np.asarray(Image.fromarray(load_image(path)).convert("L"))


def _labels(names: list[str]) -> np.ndarray:
    if all(name.isascii() and name.isdigit() for name in names) \
            and len(set(map(int, names))) == len(names):
        return np.array(list(map(int, names)))
    return np.array(names)
