"""Checks of a request's head, the unpacking of its body, and the memory that requests hold."""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Collection, Mapping
from types import TracebackType

from gossamer.errors import InputError, quoted
from gossamer.io.text import bytes_text

PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif")
"""The media types of pictures that are read."""
_JSON = "application/json"
_JSON_OF_PROGRAMS = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""The types besides its own that programs give for JSON: clients of KServe and Triton give none,
and curl gives its default. They are refused where the request comes from a page in a browser,
which may send these types to any server without asking the server first."""
_ENCODINGS = ("gzip", "x-gzip", "deflate")
_PACKED_PIECE, _PIECE = 2**16, 2**20
"""Bytes of a packed body that are given to the unpacker at a time, and the most bytes that it
returns at a time."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(:[0-9]*)?")


class Refusal(Exception):
    """A request is refused. The message is for the client, `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_head(version: str, fields: Collection[tuple[bytes, bytes]],
               hosts: Collection[str] | None) -> None:
    """Raise Refusal where the head of a request is malformed, or names another host.

    version: the version of HTTP, such as "1.1".
    fields: the fields of the head, with their names in lower case.
    hosts: the names with a dot that the field Host may have; None allows any name. Names without a
    dot and addresses are always allowed: no website can have its own name resolved to this server
    with them.
    """
    stated = [value for name, value in fields if name == b"host"]
    if len(stated) > 1 or (version == "1.1" and not stated):
        raise Refusal(400, "expected one field Host in a request of HTTP/1.1")
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in fields):
        raise Refusal(400, "HTTP/1.0 has no Transfer-Encoding; state the Content-Length")
    if hosts is not None and stated:
        text = stated[0].decode("latin-1").strip()
        match = _HOST.fullmatch(text)
        name = match[1].strip("[]").lower().rstrip(".") if match else ""
        if match is None or ("." in name and not (name in hosts or _is_address(name))):
            raise Refusal(403, f"Host {quoted(text)} is not a name of this server; start it with "
                               "--allow-host NAME where a proxy sends this name")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body: one of PICTURES, or "" for tensors. Raises Refusal for
    any other type."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in PICTURES:
        return kind
    if kind == _JSON or (kind in _JSON_OF_PROGRAMS and "origin" not in headers):
        return ""
    raise Refusal(415, f"Content-Type {quoted(kind)}: expected {_JSON} for tensors, or one of "
                       f"{', '.join(PICTURES)}")


def content_encoding(headers: Mapping[str, str]) -> str:
    """Return how a body is packed, or "" where it is not. Raises Refusal for any other encoding
    than those of _ENCODINGS."""
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return ""
    if encoding not in _ENCODINGS:
        raise Refusal(415, f"Content-Encoding {quoted(encoding)}: expected gzip, deflate or none")
    return encoding


def unpacked(body: bytes | bytearray, encoding: str, most: int) -> bytes:
    """Return the content of a packed body. Raises Refusal where it has more than `most` bytes, and
    InputError where it is damaged."""
    # zlib expects gzip's header where 16 is added to the bits of the window, else its own
    unpacker = zlib.decompressobj(15 + (0 if encoding == "deflate" else 16))
    parts: list[bytes] = []
    size = 0
    view = memoryview(body)
    try:
        # in parts, so that a content which is too large is not unpacked as a whole
        for start in range(0, len(body), _PACKED_PIECE):
            packed: bytes | memoryview = view[start:start + _PACKED_PIECE]
            is_whole = False
            while not is_whole:
                part = unpacker.decompress(packed, _PIECE)
                parts.append(part)
                size += len(part)
                if size > most:
                    raise Refusal(413, f"the body unpacks to more than {bytes_text(most)}; send "
                                       "fewer images at once")
                packed = unpacker.unconsumed_tail
                is_whole = not packed and len(part) < _PIECE
            if unpacker.eof and (unpacker.unused_data or start + _PACKED_PIECE < len(body)):
                raise InputError(f"the body is no valid {encoding}: it goes on after its end")
    except zlib.error as error:
        raise InputError(f"the body is no valid {encoding}: {error}") from None
    if not unpacker.eof:
        raise InputError(f"the body is no valid {encoding}: it ends too early")
    return b"".join(parts)


class MemoryFullError(Exception):
    """A request needs more memory than the other requests leave."""


class Memory:
    """The bytes that all requests of a server hold.

    most: the most bytes that they may hold.
    held: the bytes that they hold now.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def share(self) -> Share:
        """Return the share of a request, whose bytes are given back at the end of a `with` block.
        """
        return Share(self)


class Share:
    """The bytes that one request holds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    def set(self, count: int) -> None:
        """Change the number of bytes that the request holds. Raises MemoryFullError where it grows
        and all requests would hold more than they may."""
        more = count - self._held
        if more > 0 and self._memory.held + more > self._memory.most:
            raise MemoryFullError
        self._memory.held += more
        self._held = count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.set(0)
