"""Tests of Launch, in which only the run-time buffers are missing."""

from __future__ import annotations

import numpy as np

from gossamer.device.base import Device
from gossamer.ops.launch import Launch, input_buffer, output_buffer, workspace_buffer
from tests.device.helpers import SELF_CHECK
from tests.ops.recording import RecordingDevice


def test_functions_are_replaced_by_run_time_buffers() -> None:
    device = RecordingDevice()
    kernel = device.compile(SELF_CHECK)
    first, second, output, scratch, weight = (device.empty(16, "a test") for _ in range(5))
    launch = Launch(kernel, (3, 2), (64, 1), (
        input_buffer(1), weight, 7, 2.5, None, np.int64(9), output_buffer(0), workspace_buffer,
        input_buffer(0)), shared_bytes=128)
    launch.run(device, [first, second], [output], scratch, "a stream")
    launch.run(device, [second, first], [output], None)
    assert device.launches == [
        ((kernel, (3, 2), (64, 1),
          [second, weight, 7, 2.5, None, np.int64(9), output, scratch, first]),
         {"shared_bytes": 128, "stream": "a stream"}),
        ((kernel, (3, 2), (64, 1),
          [first, weight, 7, 2.5, None, np.int64(9), output, None, second]),
         {"shared_bytes": 128, "stream": None})]


def test_a_launch_computes(compiled_device: Device) -> None:
    buffer = compiled_device.upload(np.arange(8, dtype=np.float32), "a test")
    Launch(compiled_device.compile(SELF_CHECK), (1,), (8,), (output_buffer(0), 8)).run(
        compiled_device, [], [buffer], None)
    result = np.empty(8, np.float32)
    compiled_device.read(buffer, result)
    assert result.tolist() == [2 * value + 1 for value in range(8)]
