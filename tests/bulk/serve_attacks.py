"""Attacks `gossamer serve` over four connections, and asks it meanwhile whether it is alive.

    python -m tests.bulk.serve_attacks 20

Each attack runs for so many seconds, in a process that is bound to one processor. It is a failure
when the server answers /v2/health/live later than within 250 ms at the 99th percentile or within
1 s at most, or when the server and its processes take 1 GiB more than idle. It ends with an exit
code of 1.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Process
from pathlib import Path

import numpy as np
from onnx import helper
from PIL import Image

from tests.bulk.server import served
from tests.model.onnx_models import model, save

_SIDE = 256


def _post(body: bytes, fields: str = "") -> bytes:
    return (f"POST /v2/models/big/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            f"\r\n{fields}\r\n").encode() + body


def _json(data: bytes) -> bytes:
    return _post(b'{"inputs":[{"name":"x","datatype":"UINT8","shape":[1,8],"data":[%b1]}]}' % data)


def _tensors(count: int, *, binary: bool) -> bytes:
    data = np.random.default_rng(0).integers(0, 256, (count, _SIDE, _SIDE, 3), np.uint8)
    head = json.dumps({"parameters": {"binary_data_output": binary}, "inputs": [
        {"name": "x", "datatype": "UINT8", "shape": data.shape,
         "parameters": {"binary_data_size": data.nbytes}}]}).encode()
    return _post(head + data.tobytes(), f"Inference-Header-Content-Length: {len(head)}\r\n")


_PICTURE = io.BytesIO()
Image.new("P", (4096, 4096)).save(_PICTURE, "png", transparency=0)
_START = b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n"
_READ = {
    "numbers": _json(b"1.5," * (2**22 - 100)), "lists": _json(b"[]," * (2**20 - 100)),
    "texts": _json(b'"%b",' % (b"a" * 20) * (2**19 - 100)),
    "digits": _json((b"9" * 4000 + b",") * 4000), "json_out": _tensors(16, binary=False),
    "too_much_out": _tensors(80, binary=False), "binary": _tensors(80, binary=True),
    "pictures": _post(_PICTURE.getvalue(), "Content-Type: image/png\r\n"),
    "gzip": _post(gzip.compress(bytes(2**28)), "Content-Encoding: gzip\r\n")}
"""Requests whose answers are read."""
_UNREAD = {
    "unread": (_tensors(60, binary=True), b""), "field": (_START + b"X: ", b"a" * 2**16),
    "fields": (_START, b"X: b\r\n" * 5000), "pipelined": (b"", (_START + b"\r\n") * 10_000)}
"""What is sent first, and then again and again, while no answer is read."""


def _connect(name: str, port: int) -> None:
    """Attacks over one connection after the other, until the process is ended."""
    first, then = _UNREAD.get(name) or (_READ[name], b"")
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(first)
            while then:
                client.sendall(then)
            client.settimeout(60)
            while name in _READ and client.recv(2**20):
                # an answer is followed by the next request
                client.settimeout(0.2)
            time.sleep(60 * (name in _UNREAD))


def _attack(name: str, port: int) -> None:
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(_connect, [name] * 4, [port] * 4))


def main() -> int:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    network = model([helper.make_node("Relu", ["x"], ["y"])], {"x": ["N", 3, _SIDE, _SIDE]},
                    {"y": 4})
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        file = save(network, Path(folder)).rename(Path(folder, "big.onnx"))
        with served(str(file), "--device", "host", "--preprocess", "unit",
                    "--batch", "8") as server:
            idle = most = server.resident_mb()
            for name in (*_READ, *_UNREAD):
                attacker = Process(target=_attack, args=(name, server.port), daemon=True)
                attacker.start()
                times, end = [], time.monotonic() + seconds
                while time.monotonic() < end:
                    start = time.monotonic()
                    urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v2/health/live").close()
                    times.append(time.monotonic() - start)
                    most = max(most, server.resident_mb())
                    time.sleep(0.02)
                attacker.kill()
                p99 = float(np.quantile(times, 0.99))
                bad += p99 > 0.25 or max(times) > 1 or most - idle > 1024
                print(f"{name}: {len(times)} answers, p99 {1e3 * p99:.0f} ms, slowest "
                      f"{1e3 * max(times):.0f} ms; so far at most {most - idle:.0f} MB above idle",
                      flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
