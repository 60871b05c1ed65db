"""Lists the pictures of a folder and of the folders in it."""

from __future__ import annotations

import os
from pathlib import Path

from gossamer.errors import InputError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".webp")
"""Endings of the names of pictures in the formats that are read."""


def pictures_in(folder: Path) -> tuple[list[Path], int]:
    """Returns the pictures below a folder, sorted by their paths, and the number of other files.

    Hidden files and folders (.name) are passed over, and links to folders are not followed. Raises
    InputError where there is no picture, and for a folder that cannot be read.
    """
    def unreadable(error: OSError) -> None:
        raise InputError(f"{error.filename}: cannot be read: {error.strerror}") from None

    pictures, others = [], 0
    for path, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            if name.startswith("."):
                continue
            if name.lower().endswith(SUFFIXES):
                pictures.append(Path(path, name))
            else:
                others += 1
    if not pictures:
        found = f"; it has {others} other file{'s' if others > 1 else ''}" if others else ""
        raise InputError(f"{folder}: has no pictures ({', '.join(SUFFIXES)}){found}")
    return sorted(pictures), others
