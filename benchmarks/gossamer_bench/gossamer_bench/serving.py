"""Measures servers under load: the latency at given rates of requests, and the sizes of the
batches.

Each server and the client are processes of their own. Requests are sent at random times with a
given mean rate, even while earlier requests wait for answers. The latency of a request is the time
between the moment at which the request was due and its answer.
"""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from gossamer.errors import InputError, first_line
from gossamer.model.load import load
from gossamer.plan.plan import Plan
from gossamer_bench.load_client import Outcome, Request, run

SERVERS = ("gossamer", "litserve", "fastapi", "empty")
"""The servers that are known: gossamer's, PyTorch behind LitServe, PyTorch behind a plain handler
of FastAPI, and the same handler without a network."""
_SHARES = (0.25, 0.5, 0.7, 0.9)
"""Default rates at which a server is measured, as shares of the highest rate that the server
answers."""
_START_S = 600.0
"""Seconds within which a server must be ready for requests; some servers compile the network
first."""
_BODIES = 4
"""Number of different photos that the client sends in turn."""


@dataclass(frozen=True)
class ServingRow:
    """The measurement of one server at one rate.

    photos: number of photos in a request.
    rate: mean number of requests per second; None where each of 64 connections sends its next
    request as soon as its last request was answered.
    answered: number of successful answers per second.
    p50_ms, p99_ms, p999_ms: median, 99th and 99.9th percentile of the latency, in milliseconds.
    failed: number of requests without a successful answer.
    batches: for each batch size, its share of all batches; empty where the server does not report
    its batches.
    """

    server: str
    photos: int
    rate: float | None
    answered: float
    p50_ms: float
    p99_ms: float
    p999_ms: float
    failed: int
    batches: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """The setting of a measurement.

    model: file of the network, or its name in the zoo.
    device: name of the device.
    seconds: length of the measurement at each rate.
    latency: value of the option --latency of `gossamer serve`.
    photos: number of photos in a request.
    """

    model: str
    device: str
    seconds: float
    latency: str
    photos: int = 1


def measure(setting: Setting, servers: Sequence[str],
            rates: Sequence[float]) -> Iterator[ServingRow]:
    """Yields the rows of each server. The first row is measured with 64 connections; each of them
    sends its next request as soon as its last request was answered. Raises InputError where a
    server does not start."""
    name, shape = _network_input(setting)
    photos = [np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
              for seed in range(_BODIES)]
    for server in servers:
        with _started(server, setting) as port:
            path, headers, bodies = _requests(server, setting, name, photos)
            first = run(Request("127.0.0.1", port, path, headers, bodies, None,
                                max(2.0, setting.seconds / 2)))
            yield _row(server, setting.photos, None, first, {})
            for rate in rates or [share * first.rate for share in _SHARES]:
                before = _batches(server, port)
                outcome = run(Request("127.0.0.1", port, path, headers, bodies, rate,
                                      setting.seconds, connections=256))
                after = _batches(server, port)
                yield _row(server, setting.photos, rate, outcome, {
                    size: count - before.get(size, 0) for size, count in after.items()})


def _network_input(setting: Setting) -> tuple[str, tuple[int, ...]]:
    """Returns the name of the network's input, and the shape of a request's photos. Raises
    InputError for a network that takes no photos."""
    graph = (Plan.load(setting.model, setting.device).graph if setting.model.endswith(".plan")
             else load(setting.model))
    info = graph.network_inputs[0]
    if len(info.shape) != 4 or None in info.shape[1:] or graph.metadata.preprocessing is None:
        raise InputError(f"{setting.model}: takes no photos of one size of which it is known how "
                         "they are prepared; these are what is sent")
    _, channels, height, width = info.shape
    return info.name, (setting.photos, height or 0, width or 0, channels or 0)


def _requests(server: str, setting: Setting, name: str, photos: Sequence[np.ndarray]
              ) -> tuple[str, dict[str, str], list[bytes]]:
    """Returns the path, the headers and the bodies of the requests that a server accepts."""
    if server == "litserve":
        return "/predict", {"Content-Type": "application/json"}, [
            json.dumps({"photos": base64.b64encode(x.tobytes()).decode()}).encode() for x in photos]
    if server != "gossamer":
        return "/predict", {"Content-Type": "application/octet-stream"}, [
            x.tobytes() for x in photos]
    heads = [json.dumps({
        "parameters": {"binary_data_output": True},
        "inputs": [{"name": name, "datatype": "UINT8", "shape": list(x.shape),
                    "parameters": {"binary_data_size": x.nbytes}}]}).encode() for x in photos]
    return (f"/v2/models/{_name(setting.model)}/infer",
            {"Inference-Header-Content-Length": str(len(heads[0]))},
            [head + x.tobytes() for head, x in zip(heads, photos, strict=True)])


def _name(model: str) -> str:
    return re.sub(r"(\.onnx|\.onnx\.gz|\.cfg|\.plan)$", "", Path(model).name)


@contextmanager
def _started(server: str, setting: Setting) -> Iterator[int]:
    """Starts a server, yields its port when the server accepts requests, and ends the server
    afterwards."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    if server == "gossamer":
        words = ["gossamer", "serve", setting.model, "--device", setting.device, "--port",
                 str(port), "--latency", setting.latency]
    else:
        module = "litserve_server" if server == "litserve" else "http_servers"
        words = [f"gossamer_bench.peers.{module}", server, setting.model, setting.device,
                 str(port)]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([sys.executable, "-m", *words], stdout=subprocess.DEVNULL,
                                   stderr=errors, start_new_session=True)
        try:
            _wait_for(server, process, port, errors)
            yield port
        finally:
            # LitServe starts further processes, which outlive the first one
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _wait_for(server: str, process: subprocess.Popen[bytes], port: int, errors: IO[str]) -> None:
    end = time.monotonic() + _START_S
    path = "/v2/health/ready" if server == "gossamer" else (
        "/health" if server == "litserve" else "/docs")
    while time.monotonic() < end:
        if process.poll() is not None:
            errors.seek(0)
            last = errors.read().strip().splitlines()[-1:] or ["no message"]
            raise InputError(f"the server {server} did not start: {last[0]}")
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError as error:
            reason = first_line(error)
        time.sleep(0.1)
    raise InputError(f"the server {server} took no request in {_START_S:g} s: {reason}")


def _batches(server: str, port: int) -> dict[int, int]:
    """Returns how many batches of each size a server has computed so far; empty where the server
    does not report its batches."""
    if server != "gossamer":
        return {}
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.findall(r'^gossamer_batches_total\{.*size="(\d+)"\} ([0-9.e+]+)$', text, re.M)
    return {int(size): int(float(count)) for size, count in found}


def _row(server: str, photos: int, rate: float | None, outcome: Outcome,
         batches: Mapping[int, int]) -> ServingRow:
    total = sum(batches.values())
    failed = sum(count for status, count in outcome.statuses.items() if status != "200")
    p50, p99, p999 = (1e3 * outcome.percentile_s(percent) for percent in (50, 99, 99.9))
    return ServingRow(server, photos, rate, outcome.rate, p50, p99, p999, failed,
                      {size: count / total for size, count in sorted(batches.items()) if count})
