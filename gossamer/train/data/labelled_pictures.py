"""Labelled pictures from MNIST's idx files, and from folders of classes.

An idx file has a big-endian header (two zero bytes, the type of its numbers, the number of
dimensions and their sizes as int32), followed by the numbers in row-major order
(http://yann.lecun.com/exdb/mnist). This module reads files of unsigned bytes: images of shape
(n, height, width) and labels of shape (n,).
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from PIL import Image

from gossamer.errors import InputError
from gossamer.io.images import load_image
from gossamer.io.limits import opened
from gossamer.train.data.dataset import Dataset

_IMAGES, _LABELS = ("images", "idx3"), ("labels", "idx1")
"""Words in the names of idx files of images, and of idx files of labels."""
_UNSIGNED_BYTES = 8
"""Type code of unsigned bytes in an idx file's header."""


def is_named_idx(name: str) -> bool:
    """Return whether a file's name is like that of an idx file."""
    return any(word in name.lower() for word in ("ubyte", "idx1", "idx3")) or name.endswith(".idx")


def holds_images(name: str) -> bool:
    """Return whether a file's name is like that of an idx file of images."""
    return is_named_idx(name) and any(word in name.lower() for word in _IMAGES)


def is_idx(path: Path) -> bool:
    """Return whether a file begins like an idx file."""
    with opened(path) as file:
        return file.read(3) == bytes((0, 0, _UNSIGNED_BYTES))


def read_idx(path: Path, limit: int | None) -> Dataset:
    """Return the samples of a pair of idx files.

    The names of the two files differ only in "images" and "labels", in "idx3" and "idx1", and in
    the suffix .gz.

    path: either of the two files.
    limit: maximum number of samples; None for all.
    """
    name = path.name.lower()
    has_labels = any(word in name for word in _LABELS)
    if has_labels == any(word in name for word in _IMAGES):
        raise InputError(f"{path}: its name does not say whether it holds images or labels; "
                         "expected two files with names like train-images-idx3-ubyte and "
                         "train-labels-idx1-ubyte")
    partner = _partner(path, has_labels)
    images_path, labels_path = (partner, path) if has_labels else (path, partner)
    images = _array(images_path, 3, "images")
    labels = _array(labels_path, 1, "labels")
    if len(images) != len(labels):
        raise InputError(f"{images_path} has {len(images)} images, but {labels_path} has "
                         f"{len(labels)} labels; expected a label for each image")
    if images.size == 0:
        raise InputError(f"{images_path}: has {len(images)} images of {images.shape[1]}x"
                         f"{images.shape[2]}; expected at least one pixel")
    images, labels = images[:limit], labels[:limit]
    height, width = images.shape[1:]
    x = images.reshape(len(images), -1).astype(np.float32)
    return Dataset(x, labels.astype(np.int64), (height, width), True, str(images_path))


def _partner(path: Path, has_labels: bool) -> Path:
    """Return the images' file for the labels' file, or vice versa."""
    here, there = (_LABELS, _IMAGES) if has_labels else (_IMAGES, _LABELS)
    name = path.name
    for old, new in zip(here, there, strict=True):
        name = name.replace(old, new)
    name = name.removesuffix(".gz")
    plain, packed = path.with_name(name), path.with_name(f"{name}.gz")
    for candidate in (packed, plain) if path.suffix == ".gz" else (plain, packed):
        if candidate.exists():
            return candidate
    raise InputError(f"{path}: its file of {there[0]} is missing; expected {plain} or "
                     f"{packed.name}")


def _array(path: Path, dimensions: int, what: str) -> np.ndarray:
    """Return the numbers of an idx file; `what` names them in error messages."""
    with opened(path) as file:
        content = file.read()
    magic = bytes((0, 0, _UNSIGNED_BYTES, dimensions))
    if content[:4] != magic:
        raise InputError(f"{path}: begins with the bytes {content[:4].hex(' ') or '(none)'}, "
                         f"expected {magic.hex(' ')}: an idx file of {what}, unsigned bytes in "
                         f"{dimensions} dimension{'s' if dimensions > 1 else ''}")
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path}: ends at byte {len(content)}, within its header of {start}")
    shape = tuple(map(int, np.frombuffer(content, ">u4", dimensions, 4)))
    end = start + math.prod(shape)
    if len(content) != end:
        sizes = "x".join(map(str, shape))
        raise InputError(f"{path}: ends at byte {len(content)}, expected {end}: a header of "
                         f"{start} and {sizes} {what}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


SUFFIXES = (".bmp", ".png", ".jpg", ".jpeg")


def read_folder(folder: Path, limit: int | None) -> Dataset:
    """Return the pictures in a folder's subfolders as grey levels.

    The label of a picture is the name of its subfolder, as int64 if all names are whole numbers.
    Other files and hidden folders are ignored. All pictures must have the same size.

    The order interleaves the classes evenly, because a network that is trained on one class after
    another forgets the first ones. Within a class, pictures are in the order of their file names.

    limit: maximum number of samples; None for all.
    """
    files = labelled_files(folder, limit)
    first = files[0][0]
    shape = _grey(first).shape
    x = np.empty((len(files), shape[0] * shape[1]), np.float32)
    for row, (file, _) in zip(x, files, strict=True):
        pixels = _grey(file)
        if pixels.shape != shape:
            raise InputError(f"{file}: is {pixels.shape[0]}x{pixels.shape[1]}, but {first} is "
                             f"{shape[0]}x{shape[1]} (height x width); expected images of "
                             "the same size")
        row[:] = pixels.reshape(-1)
    names = sorted({name for _, name in files})
    indices = np.searchsorted(names, [name for _, name in files])
    y = _labels(names)[indices]
    return Dataset(x, y, (shape[0], shape[1]), True, str(folder))


def labelled_files(folder: Path, limit: int | None) -> list[tuple[Path, str]]:
    """Return the pictures in a folder's subfolders, with the subfolders' names.

    The pictures are in the order of read_folder().

    limit: maximum number of pictures; None for all.
    Raises InputError if there are no subfolders, or one has no pictures.
    """
    classes = sorted(entry for entry in folder.iterdir()
                     if entry.is_dir() and not entry.name.startswith((".", "__")))
    if not classes:
        raise InputError(f"{folder}: has no folders; expected one folder of images per class "
                         f"({', '.join(SUFFIXES)}), or files of training data")
    entries: list[tuple[float, int, Path]] = []
    for index, class_folder in enumerate(classes):
        files = sorted(file for file in class_folder.iterdir() if file.suffix.lower() in SUFFIXES
                       and not file.name.startswith("."))
        if not files:
            raise InputError(f"{class_folder}: the class has no images ({', '.join(SUFFIXES)})")
        entries += [((position + 0.5) / len(files), index, file)
                    for position, file in enumerate(files)]
    return [(file, classes[index].name) for _, index, file in sorted(entries)[:limit]]


def _grey(path: Path) -> np.ndarray:
    """Return the grey levels of a picture, (height, width) uint8."""
    return np.asarray(Image.fromarray(load_image(path)).convert("L"))


def _labels(names: list[str]) -> np.ndarray:
    """Return class labels: int64 for whole numbers, else the names."""
    if all(name.isascii() and name.isdigit() for name in names) \
            and len(set(map(int, names))) == len(names):
        return np.array(list(map(int, names)))
    return np.array(names)
