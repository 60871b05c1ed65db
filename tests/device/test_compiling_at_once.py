"""Tests of threads that compile for one CUDA device, without a driver."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from gossamer.device import base
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError
from tests.processes import in_threads

cuda = pytest.importorskip("gossamer.device.cuda.device", exc_type=ImportError)

THREADS = 4


def source(name: str) -> KernelSource:
    return KernelSource.of(Path(base.__file__).with_name("self_check.cl"), name)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A device whose kernels are plain objects; `loads` lists their names."""
    device = object.__new__(cuda.CudaDevice)
    device._kernels, device.loads, device.failures = {}, [], 0

    def load(self: Any, source: KernelSource) -> object:
        self.loads.append(source.function)
        if self.failures:
            self.failures -= 1
            raise CompileError("no room for it")
        return object()

    monkeypatch.setattr(cuda.CudaDevice, "_load", load)
    return device


def test_a_kernel_is_built_once_for_all_threads(opened: Any) -> None:
    start = threading.Barrier(THREADS)

    def compiled(name: str) -> object:
        start.wait(20)
        return opened.compile(source(name))

    one, two, one_again, two_again = in_threads(compiled, ["one", "two", "one", "two"])
    assert one is one_again and two is two_again and one is not two
    assert sorted(opened.loads) == ["one", "two"]


def test_a_build_that_failed_is_tried_again(opened: Any) -> None:
    opened.failures = 1
    with pytest.raises(CompileError, match="no room"):
        opened.compile(source("one"))
    assert opened.compile(source("one")) is opened.compile(source("one"))
    assert opened.loads == ["one", "one"]
