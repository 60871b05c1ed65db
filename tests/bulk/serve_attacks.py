"""Attacks `gossamer serve` over several connections, and asks it meanwhile whether it is alive.

    python -m tests.bulk.serve_attacks --seconds 10

Each attack runs in a process that is bound to one processor. It is a failure when the server
answers /v2/health/live later than within 250 ms at the 99th percentile or within 1 s at most, or
when the server and its processes take 1 GiB more than idle. It ends with an exit code of 1.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import numpy as np
from onnx import helper
from PIL import Image

from tests.bulk.server import served
from tests.model.onnx_models import model, save

_CONNECTIONS = 4
_MOST_MB = 1024
_SIDE = 256
_IMAGE = 3 * _SIDE**2


def _post(body: bytes, fields: str = "") -> bytes:
    return (f"POST /v2/models/big/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            f"\r\n{fields}\r\n").encode() + body


def _json(data: bytes, **more: object) -> bytes:
    text = json.dumps({"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 8],
                                   "data": "DATA"}], **more}).encode()
    return _post(text.replace(b'"DATA"', data))


def _tensors(count: int, *, binary: bool) -> bytes:
    data = np.random.default_rng(0).integers(0, 256, count * _IMAGE, np.uint8).tobytes()
    head = json.dumps({"parameters": {"binary_data_output": binary}, "inputs": [
        {"name": "x", "datatype": "UINT8", "shape": [count, _SIDE, _SIDE, 3],
         "parameters": {"binary_data_size": len(data)}}]}).encode()
    return _post(head + data, f"Inference-Header-Content-Length: {len(head)}\r\n")


def _picture() -> bytes:
    file = io.BytesIO()
    Image.new("P", (4096, 4096)).save(file, "png", transparency=0)
    return _post(file.getvalue(), "Content-Type: image/png\r\n")


_START = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
_CHUNKED = (b"POST /v2/models/big/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked"
            b"\r\n\r\n1\r\n{\r\n0\r\n")
_FIELDS = b"".join(b"X-%d: b\r\n" % number for number in range(5000))

# what is sent first, what is sent again and again afterwards, and whether answers are read
_ATTACKS: dict[str, Callable[[], tuple[bytes, bytes, bool]]] = {
    "numbers": lambda: (_json(b"[" + b"1.5," * (2**22 - 100) + b"1]"), b"", True),
    "lists": lambda: (_json(b"[" + b"[]," * (2**20 - 100) + b"[]]"), b"", True),
    "texts": lambda: (_json(b"[" + b'"%s",' % (b"a" * 20) * (2**19 - 100) + b'"a"]'), b"", True),
    "digits": lambda: (_json(b"[" + (b"9" * 4000 + b",") * 4000 + b"1]"), b"", True),
    "json_out": lambda: (_tensors(16, binary=False), b"", True),
    "too_much_out": lambda: (_tensors(80, binary=False), b"", True),
    "binary": lambda: (_tensors(80, binary=True), b"", True),
    "unread": lambda: (_tensors(60, binary=True), b"", False),
    "pictures": lambda: (_picture(), b"", True),
    "gzip": lambda: (_post(gzip.compress(bytes(2**28)), "Content-Encoding: gzip\r\n"), b"", True),
    "field": lambda: (_START + b"X: ", b"a" * 2**16, False),
    "fields": lambda: (_START, _FIELDS, False),
    "trailers": lambda: (_CHUNKED, _FIELDS, False),
    "pipelined": lambda: (b"", (_START + b"\r\n") * 10_000, False),
    "upgrades": lambda: (b"", (_START + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n") * 5_000,
                         False),
}


def _attack(name: str, port: int) -> None:
    """Sends one attack again and again over a connection at a time, until the process is ended."""
    first, then, reads = _ATTACKS[name]()
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.settimeout(60)
            client.sendall(first)
            while then:
                client.sendall(then)
            while reads and client.recv(2**20):
                # an answer that keeps the connection is followed by the next request
                client.settimeout(0.2)
            if not reads:
                time.sleep(60)


def _memory_mb(pid: int) -> float:
    """Returns the memory of a process and of its children, in MB."""
    total = 0.0
    with contextlib.suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text()
        total += int(status.partition("VmRSS:")[2].split()[0]) / 1024
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += sum(map(_memory_mb, map(int, (task / "children").read_text().split())))
    return total


def _attacked(name: str, port: int, pid: int, idle: float, seconds: float) -> bool:
    """Returns whether a server answers in time, and stays small, while it is attacked. idle: MB of
    its memory before the first attack."""
    attacker = subprocess.Popen([sys.executable, "-m", "tests.bulk.serve_attacks", "--attack", name,
                                 "--port", str(port)])
    times, most, end = [], idle, time.monotonic() + seconds
    try:
        while time.monotonic() < end:
            start = time.monotonic()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/live", timeout=60):
                times.append(time.monotonic() - start)
            most = max(most, _memory_mb(pid))
            time.sleep(0.02)
    finally:
        attacker.kill()
        attacker.wait()
    p99 = float(np.quantile(times, 0.99))
    is_good = p99 <= 0.25 and max(times) <= 1 and most - idle <= _MOST_MB
    print(f"{name:14}{len(times):5} answers, p99 {1e3 * p99:6.1f} ms, slowest "
          f"{1e3 * max(times):6.1f} ms; at most {most - idle:4.0f} MB above idle: "
          f"{'good' if is_good else 'BAD'}", flush=True)
    return is_good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="ATTACK", help=", ".join(_ATTACKS))
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        threads = [threading.Thread(target=_attack, args=(arguments.attack, arguments.port))
                   for _ in range(_CONNECTIONS)]
        for thread in threads:
            thread.start()
        return 0
    network = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["N", 3, _SIDE, _SIDE]},
                    {"y": 4})
    with tempfile.TemporaryDirectory() as folder:
        file = save(network, Path(folder)).rename(Path(folder, "big.onnx"))
        with served(str(file), "--device", "host", "--preprocess", "unit") as server:
            pid = server.process.pid
            idle = _memory_mb(pid)
            return int(not all([_attacked(name, server.port, pid, idle, arguments.seconds)
                                for name in arguments.names or _ATTACKS]))


if __name__ == "__main__":
    sys.exit(main())
