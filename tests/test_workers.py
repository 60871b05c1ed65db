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

KERNELS = [KernelSource.of(Path(cubins.base.__file__).with_name("self_check.cl"), "self_check",
                           {"NUMBER": number}) for number in range(3)]


def finished(controller: workers.Controller,
             *parts: list[KernelSource]) -> tuple[pytest.ExitCode, list[str]]:
    for number, compiled in enumerate(parts):
        config: Any = SimpleNamespace(workerinput={"workerid": f"gw{number}"})
        controller.pytest_configure_node(config)
        workers.hand_over(config, compiled)
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK)
    controller.pytest_sessionfinish(session)
    lines: list[str] = []
    controller.pytest_terminal_summary(
        SimpleNamespace(ensure_newline=lambda: None, write_line=lines.append))
    return session.exitstatus, lines


def test_a_fault_fails_the_run(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)

    def broken(source: KernelSource, architecture: str) -> Any:
        raise CompileError(f"{source.function} is broken for {architecture}")

    monkeypatch.setattr("gossamer.device.cuda.nvrtc.compile_cubin", broken)
    status, lines = finished(workers.Controller(), KERNELS[:2], KERNELS[1:])
    assert status == pytest.ExitCode.TESTS_FAILED
    assert lines.count("self_check is broken for sm_75") == len(KERNELS) + 1
    assert "every_word is broken for sm_100" in lines
