"""Support for tests in several processes (pytest-xdist): kernels that any of them built for OpenCL
are built for CUDA once, when all processes have finished."""

from __future__ import annotations

import pickle
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from gossamer.device.source import KernelSource
from tests.cubins import ARCHITECTURES, chosen, faults


class Controller:
    """The plugin of the process that starts the others."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="gossamer-tests-"))
        self._lines: list[str] = []

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["compiled"] = str(self._folder)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        compiled = dict.fromkeys(source for path in sorted(self._folder.iterdir())
                                 for source in pickle.loads(path.read_bytes()))
        shutil.rmtree(self._folder, ignore_errors=True)
        if session.exitstatus == pytest.ExitCode.INTERRUPTED or not compiled:
            return
        try:
            messages = [fault for architecture, number in ARCHITECTURES.items()
                        for fault in faults(chosen(compiled, number), architecture)]
        except ImportError as error:
            self._lines = [f"kernels were not built for CUDA: {error}"]
            return
        kernels = len(chosen(compiled, max(ARCHITECTURES.values())))
        self._lines = [f"up to {kernels} kernels were built for {', '.join(ARCHITECTURES)}",
                       *messages]
        if messages:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        terminalreporter.ensure_newline()
        for line in self._lines:
            terminalreporter.write_line(line)


def hand_over(config: pytest.Config, compiled: Iterable[KernelSource]) -> None:
    """Writes the kernels that a worker built for the process that started it."""
    name, folder = config.workerinput["workerid"], config.workerinput["compiled"]  # type: ignore[attr-defined]
    Path(folder, name).write_bytes(pickle.dumps(list(compiled)))


def is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")
