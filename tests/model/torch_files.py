"""Writes checkpoint files as torch.save does, byte by byte, so that tests need no torch and can
also write files that torch never would."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Sequence

import numpy as np

Pickle = bytes

STORAGE_NAMES = {"float32": "FloatStorage", "float64": "DoubleStorage", "float16": "HalfStorage",
                 "int64": "LongStorage", "int32": "IntStorage", "int16": "ShortStorage",
                 "int8": "CharStorage", "uint8": "ByteStorage", "bool": "BoolStorage"}


def text(value: str) -> Pickle:
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def integer(value: int) -> Pickle:
    encoded = value.to_bytes(16, "little", signed=True)
    return b"\x8a\x10" + encoded


def sequence(*items: Pickle) -> Pickle:
    return b"(" + b"".join(items) + b"t"


def name(module: str, attribute: str) -> Pickle:
    return b"c" + f"{module}\n{attribute}\n".encode()


def call(function: Pickle, *arguments: Pickle) -> Pickle:
    return function + sequence(*arguments) + b"R"


def mapping(items: dict[str, Pickle]) -> Pickle:
    pairs = b"".join(text(key) + value for key, value in items.items())
    return call(name("collections", "OrderedDict")) + b"(" + pairs + b"u"


def whole(body: Pickle) -> Pickle:
    return b"\x80\x02" + body + b"."


def storage(key: str, size: int, kind: str = "FloatStorage") -> Pickle:
    return sequence(text("storage"), name("torch", kind), text(key), text("cpu"),
                    integer(size)) + b"Q"


def tensor(stored: Pickle, offset: int, shape: Sequence[int], strides: Sequence[int]) -> Pickle:
    return call(name("torch._utils", "_rebuild_tensor_v2"), stored, integer(offset),
                sequence(*map(integer, shape)), sequence(*map(integer, strides)), b"\x89",
                call(name("collections", "OrderedDict")))


def tensor_of(key: str, array: np.ndarray, kind: str | None = None) -> Pickle:
    strides = [step // array.itemsize for step in array.strides]
    return tensor(storage(key, array.size, kind or STORAGE_NAMES[array.dtype.name]), 0,
                  array.shape, strides)


def zip_file(content: Pickle, storages: dict[str, bytes], *, byteorder: bytes = b"little",
             compression: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        archive.writestr("archive/data.pkl", whole(content))
        archive.writestr("archive/byteorder", byteorder)
        for key, data in storages.items():
            archive.writestr(f"archive/data/{key}", data)
        archive.writestr("archive/version", b"3\n")
    return out.getvalue()


def legacy_file(content: Pickle, storages: dict[str, tuple[int, bytes]], *,
                little_endian: bool = True) -> bytes:
    magic = 0x1950A86A20F9469CFC6C
    flag = b"\x88" if little_endian else b"\x89"
    keys = b"](" + b"".join(text(key) for key in storages) + b"e"
    head = [integer(magic), integer(1001), mapping({"little_endian": flag}), content, keys]
    tail = [struct.pack("<q", count) + data for count, data in storages.values()]
    return b"".join(map(whole, head)) + b"".join(tail)
