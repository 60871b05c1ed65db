"""Tests of the peers of inference on the processor."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest

from bench_tests.networks import tiny
from gossamer.bench.networks import input_of, reference
from gossamer.device.registry import find
from gossamer_bench.peers import inference
from tests.tolerances import normalised_error, tolerance

BINDS = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"),
                           reason="the system does not bind threads to processors")


@BINDS
def test_threads_of_onnxruntime_have_processors_of_their_own() -> None:
    pytest.importorskip("onnxruntime")
    network, host = tiny(), find("host")
    (alternative,) = inference.onnxruntime(network, input_of(network, 2), host, ["fp32"])
    tasks = set(os.listdir("/proc/self/task"))
    ready = alternative.make()
    first, *others = sorted(os.sched_getaffinity(0))[:host.limits.compute_units]
    expected = [[processor] for processor in others]

    def of_workers() -> list[list[int]]:
        return sorted(sorted(os.sched_getaffinity(int(task)))
                      for task in set(os.listdir("/proc/self/task")) - tasks)

    # each binds itself when it starts
    deadline = time.monotonic() + 10
    while of_workers() != expected and time.monotonic() < deadline:
        time.sleep(0.01)
    assert of_workers() == expected
    with ready.around():
        assert os.sched_getaffinity(0) == {first}


@pytest.mark.parametrize(("name", "library"), [("onnxruntime", "onnxruntime"),
                                               ("openvino", "openvino"), ("opencv-dnn", "cv2")])
def test_as_many_results_as_asked_for(name: str, library: str) -> None:
    pytest.importorskip(library)
    x = np.random.default_rng(5).standard_normal((3, 3, 8, 8), np.float32)
    (way,) = inference.PEERS[name](tiny(), x, find("host"), ("fp32",))
    ready = way.make()
    ready.work(None)
    for count in (1, 2, 3):
        assert normalised_error(ready.output(count),
                                reference(tiny().graph, x[:count])) < tolerance("network")
