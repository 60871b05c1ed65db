"""The socket of a server.

This module needs no package of the extra `serve`.
"""

from __future__ import annotations

import ipaddress
import socket

from gossamer.errors import InputError


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address.

    Port 0 means any free port. Raises InputError if the address is not this machine's, or the port
    is in use.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM,
                                                         flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, kind)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise InputError(f"--host {host}, --port {port}: cannot listen there: "
                         f"{error.strerror}") from None
    return listener


def is_loopback(listener: socket.socket) -> bool:
    """Return whether only this machine can reach a socket."""
    return ipaddress.ip_address(listener.getsockname()[0].partition("%")[0]).is_loopback


def url_of(listener: socket.socket) -> str:
    """Return the URL of a socket for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
