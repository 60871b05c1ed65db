"""Loads `gossamer serve` on a stand-in for a GPU beside an empty handler of FastAPI: what is left
between the two is what requests for inference cost the interpreter.

    python -m tests.bulk.serve_overhead --seconds 4 --rounds 3 --batch-us 150 --image-us 5

The stand-in takes batches through page-locked memory as a GPU does, makes a call for each call of
CUDA's driver, which gives up Python's lock as those do, and takes its time for each batch without
it. The rates of the two servers are measured in turn. It prints the answers a second of each round,
their ratio, the latencies, and the microseconds of processor time that each server takes for a
request. With --rate, requests come at random times.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from onnx import TensorProto, helper

import gossamer
from gossamer.device.base import Buffer
from gossamer.plan.run.calls import Calls
from gossamer.plan.run.host_transfers import HostTransfers, page_locked_array
from gossamer.serve.app import Server
from gossamer.serve.listener import bound
from gossamer.serve.models import BatchOptions, Loaded, Models, ServedModel
from gossamer.serve.run import serve
from gossamer_bench.load_client import Request, run
from tests.bulk.stand_in_device import StandInDevice, wait_until
from tests.model.onnx_models import model

_SHAPE = (224, 224, 3)
_CLASSES = 1000
_BODIES = 4
_DRIVER = ctypes.CDLL(None)


def _driver_call() -> None:
    """Gives up Python's lock for as long as a short call of the driver."""
    _DRIVER.getppid()


class StandIn(StandInDevice):
    """A device that copies nothing either, and whose page-locked memory is ordinary memory.

    batch_s, image_s: seconds of a batch, and of each of its images besides.
    """

    def __init__(self, batch_s: float, image_s: float) -> None:
        super().__init__()
        self._batch_s = batch_s
        self._image_s = image_s

    @property
    def locks_pages(self) -> bool:
        return True

    def page_locked(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)

    def is_page_locked(self, array: np.ndarray) -> bool:
        _driver_call()
        return array.base is not None

    def queue_write(self, buffer: Buffer, array: np.ndarray, stream: Any = None) -> None:
        _driver_call()

    queue_read = queue_write

    def create_stream(self) -> Any:
        return [0.0]

    def compute(self, stream: list[float], images: int) -> None:
        """Queues a batch behind those of all streams."""
        _driver_call()
        stream[0] = self.queue(self._batch_s + images * self._image_s)

    def synchronize(self, stream: Any = None) -> None:
        wait_until(stream[0])


class _Context:
    """A context with the methods that lanes call. Arrays take the same way as to a GPU."""

    def __init__(self, device: StandIn, batch: int, stream: Any) -> None:
        self._batch = batch
        self.program = SimpleNamespace(batch=batch, steps=[])
        self.buffers = SimpleNamespace(activation_bytes=0, workspace_bytes=0)
        self.pinned = [page_locked_array(device, (batch, *_SHAPE), np.uint8)]
        self._device = device
        self._transfers = HostTransfers(
            device, [device.empty(batch * int(np.prod(_SHAPE)), "x")],
            [device.empty(4 * batch * _CLASSES, "y")], stream)

    def begin(self, arrays: Sequence[np.ndarray], computing: Any = None,
              results: Sequence[np.ndarray] | None = None
              ) -> Callable[[], Sequence[np.ndarray]]:
        return self._transfers.begin(
            [np.ascontiguousarray(array) for array in arrays],
            results or [np.empty((self._batch, _CLASSES), np.float32)],
            lambda stream: self._device.compute(stream, self._batch))

    def compute(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        return self.begin(arrays)()


def _network() -> bytes:
    """Returns a network from photos to scores, as ONNX."""
    return model(
        [helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
         helper.make_node("ReduceMean", ["f"], ["m"], axes=[1, 2], keepdims=0),
         helper.make_node("MatMul", ["m", "w"], ["y"])], {"x": ["N", *_SHAPE]},
        {"y": ["N", _CLASSES]}, {"w": np.ones((_SHAPE[2], _CLASSES), np.float32)},
        types={"x": TensorProto.UINT8})


def _serve(port: int, batch_us: float, image_us: float) -> None:

    device = StandIn(batch_us / 1e6, image_us / 1e6)

    def load() -> Loaded:
        plan = gossamer.compile(_network(), "host")

        def context_of(batch: int, stream: Any) -> Any:
            return _Context(device, batch, stream or device.create_stream())

        on_stand_in = Calls(plan.graph, device, context_of)
        plan.calls = lambda use: on_stand_in
        return Loaded(plan, None)

    model = ServedModel("stand_in", [], load, BatchOptions(0.005))
    serve(Server(Models([model])), bound("127.0.0.1", port))


@contextmanager
def _started(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Gives the body a server of these arguments, to which a port is added, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", *words, str(port)])
    try:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        else:
            raise RuntimeError(f"{words[0]} did not start")
        yield process, port
    finally:
        process.kill()
        process.wait()


def _processor_s(process: subprocess.Popen[bytes]) -> float:
    """Returns the seconds of processor time that a process has taken so far."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _measured(name: str, process: subprocess.Popen[bytes], request: Request) -> float:
    """Returns the answers a second of a server, and prints them."""
    before = _processor_s(process)
    outcome = run(request)
    answers = len(outcome.latencies_s)
    processor_us = 1e6 * (_processor_s(process) - before) / max(1, answers)
    print(f"{name}: {outcome.rate:,.0f} a second, {processor_us:.0f} us of processor time each, "
          f"p50 {1e3 * outcome.percentile_s(50):.1f} ms, p99 {1e3 * outcome.percentile_s(99):.1f}; "
          f"{outcome.statuses}", flush=True)
    return outcome.rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--batch-us", type=float, default=150)
    parser.add_argument("--image-us", type=float, default=5)
    parser.add_argument("--serve", type=int, metavar="PORT", help="be the server")
    arguments = parser.parse_args()
    if arguments.serve is not None:
        _serve(arguments.serve, arguments.batch_us, arguments.image_us)
        return
    photos = [np.random.default_rng(seed).integers(0, 256, (1, *_SHAPE), np.uint8)
              for seed in range(_BODIES)]
    head = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [
        {"name": "x", "datatype": "UINT8", "shape": [1, *_SHAPE],
         "parameters": {"binary_data_size": photos[0].nbytes}}]}).encode()
    load = (arguments.rate, arguments.seconds, arguments.clients)
    with (_started("gossamer_bench.peers.http_servers", "empty", "mobilenet_v2", "host") as empty,
          _started("tests.bulk.serve_overhead", "--batch-us", str(arguments.batch_us), "--image-us",
                   str(arguments.image_us), "--serve") as served):
        for _ in range(arguments.rounds):
            most = _measured("empty handler", empty[0], Request(
                "127.0.0.1", empty[1], "/predict", {}, [x.tobytes() for x in photos], *load))
            rate = _measured("gossamer serve", served[0], Request(
                "127.0.0.1", served[1], "/v2/models/stand_in/infer",
                {"Inference-Header-Content-Length": str(len(head))},
                [head + x.tobytes() for x in photos], *load))
            print(f"ratio {rate / most:.2f}", flush=True)


if __name__ == "__main__":
    main()
