"""Groups whose devices have processes, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.plan import group_processes
from gossamer.plan.group_processes import DeviceProcesses
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import save
from tests.plan.small import assert_close, expected, images, small

OF_PROCESSES = [
    pytest.mark.skipif(not group_processes.SharedMemory.is_supported(), reason="needs Linux"),
    pytest.mark.usefixtures("with_processes")]
"""The marks of a module whose groups have processes."""


def made(folder: Path, devices: Any = "host,host") -> PlanGroup:
    return gossamer.compile(str(save(small(), folder)), devices)


def processes(group: PlanGroup) -> DeviceProcesses:
    assert isinstance(group.members, DeviceProcesses)
    return group.members


def pids(group: PlanGroup) -> list[int]:
    """Returns the IDs of the processes that are ready."""
    return [member.pid for member in processes(group).processes
            if member.is_ready and member.pid is not None]


def started(group: PlanGroup) -> PlanGroup:
    """Waits until all devices have their process."""
    begin = group.members.checked(images(1))
    for member in group.members.all:
        member.compute(begin)
    assert len(pids(group)) == len(group.plans)
    return group


def check(batches: list[np.ndarray], results: Any) -> None:
    for x, y in zip(batches, results, strict=True):
        assert_close(y, expected(x))
