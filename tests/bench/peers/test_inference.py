"""Tests of the peers of inference on the processor."""

from __future__ import annotations

import os
import time

import pytest

from gossamer.bench.peers import inference
from gossamer.bench.suites.networks import input_of
from gossamer.device.registry import find
from tests.bench.networks import tiny

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
