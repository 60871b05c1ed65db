"""Mutators: functions that change the bytes of a file and leave its form whole.

A mutator takes the bytes and a generator of random numbers, and returns other bytes. Those for
packed or checked formats unpack, change what is inside, and make checksums right again, so that
most results get past a reader's first check.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import re
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

_MOST_PLACES = 5000
Mutator = Callable[[bytes, random.Random], bytes]

NUMBERS = (0, 1, -1, 2, 3, 7, 255, 256, 65535, 65536, 2**24 + 1, 2**31 - 1, 2**31, -2**31, 2**32,
           2**62, 2**63 - 1, -2**63, 10**6, 10**9)
TEXTS = ("", " ", "x", "y", "0", "-1", "nan", "inf", "1e999", "1_0", "\n", "\r\n\t", "\x00",
         "\x1b[31m", "a\nb", "é", "\u202e", "../../etc/passwd", "/dev/zero", "'); import os #",
         "%s%n", "true", "float32", "object", "long " * 200)
VALUES: tuple[Any, ...] = (None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**400, 1.5, -0.0,
                           1e308, float("nan"), float("inf"), [], {}, [[]], [0], {"a": 1}, *TEXTS)


def any_bytes(data: bytes, rng: random.Random) -> bytes:
    """Changes, removes, repeats or inserts a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(changed) + 1)
        match rng.randrange(6):
            case 0 | 1 if at < len(changed):
                changed[at] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
            case 2 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 3:
                del changed[at:at + rng.choice((1, 4, 40))]
            case 4:
                changed[at:at] = changed[at:at + rng.choice((1, 4, 40))]
            case _:
                width = rng.choice("<>") + rng.choice("HIQ")
                size = struct.calcsize(width)
                number = rng.choice(NUMBERS) % 2 ** (8 * size)
                changed[at:at + size] = struct.pack(width, number)
    return bytes(changed)


def text(data: bytes, rng: random.Random) -> bytes:
    """Changes a cell, a number or a line of a text."""
    if rng.random() < 0.1:
        return any_bytes(data, rng)
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    at = rng.randrange(len(lines))
    match rng.randrange(6):
        case 0:
            lines.insert(at, lines[rng.randrange(len(lines))])
        case 1 if len(lines) > 1:
            del lines[at]
        case 2:
            lines[at] = rng.choice(TEXTS)
        case _:
            words = re.split(r"([,;\t =]+)", lines[at])
            word = rng.randrange(0, len(words), 2)
            words[word] = str(rng.choice((*NUMBERS, *TEXTS, -1.5, "1e39", "0x10", '"', '"a\nb"')))
            lines[at] = "".join(words)
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def json_text(data: bytes, rng: random.Random) -> bytes:
    """Changes a value, a key or an item of a JSON text."""
    if rng.random() < 0.05:
        return any_bytes(data, rng)
    if rng.random() < 0.02:
        deep = rng.choice((50, 900, 100_000))
        return b"[" * deep + b"]" * deep
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        return any_bytes(data, rng)
    places: list[tuple[Any, Any]] = [([content], 0)]
    for holder, key in places:
        inside = holder[key]
        if isinstance(inside, list | dict) and len(places) < _MOST_PLACES:
            places += [(inside, inner) for inner in
                       (inside if isinstance(inside, dict) else range(len(inside)))]
    holder, key = rng.choice(places)
    content = places[0][0]
    match rng.randrange(8):
        case 0 if isinstance(holder, dict):
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(TEXTS)] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), holder[key])
        case 3 if isinstance(holder, list) and len(holder) > 1:
            del holder[key]
        case 4 if isinstance(holder, dict):
            holder[key] = holder[rng.choice(list(holder))]
        case 5 if isinstance(holder[key], int | float):
            holder[key] = rng.choice((*NUMBERS, 0.5, -3.5, 1e300))
        case _:
            holder[key] = rng.choice(VALUES)
    return json.dumps(content[0]).encode()


def json_lines(data: bytes, rng: random.Random) -> bytes:
    """Changes one line of a file with a JSON text in each."""
    if rng.random() < 0.1:
        return text(data, rng)
    lines = data.splitlines()
    at = rng.randrange(len(lines))
    lines[at] = json_text(lines[at], rng)
    return b"\n".join(lines) + b"\n"


def npy(data: bytes, rng: random.Random) -> bytes:
    """Changes the header of an array, whose length is made right again, or its numbers."""
    length = struct.unpack("<H", data[8:10])[0]
    header, numbers = data[10:10 + length], data[10 + length:]
    match rng.randrange(5):
        case 0:
            numbers = any_bytes(numbers, rng)
        case 1:
            header = any_bytes(header, rng)
        case 2:
            kind = rng.choice((b"<f4", b">f8", b"|O", b"|b1", b"<U3", b"|V7", b"<c16", b"<M8[s]",
                               b"<i8", b"|S0", b"<U0", b"f4,f4", b"|u1", b"<f2"))
            header = re.sub(rb"'descr': [^,]*", b"'descr': '" + kind + b"'", header)
        case 3:
            sizes = ", ".join(str(rng.choice((*NUMBERS, 4, 5, "True", "None", "1.5", "()")))
                              for _ in range(rng.randrange(5)))
            header = re.sub(rb"'shape': \([^)]*\)", f"'shape': ({sizes})".encode(), header)
        case _:
            header = re.sub(rb"'fortran_order': \w+", b"'fortran_order': " + rng.choice(
                (b"True", b"False", b"1", b"None", b"[]")), header)
    return data[:8] + struct.pack("<H", len(header) % 65536) + header + numbers


def packed_gzip(inner: Mutator) -> Mutator:
    """Returns the mutator that changes what a gzip file holds and packs it again."""
    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            return any_bytes(data, rng)
        try:
            content = gzip.decompress(data)
        except (OSError, EOFError, zlib.error):
            return any_bytes(data, rng)
        return gzip.compress(inner(content, rng), 1, mtime=0)
    return mutate


def zipped(inner: Callable[[str], Mutator]) -> Mutator:
    """Returns the mutator that changes an entry of a zip file and makes its checksum right. inner:
    the mutator of an entry, by its name."""
    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.1:
            return any_bytes(data, rng)
        try:
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                entries = [(info, archive.read(info)) for info in archive.infolist()]
        except Exception:
            return any_bytes(data, rng)
        at = rng.randrange(len(entries))
        info, content = entries[at]
        match rng.randrange(12):
            case 0 if len(entries) > 1:
                del entries[at]
            case 1:
                entries.append(entries[at])
            case 2:
                other = entries[rng.randrange(len(entries))][1]
                entries[at] = (info, other)
            case _:
                entries[at] = (info, inner(info.filename)(content, rng))
        result = io.BytesIO()
        with warnings.catch_warnings(), zipfile.ZipFile(result, "w") as archive:
            # two entries of one name are meant
            warnings.simplefilter("ignore")
            for info, content in entries:
                packed = zipfile.ZipInfo(info.filename)
                packed.compress_type = info.compress_type
                archive.writestr(packed, content)
        return result.getvalue()
    return mutate


def hashed(heading: bytes, inner: Mutator) -> Mutator:
    """Returns the mutator of a file of a heading, the SHA-256 hash of the rest, and the rest."""
    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.05:
            return any_bytes(data, rng)
        content = inner(data[len(heading) + 32:], rng)
        return heading + hashlib.sha256(content).digest() + content
    return mutate


def png(data: bytes, rng: random.Random) -> bytes:
    """Changes a chunk of a PNG file and makes its checksum right."""
    if rng.random() < 0.05:
        return any_bytes(data, rng)
    chunks, at = [], 8
    while at + 12 <= len(data):
        size = struct.unpack(">I", data[at:at + 4])[0]
        chunks.append((data[at + 4:at + 8], data[at + 8:at + 8 + size]))
        at += 12 + size
    if not chunks:
        return any_bytes(data, rng)
    which = rng.randrange(len(chunks))
    kind, content = chunks[which]
    match rng.randrange(6):
        case 0:
            chunks.insert(which, chunks[rng.randrange(len(chunks))])
        case 1:
            kind = rng.choice((b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"iTXt", b"eXIf", b"acTL",
                               b"fdAT", b"gAMA", b"IEND"))
            chunks.insert(which, (kind, content))
        case 2 if kind == b"IDAT":
            try:
                pixels = any_bytes(zlib.decompress(content), rng)
                chunks[which] = (kind, zlib.compress(pixels, 1))
            except zlib.error:
                chunks[which] = (kind, any_bytes(content, rng))
        case _:
            chunks[which] = (kind, any_bytes(content, rng))
    return data[:8] + b"".join(
        struct.pack(">I", len(content)) + kind + content
        + struct.pack(">I", zlib.crc32(kind + content)) for kind, content in chunks)


def idx(data: bytes, rng: random.Random) -> bytes:
    """Changes the numbers of an idx file, or a size in its header."""
    if rng.random() < 0.5:
        start = 4 + 4 * data[3]
        return data[:start] + any_bytes(data[start:], rng)
    changed = bytearray(data)
    at = 4 + 4 * rng.randrange(max(data[3], 1))
    changed[at:at + 4] = struct.pack(">I", rng.choice(NUMBERS) % 2**32)
    return bytes(changed)


def tar(inner: Mutator) -> Mutator:
    """Returns the mutator that changes a member of a tar archive, or a field of its header whose
    checksum is made right."""
    def mutate(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.2:
            return any_bytes(data, rng)
        members = []
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
                for info in archive:
                    file = archive.extractfile(info)
                    members.append((info, file.read() if file and info.size < 2**20 else b""))
        except Exception:
            return any_bytes(data, rng)
        if not members:
            return any_bytes(data, rng)
        info, content = members[rng.randrange(len(members))]
        match rng.randrange(6):
            case 0:
                info.name = rng.choice(TEXTS) + rng.choice(("", ".smtx"))
            case 1:
                info.type = rng.choice((b"0", b"1", b"2", b"3", b"5", b"6", b"S", b"x", b"L"))
            case 2:
                members.append((info, content))
            case _:
                members = [(other, inner(old, rng) if other is info else old)
                           for other, old in members]
        result = io.BytesIO()
        with tarfile.open(fileobj=result, mode="w") as archive:
            for other, content in members:
                other.size = len(content)
                try:
                    archive.addfile(other, io.BytesIO(content))
                except (ValueError, OSError, UnicodeError):
                    continue
        return result.getvalue()
    return mutate
