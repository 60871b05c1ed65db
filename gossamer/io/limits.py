"""Limits how much memory a file may ask for.

A small file can describe a large content: packed bytes, the shape of an array, a layer that makes
its input larger. The size of the content is compared with a limit before memory is taken. The limit
follows from the size of the file or of the inputs; GOSSAMER_MAX_BYTES sets another limit instead.
"""

from __future__ import annotations

import os
import re

from gossamer.errors import InputError, quoted
from gossamer.io.text import bytes_text

VARIABLE = "GOSSAMER_MAX_BYTES"
LEAST = 2**28
"""Bytes that every file may ask for, however small it is."""
MOST_RATIO = 32
"""The most bytes that a packed file may unpack to, as a multiple of the bytes of the file
itself."""
MOST_GROWTH = 128
"""The most bytes that a value inside a network may have, as a multiple of the bytes of the
network's inputs."""
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}


def set_limit() -> int | None:
    """Return the number of bytes that the variable GOSSAMER_MAX_BYTES states, such as 2**33 for
    8G; None where the variable is not set. Raises InputError where the variable states no number of
    bytes."""
    text = os.environ.get(VARIABLE, "").strip()
    return bytes_of(text, VARIABLE) if text else None


def bytes_of(text: str, name: str, unit: str = "bytes") -> int:
    """Return the number of bytes that a text such as 8G states. Raises InputError where the text
    states no number of bytes.

    name: the option or variable with the text, for the message.
    unit: what is counted, where it is not bytes, for the message.
    """
    match = re.fullmatch(r"([0-9]{1,18})\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None or int(match[1]) == 0:
        raise InputError(f"{name} is {quoted(text)}, expected a number of {unit} above 0, such "
                         "as 2000000000 or 8G")
    return int(match[1]) * _UNITS[match[2]]


def most_unpacked(packed: int) -> int:
    """Return the most bytes that a packed file may unpack to. packed: size of the file."""
    return set_limit() or max(LEAST, MOST_RATIO * packed)


def check_unpacked(what: str, unpacked: int, packed: int) -> None:
    """Raise InputError where a packed file unpacks to too many bytes. what: name of the file, for
    the message. unpacked, packed: bytes of the file's content and of the file itself."""
    limit = most_unpacked(packed)
    if unpacked > limit:
        raise InputError(f"{what}: unpacks to more than {bytes_text(limit)}, the limit for "
                         f"{bytes_text(packed)}; where that is meant, set {raised(unpacked)}")


def most_value_bytes(inputs: int, batch: int = 0) -> int:
    """Return the most bytes that a value inside a network may have, and that all constants made by
    its nodes may have together.

    inputs: bytes of the network's inputs. batch: the number of images that the user asked for; 0
    where the file fixes the number of images.
    """
    of_file = min(max(LEAST, MOST_GROWTH * inputs), host_memory() // 2)
    return set_limit() or max(of_file, LEAST // 4 * batch)


def host_memory() -> int:
    """Return the bytes of the machine's memory; 16 GiB where the system does not report them."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return 2**34


def raised(needed: int) -> str:
    """Return a setting of GOSSAMER_MAX_BYTES that allows `needed` bytes, for messages."""
    return f"{VARIABLE}={max(-(-needed // 2**30), 1)}G"
