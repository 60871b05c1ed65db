"""Fixtures of all tests of plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import gossamer
from gossamer.plan import group_processes
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import save
from tests.plan.small import images, small


@pytest.fixture(params=[None, "quick"])
def effort(request: pytest.FixtureRequest) -> str | None:
    """The efforts of a plan without measurements and of one with few."""
    return request.param


@pytest.fixture
def with_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every group has a process for each device."""
    monkeypatch.setattr(group_processes, "have_processes", lambda devices: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="module")
def of_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlanGroup]:
    """A group over two processes of the host, both ready."""
    if not group_processes.SharedMemory.is_supported():
        pytest.skip("needs Linux")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_processes, "have_processes", lambda devices: True)
        patch.setenv("OMP_NUM_THREADS", "1")
        group = gossamer.compile(str(save(small(), tmp_path_factory.mktemp("shared"))), "host,host")
    with group:
        for member in group.members.all:
            member.compute(group.members.checked(images(1)))
        yield group
