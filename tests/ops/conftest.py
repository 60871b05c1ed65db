"""A device that records kernels, and an emulated processor, for the tests of algorithms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from gossamer.device.jobs import Job
from tests.ops.arm import OnArm, run_on_arm
from tests.ops.recording import RecordingDevice


@pytest.fixture
def recorder() -> RecordingDevice:
    """A device that has recorded nothing."""
    return RecordingDevice()


@pytest.fixture
def on_arm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[OnArm]:
    """Has the algorithms of modules run on Arm, as run_on_arm does, and checks that some ran."""
    ran: list[Job] | None = None

    def run(*modules: ModuleType) -> None:
        nonlocal ran
        ran = run_on_arm(monkeypatch, tmp_path, *modules)

    yield run
    assert ran != []
