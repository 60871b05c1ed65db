"""Sends malformed requests to `gossamer serve`: mutated bodies, headers, paths, photos and plain
bytes. Then schemathesis sends what the server's description allows, and what it does not.

    python -m tests.bulk.serve_fuzz --count 100000

It is a failure when the server answers with 500 or more, writes a traceback, grows by more than
the allowance, or does not answer a good request right at the end. It ends with an exit code of 1.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import socket
import subprocess
import sys
import tempfile
import urllib.request
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

from tests.bulk.server import Served, served
from tests.model.onnx_models import save
from tests.plan.small import assert_close, expected, small

_ALLOWED_MB = 64.0
"""Growth of the server's memory after the first tenth of the requests."""
_CONNECTIONS = 16
_WORDS = ["inputs", "outputs", "name", "shape", "datatype", "data", "parameters", "x", "y", "FP32",
          "BYTES", "binary_data_size", "timeout", None, True, -1, 0, 1e308, 2**70, [], {}, "../..",
          "\0", "/etc/passwd", "file:///etc/passwd", "A" * 5000]


def _photos(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, 6, 5, 3), np.uint8)


def _good(x: np.ndarray) -> dict[str, object]:
    return {"inputs": [{"name": "x", "datatype": "UINT8", "shape": list(x.shape),
                        "data": x.reshape(-1).tolist()}]}


def _mutated(value: object, rng: random.Random) -> object:
    """Returns JSON of which a part has been replaced, doubled or dropped."""
    if rng.random() < 0.15:
        return rng.choice(_WORDS)
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        changed = dict(value)
        changed[key] = _mutated(value[key], rng)
        if rng.random() < 0.1:
            changed[str(rng.choice(_WORDS))] = changed.pop(key)
        return changed
    if isinstance(value, list) and value:
        index = rng.randrange(len(value))
        return [*value[:index], _mutated(value[index], rng), *value[index + rng.randrange(2):]]
    return rng.choice(_WORDS)


def _bytes_changed(data: bytes, rng: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        if changed:
            changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed[:rng.randrange(len(changed) + 1)] if rng.random() < 0.3 else changed)


class _Requests:
    """Makes malformed requests, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self._text = json.dumps(_good(_photos(1))).encode()
        picture = io.BytesIO()
        Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(picture, "png")
        self._png = picture.getvalue()
        picture = io.BytesIO()
        Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(picture, "jpeg")
        self._jpeg = picture.getvalue()
        x = _photos(1)
        self._head = json.dumps({"inputs": [{
            "name": "x", "datatype": "UINT8", "shape": list(x.shape),
            "parameters": {"binary_data_size": x.nbytes}}]}).encode()
        self._binary = self._head + x.tobytes()
        self._kinds: list[Callable[[], bytes]] = [self._json, self._json, self._raw_json,
                                                  self._tensors, self._picture, self._header,
                                                  self._path, self._noise]

    def next(self) -> bytes:
        """Returns the bytes of a whole request."""
        return self._rng.choice(self._kinds)()

    def _message(self, body: bytes, headers: str = "",
                 path: str = "/v2/models/small/infer") -> bytes:
        return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{headers}"
                f"Content-Length: {len(body)}\r\n\r\n".encode("utf-8", "surrogateescape") + body)

    def _json(self) -> bytes:
        value: object = _good(_photos(1))
        for _ in range(self._rng.randrange(1, 4)):
            value = _mutated(value, self._rng)
        return self._message(json.dumps(value).encode())

    def _raw_json(self) -> bytes:
        return self._message(_bytes_changed(self._text, self._rng))

    def _tensors(self) -> bytes:
        length = self._rng.choice([len(self._head), len(self._head) + 1, 0, -5, 10**20, "x", ""])
        body = _bytes_changed(self._binary, self._rng)
        return self._message(body, f"Inference-Header-Content-Length: {length}\r\n")

    def _picture(self) -> bytes:
        kind, data = self._rng.choice([("png", self._png), ("jpeg", self._jpeg),
                                       ("png", self._jpeg), ("webp", self._png)])
        return self._message(_bytes_changed(data, self._rng), f"Content-Type: image/{kind}\r\n")

    def _header(self) -> bytes:
        name = self._rng.choice(["Deadline-Ms", "Content-Type", "Accept", "Transfer-Encoding",
                                 "Expect", "Content-Encoding", "Range", "X" * 300])
        value = self._rng.choice(["-1", "nan", "1e400", "chunked, chunked", "gzip", "100-continue",
                                  "image/png; x=\t", "", "\u00fc", "9" * 4000])
        return self._message(self._text, f"{name}: {value}\r\n")

    def _path(self) -> bytes:
        path = self._rng.choice(["/v2/models/../../etc/passwd/infer", "/v2/models/%00/infer",
                                 "/v2/models/small%2f..%2fsmall/infer", "//v2//models", "/%ff",
                                 "/v2/models/" + "a" * 3000 + "/infer", "*", "http://y/v2",
                                 "/v2/models/small/versions/-1/infer", "/metrics?%zz"])
        return self._message(self._text, path=path)

    def _noise(self) -> bytes:
        return _bytes_changed(self._message(self._text), self._rng)


class _Connection:
    """Sends requests over connections that are kept where the server keeps them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None

    def status(self, message: bytes) -> str:
        """Returns the status that a request is answered with; "none" where there is no answer."""
        if self._socket is None:
            self._socket = socket.create_connection(("127.0.0.1", self._port), 5)
            self._socket.settimeout(0.25)
        try:
            self._socket.sendall(message)
            answer = self._socket.recv(65536)
        except OSError:
            answer = b""
        # an answer may leave bytes of a malformed request to be taken for the next one
        if not answer.startswith(b"HTTP/1.1 200"):
            self._socket.close()
            self._socket = None
        return answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"


def _send(port: int, count: int, seed: int) -> Counter[str]:
    """Sends requests over several connections at once, and returns the number of answers by status.
    One connection would spend most of its time waiting for requests that are never whole."""
    def share(connection_index: int) -> Counter[str]:
        requests, connection = _Requests(seed * _CONNECTIONS + connection_index), _Connection(port)
        return Counter(connection.status(requests.next())
                       for _ in range(connection_index, count, _CONNECTIONS))

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        return sum(pool.map(share, range(_CONNECTIONS)), Counter())


def _answers_right(server: Served) -> bool:
    x = _photos(2)
    request = urllib.request.Request(f"http://127.0.0.1:{server.port}/v2/models/small/infer",
                                     json.dumps(_good(x)).encode(), method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        (output,) = json.load(answer)["outputs"]
    right = expected(x.transpose(0, 3, 1, 2) * np.float32(1 / 255))
    assert_close(np.float32(output["data"]).reshape(output["shape"]), right)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        network = save(small(), Path(folder)).rename(Path(folder, "small.onnx"))
        with served(str(network), "--device", "host", "--preprocess", "unit") as server:
            statuses = _send(server.port, arguments.count // 10, 2 * arguments.seed)
            before = server.resident_mb()
            statuses += _send(server.port, arguments.count - statuses.total(),
                              2 * arguments.seed + 1)
            growth = server.resident_mb() - before
            # a network takes fewer shapes than the description can say
            described = subprocess.run(
                [str(Path(sys.executable).with_name("schemathesis")), "run", "--max-examples",
                 str(max(10, arguments.count // 500)), "--seed", str(arguments.seed),
                 "--exclude-checks", "positive_data_acceptance",
                 f"http://127.0.0.1:{server.port}/openapi.json"], cwd=folder)
            is_right = _answers_right(server)
            errors = server.errors
    print(f"{arguments.count} requests: {dict(sorted(statuses.items()))}; memory grew by "
          f"{growth:.1f} MB; stderr: {errors.count('Traceback')} tracebacks in {len(errors)} "
          f"bytes; a good request after them is answered {'right' if is_right else 'wrong'}")
    return int(described.returncode != 0 or "Traceback" in errors or growth > _ALLOWED_MB
               or any(status >= "500" and status != "none" for status in statuses))


if __name__ == "__main__":
    sys.exit(main())
