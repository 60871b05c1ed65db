"""Tests that kernels of several test processes are built for CUDA by the process that started
them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gossamer.device.source import KernelSource
from gossamer.errors import CompileError
from tests import cubins, workers
from tests.cubins import ALONE

KERNELS = [KernelSource.of(Path(cubins.base.__file__).with_name("self_check.cl"), "self_check",
                           {"NUMBER": number}) for number in range(3)]


def finished(controller: workers.Controller, *parts: list[KernelSource],
             status: pytest.ExitCode = pytest.ExitCode.OK) -> tuple[pytest.ExitCode, list[str]]:
    for number, compiled in enumerate(parts):
        config: Any = SimpleNamespace(workerinput={"workerid": f"gw{number}"})
        controller.pytest_configure_node(config)
        workers.hand_over(config, compiled)
    session: Any = SimpleNamespace(exitstatus=status)
    controller.pytest_sessionfinish(session)
    lines: list[str] = []
    controller.pytest_terminal_summary(
        SimpleNamespace(ensure_newline=lambda: None, write_line=lines.append))
    return session.exitstatus, lines


def test_what_all_have_built_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[str, list[KernelSource]] = {}

    def record(sources: list[KernelSource], architecture: str) -> list[str]:
        built[architecture] = sources
        return []

    monkeypatch.setattr(workers, "faults", record)
    monkeypatch.setattr(workers, "ARCHITECTURES", {"sm_75": 8, "sm_80": 2})
    status, (line,) = finished(workers.Controller(), KERNELS[:2], KERNELS[1:])
    assert status == pytest.ExitCode.OK
    everything = {*KERNELS, *ALONE}
    assert line.startswith(f"up to {len(everything)} kernels were built for sm_75, sm_80")
    assert set(built["sm_75"]) == everything and len(built["sm_75"]) == len(everything)
    assert set(built["sm_80"]) == everything - {KERNELS[1]}


def test_a_fault_fails_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path))

    def broken(source: KernelSource, architecture: str) -> Any:
        raise CompileError(f"{source.function} is broken for {architecture}")

    monkeypatch.setattr("gossamer.device.cuda.nvrtc.compile_cubin", broken)
    status, lines = finished(workers.Controller(), KERNELS)
    assert status == pytest.ExitCode.TESTS_FAILED
    assert "self_check is broken for sm_75" in lines and "every_word is broken for sm_100" in lines


@pytest.mark.parametrize("compiled, status", [
    (KERNELS, pytest.ExitCode.INTERRUPTED), ([], pytest.ExitCode.TESTS_FAILED)])
def test_nothing_is_built_in_vain(monkeypatch: pytest.MonkeyPatch, compiled: list[KernelSource],
                                  status: pytest.ExitCode) -> None:
    monkeypatch.setattr(workers, "faults", lambda *_: pytest.fail("was built"))
    assert finished(workers.Controller(), compiled, status=status) == (status, [])
