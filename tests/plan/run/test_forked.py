"""A process that is forked after a plan was used refuses it at once; its driver would hang."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.device.base import Device
from tests.model.onnx_models import save
from tests.plan.small import small

PROGRAM = """
import os, sys
import numpy as np
import gossamer
from gossamer.errors import DeviceError
plan = gossamer.compile(sys.argv[1], sys.argv[2])
x = np.zeros((1, *plan.inputs[0].shape[1:]), np.float32)
plan(x)
context = plan.context(1)
child = os.fork()
if child == 0:
    refused = []
    for call in (lambda: plan(x), lambda: context.run({plan.inputs[0].name: x}),
                 lambda: plan.context(1)):
        try:
            call()
        except DeviceError as error:
            refused.append("forked" in str(error))
    os._exit(0 if refused == [True] * 3 else 1)
_, status = os.waitpid(child, 0)
plan(x)
sys.exit(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_forked_process_refuses_a_plan(compiled_device: Device, tmp_path: Path) -> None:
    if not compiled_device.compiles or compiled_device.is_simulator:
        pytest.skip("the host works in forked processes, and the simulator is slow")
    path = save(small(), tmp_path)
    environment = {**os.environ, "GOSSAMER_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(path), compiled_device.name], check=True,
                   timeout=100, env=environment)
