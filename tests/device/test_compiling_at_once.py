"""Threads that compile for one CUDA device; no driver is needed for what is seen here."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gossamer.device import base
from gossamer.device.base import KernelSource
from gossamer.errors import CompileError

cuda = pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)

THREADS = 4


def source(name: str) -> KernelSource:
    return KernelSource.of(Path(base.__file__).with_name("self_check.cl"), name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device that loads objects of its own; `loads` names them."""
    made = object.__new__(cuda.CudaDevice)
    made._kernels, made.loads, made.failures = {}, [], 0

    def load(self: Any, wanted: KernelSource) -> object:
        self.loads.append(wanted.function)
        if self.failures:
            self.failures -= 1
            raise CompileError("no room for it")
        return object()

    monkeypatch.setattr(cuda.CudaDevice, "_load", load)
    return made


def test_a_kernel_is_built_once_for_all_threads(opened: Any) -> None:
    start = threading.Barrier(THREADS)

    def compiled(name: str) -> object:
        start.wait(20)
        return opened.compile(source(name))

    with ThreadPoolExecutor(THREADS) as pool:
        one, other, same, alike = pool.map(compiled, ["one", "other", "one", "other"])
    assert one is same and other is alike and one is not other
    assert sorted(opened.loads) == ["one", "other"]


def test_a_build_that_failed_is_tried_again(opened: Any) -> None:
    opened.failures = 1
    with pytest.raises(CompileError, match="no room"):
        opened.compile(source("one"))
    assert opened.compile(source("one")) is opened.compile(source("one"))
    assert opened.loads == ["one", "one"]
