"""Calls with tensors whose form is known, on a device that records and replays like CUDA, with a
stand-in for torch."""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.errors import InputError
from gossamer.plan.plan import Plan
from gossamer.tensor import TensorSpec
from tests.device.helpers import read
from tests.plan.small import assert_close, compiled, expected, images, small

pytest.importorskip("pyopencl")

from tests.plan.device_stand_ins import Addressed, GraphDevice

_ADDRESSES = count(2**20, 2**16)


class Place:
    """A device of torch."""

    index = 0


class Tensor:
    """A tensor of torch on the device. memory: what it holds."""

    is_cuda, requires_grad, device = True, False, Place()
    __module__ = "torch"

    def __init__(self, memory: Addressed, shape: tuple[int, ...]) -> None:
        self.buffer = self.memory = memory
        self.shape = shape
        self.dtype = np.dtype(np.float32)

    def stride(self) -> tuple[int, ...]:
        return tuple(np.cumprod((1, *self.shape[:0:-1]))[::-1])

    def data_ptr(self) -> int:
        return self.memory.address

    def to(self, dtype: Any, memory_format: Any) -> Tensor:
        return self

    def contiguous(self) -> Tensor:
        return self

    def __dlpack__(self) -> None:
        raise AssertionError("the device reads tensors itself")


class TensorDevice(GraphDevice):
    """The device with tensors. checked: how many tensors were exchanged."""

    checked = 0

    def new(self, array: np.ndarray) -> Tensor:
        return Tensor(Addressed(self, next(_ADDRESSES), array), array.shape)

    def stream_handle(self, stream: Any) -> Any:
        return stream

    def holds(self, array: Any) -> bool:
        return isinstance(array, Tensor)

    def incoming(self, array: Any, stream: Any = None, *, name: str = "", dtype: Any = None) -> Any:
        self.checked += 1
        return array

    def empty_array(self, spec: TensorSpec, purpose: str, stream: Any = None) -> Any:
        return self.new(np.zeros(spec.shape, np.float32))

    def array_in(self, buffer: Any, spec: TensorSpec, stream: Any = None) -> Any:
        return SimpleNamespace(shape=spec.shape)

    def like(self, array: Any, result: Any) -> Any:
        return result


@pytest.fixture
def exchanging(pocl: Any, monkeypatch: pytest.MonkeyPatch) -> TensorDevice:
    device = TensorDevice(pocl)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(  # type: ignore[misc]
        Tensor=Tensor, float32=np.float32, contiguous_format=None,
        is_inference_mode_enabled=lambda: False,
        _C=SimpleNamespace(_cuda_getCurrentRawStream=lambda index: "current"),
        cuda=SimpleNamespace(current_stream=lambda device: "current"),
        empty_like=lambda like: device.new(np.zeros(like.shape, np.float32))))
    return device


@pytest.fixture
def plan(exchanging: TensorDevice, tmp_path: Path) -> Plan:
    return compiled(small(), exchanging, tmp_path)


def assert_right(device: TensorDevice, y: Any, seed: int) -> None:
    result = read(device, y.memory, y.shape)
    assert_close(result, expected(images(2, seed)))


def test_a_tensor_that_comes_again_is_checked_twice_and_then_replayed(
        exchanging: TensorDevice, plan: Plan) -> None:
    x, results = exchanging.new(images(2)), []
    for seed in range(5):
        exchanging.write(x.memory, images(2, seed))
        results.append(plan(x))
    assert exchanging.checked == 2
    for seed, y in enumerate(results):
        assert_right(exchanging, y, seed)
    assert len({y.data_ptr() for y in results}) == 5


def test_each_form_is_a_call_of_its_own(exchanging: TensorDevice, plan: Plan,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [exchanging.new(images(2, seed)) for seed in range(2)]
    for seed in (0, 1) * 3:
        assert_right(exchanging, plan(tensors[seed]), seed)
    assert exchanging.checked == 4
    monkeypatch.setattr(tensors[0], "requires_grad", True)
    monkeypatch.setattr(tensors[1], "shape", (2, 6, 3, 5))
    assert_right(exchanging, plan(tensors[0]), 0)
    with pytest.raises(InputError, match="has shape 2x6x3x5"):
        plan(tensors[1])
    plan.close()
    with pytest.raises(InputError, match="the plan is closed"):
        plan(tensors[0])


def test_contexts_that_are_dropped_are_not_kept_by_calls(
        exchanging: TensorDevice, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    x = exchanging.new(images(2))
    for _ in range(3):
        plan(x)
    monkeypatch.setattr("gossamer.plan.run.contexts._bytes", lambda context: 2**62)
    assert_close(plan(images(3)), expected(images(3)))
    assert_right(exchanging, plan(x), 0)
    assert exchanging.checked == 3


def test_old_forms_are_forgotten(exchanging: TensorDevice, plan: Plan,
                                 monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.plan.run.calls._MOST_KNOWN", 8)
    tensors = [exchanging.new(images(2, seed)) for seed in range(12)]
    for _ in range(2):
        for seed, x in enumerate(tensors):
            assert_right(exchanging, plan(x), seed)
    assert len(plan._calls._known) <= 8
