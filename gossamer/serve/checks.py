"""Checks of requests: head, compression, and memory."""

from __future__ import annotations

import ipaddress
import re
import zlib
from collections.abc import Collection, Mapping
from types import TracebackType

from gossamer.errors import InputError, quoted
from gossamer.io.text import bytes_text

PICTURES = ("image/jpeg", "image/png", "image/webp", "image/bmp", "image/gif")
"""Supported media types of pictures."""
_JSON = "application/json"
_JSON_OF_PROGRAMS = ("", "application/octet-stream", "application/x-www-form-urlencoded")
"""Other media types that programs send with JSON: clients of KServe and Triton send none, and curl
sends its default. These media types are rejected if the request comes from a web page (it has the
header Origin), because a page may send them to any server without a CORS preflight request."""
_ENCODINGS = ("gzip", "x-gzip", "deflate")
_PACKED_PIECE, _PIECE = 2**16, 2**20
"""Number of bytes of a compressed body that are decompressed at a time, and largest number of bytes
that the decompressor returns at a time."""
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]*)(:[0-9]*)?")


class Refusal(Exception):
    """A request is rejected.

    message: text for the client.
    status: the HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_head(version: str, fields: Collection[tuple[bytes, bytes]],
               hosts: Collection[str] | None) -> None:
    """Raise Refusal if a request's head is malformed or names another host.

    version: the version of HTTP, such as "1.1".
    fields: the fields of the head, with their names in lower case.
    hosts: the names with a dot that are allowed in the field Host; None allows any name. Names
    without a dot and IP addresses are always allowed, because a DNS rebinding attack uses the name
    of a website, which has a dot.
    """
    stated = [value for name, value in fields if name == b"host"]
    if len(stated) > 1 or (version == "1.1" and not stated):
        raise Refusal(400, "expected exactly one Host header")
    if version == "1.0" and any(name == b"transfer-encoding" for name, _ in fields):
        raise Refusal(400, "HTTP/1.0 does not have Transfer-Encoding; send Content-Length instead")
    if hosts is not None and stated:
        text = stated[0].decode("latin-1").strip()
        match = _HOST.fullmatch(text)
        name = match[1].strip("[]").lower().rstrip(".") if match else ""
        if match is None or ("." in name and not (name in hosts or _is_address(name))):
            raise Refusal(403, f"Host {quoted(text)} is not a name of this server; if a proxy "
                               "sends this name, start the server with --allow-host NAME")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def media_type(headers: Mapping[str, str]) -> str:
    """Return the media type of a body: one of PICTURES, or "" for tensors.

    Raises Refusal for any other type.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in PICTURES:
        return kind
    if kind == _JSON or (kind in _JSON_OF_PROGRAMS and "origin" not in headers):
        return ""
    raise Refusal(415, f"Content-Type {quoted(kind)}: expected {_JSON} for tensors, or one of "
                       f"{', '.join(PICTURES)}")


def content_encoding(headers: Mapping[str, str]) -> str:
    """Return the compression of a body, one of _ENCODINGS, or "" for none.

    Raises Refusal for any other encoding.
    """
    encoding = headers.get("content-encoding", "").strip().lower()
    if encoding in ("", "identity"):
        return ""
    if encoding not in _ENCODINGS:
        raise Refusal(415, f"Content-Encoding {quoted(encoding)}: expected gzip, deflate or none")
    return encoding


def unpacked(body: bytes | bytearray, encoding: str, most: int) -> bytes:
    """Decompress a body.

    Raises Refusal if the content has more than `most` bytes, and InputError if the body is damaged.
    """
    # adding 16 to zlib's window bits selects the gzip format
    unpacker = zlib.decompressobj(15 + (0 if encoding == "deflate" else 16))
    parts: list[bytes] = []
    size = 0
    view = memoryview(body)
    try:
        # decompress in chunks, to stop as soon as the content is too large
        for start in range(0, len(body), _PACKED_PIECE):
            packed: bytes | memoryview = view[start:start + _PACKED_PIECE]
            is_whole = False
            while not is_whole:
                part = unpacker.decompress(packed, _PIECE)
                parts.append(part)
                size += len(part)
                if size > most:
                    raise Refusal(413, "the decompressed body is larger than "
                                       f"{bytes_text(most)}; send fewer images at once")
                packed = unpacker.unconsumed_tail
                is_whole = not packed and len(part) < _PIECE
            if unpacker.eof and (unpacker.unused_data or start + _PACKED_PIECE < len(body)):
                raise InputError(f"the body is not valid {encoding}: more bytes follow its end")
    except zlib.error as error:
        raise InputError(f"the body is not valid {encoding}: {error}") from None
    if not unpacker.eof:
        raise InputError(f"the body is not valid {encoding}: it is truncated")
    return b"".join(parts)


class Memory:
    """Accounting of the memory of all requests of a server.

    most: limit in bytes.
    held: bytes in use.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    def share(self) -> Share:
        """Return a request's share; leaving its `with` block frees the share."""
        return Share(self)


class Share:
    """Accounting of the memory of one request."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._held = 0

    def set(self, count: int) -> None:
        """Set the number of bytes that the request holds.

        Raises Refusal if the number grows and all requests together exceed the limit.
        """
        more = count - self._held
        if more > 0 and self._memory.held + more > self._memory.most:
            raise Refusal(429, "too many large requests at once; try again later")
        self._memory.held += more
        self._held = count

    def __enter__(self) -> Share:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.set(0)
