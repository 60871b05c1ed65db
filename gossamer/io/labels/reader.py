"""The names of a network's classes, from text files with one name per line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gossamer.errors import InputError

IMAGENET = Path(__file__).with_name("imagenet.txt")
COCO = Path(__file__).with_name("coco.txt")


def class_names(path: Path | None, classes: int,
                network_names: Sequence[str] = ()) -> Sequence[str] | None:
    """Return the name of each class; None if unknown.

    The names are read from the file, else taken from the network. Without either, a network with
    1000 classes gets the names of ImageNet.

    path: the file of --labels, or None.
    classes: number of classes.

    Raises InputError if the file cannot be read or does not contain one name per class.
    """
    if path is None and len(network_names) == classes:
        return network_names
    if path is None and classes != 1000:
        return None
    names = without_blanks(read_names(path or IMAGENET), classes)
    if len(names) != classes:
        raise InputError(f"--labels {path}: has {len(names)} names, but the network has {classes} "
                         "classes; expected one name per line")
    return names


def read_names(path: Path, option: str = "--labels") -> list[str]:
    """Return the stripped lines of a file, without trailing empty lines.

    option: the option that names the file, for messages.
    Raises InputError if the file cannot be read.
    """
    try:
        names = [line.strip() for line in path.read_text(encoding="utf-8-sig").splitlines()]
    except UnicodeDecodeError:
        raise InputError(f"{option} {path}: is not UTF-8 text, expected one name per line"
                         ) from None
    except OSError as error:
        raise InputError(f"{option} {path}: {error.strerror}") from None
    while names and not names[-1]:
        names.pop()
    return names


def without_blanks(names: Sequence[str], classes: int) -> list[str]:
    """Return the non-empty names if there is one per class, otherwise all names."""
    filled = [name for name in names if name]
    return filled if len(filled) == classes else list(names)
