"""Groups of plans: order, devices that fail, what is measured, and who works."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.device.host import HostDevice
from gossamer.device.registry import find, find_several
from gossamer.errors import (
    DeviceError,
    DeviceLostError,
    GossamerWarning,
    InputError,
    OutOfMemoryError,
)
from gossamer.plan.plan_group import PlanGroup
from tests.model.onnx_models import save
from tests.plan.small import assert_close, compiled, expected, images, small


class FailingHost(HostDevice):
    """A host that fails at the calls from a given one on.

    good_calls: how many it makes before. error: what it raises then.
    """

    def __init__(self, good_calls: int = 0,
                 error: DeviceError | None = None) -> None:
        super().__init__()
        self.good_calls = good_calls
        self.error = error or DeviceError("the bus has come off")
        self.has_failed = threading.Event()

    def write(self, buffer: Any, array: np.ndarray, stream: Any = None) -> None:
        if self.good_calls <= 0:
            self.has_failed.set()
            raise self.error
        self.good_calls -= 1
        super().write(buffer, array, stream)


class LaterHost(HostDevice):
    """A host that computes nothing before another device has failed."""

    def __init__(self, other: FailingHost) -> None:
        super().__init__()
        self.other = other

    def write(self, buffer: Any, array: np.ndarray, stream: Any = None) -> None:
        assert self.other.has_failed.wait(20)
        super().write(buffer, array, stream)


def group_on(devices: Any, folder: Path) -> PlanGroup:
    return gossamer.compile(str(save(small(), folder)), devices)


def test_every_device_works(tmp_path: Path) -> None:
    first, second = HostDevice(), HostDevice()
    both = threading.Barrier(2, timeout=20)

    def meet(self: HostDevice, buffer: Any, array: np.ndarray, stream: Any = None) -> None:
        both.wait()
        HostDevice.write(self, buffer, array, stream)

    for device in (first, second):
        device.write = meet.__get__(device)  # type: ignore[method-assign]
    group = group_on([first, second], tmp_path)
    # a batch is copied in only when the other device has one as well
    assert len(list(group.stream([images(1, seed) for seed in range(8)]))) == 8


def test_a_device_that_is_named_twice_has_one_plan(tmp_path: Path) -> None:
    group = group_on("host,host", tmp_path)
    assert len(group.plans) == 2 and group.plans[0] is group.plans[1]
    assert group.device_names == "host, host"
    assert_close(group(images(3)), expected(images(3)))
    assert_close(group(x=images(3)), expected(images(3)))
    assert "shared by 2 workers: host, host" in group.report().notes


@pytest.mark.parametrize("good_calls", [0, 1, 3])
@pytest.mark.parametrize("error", [DeviceError("a bus"), DeviceLostError("a bus")])
def test_the_work_of_a_device_that_fails_is_done_again(good_calls: int, error: DeviceError,
                                                       tmp_path: Path) -> None:
    failing = FailingHost(good_calls, error)
    group = group_on([failing, LaterHost(failing)], tmp_path)
    batches = [images(2, seed) for seed in range(12)]
    with pytest.warns(GossamerWarning, match="host is left out, and its work is done on the other "
                                             "devices: a bus"):
        results = list(group.stream(batches))
    for x, y in zip(batches, results, strict=True):
        assert_close(y, expected(x))
    assert group.device_names == "host"
    assert "host is left out: a bus" in group.report().warnings
    # it stays left out, without a further warning
    with warnings.catch_warnings(action="error"):
        assert len(list(group.stream(batches))) == 12
        assert_close(group(batches[0]), expected(batches[0]))


def test_a_call_is_made_again_on_another_device(tmp_path: Path) -> None:
    group = group_on([FailingHost(), HostDevice()], tmp_path)
    with pytest.warns(GossamerWarning, match="is left out"):
        assert_close(group(images(2)), expected(images(2)))


def test_where_all_devices_fail_the_error_names_the_batch(tmp_path: Path) -> None:
    group = group_on([FailingHost(), FailingHost()], tmp_path)
    with pytest.raises(DeviceError, match=r"^batch 0: the bus has come off$"):
        next(group.stream([images(2)]))
    with pytest.raises(DeviceError, match=r"^the bus has come off$"):
        group(images(2))
    # what no device can do says nothing of the devices
    assert group.device_names == "host, host"


def test_the_last_device_that_is_lost_stays_to_say_so(tmp_path: Path) -> None:
    lost = DeviceLostError("lost")
    group = group_on([FailingHost(0, lost), FailingHost(0, lost)], tmp_path)
    with pytest.warns(GossamerWarning, match="is left out"):
        results = list(group.stream([images(2)] * 5, errors="return"))
    assert [type(y) for y in results] == [DeviceLostError] * 5


def test_too_little_memory_leaves_no_device_out(tmp_path: Path) -> None:
    failing = FailingHost(0, OutOfMemoryError("too little"))
    group = group_on([failing, LaterHost(failing)], tmp_path)
    with warnings.catch_warnings(action="error"):
        assert_close(next(group.stream([images(2)])), expected(images(2)))
        assert_close(group(images(2)), expected(images(2)))
    assert group.device_names == "host, host"


def test_devices_of_a_kind_measure_once(own_cache: Path, tmp_path: Path,
                                        monkeypatch: pytest.MonkeyPatch) -> None:
    group = gossamer.compile(str(save(small(), tmp_path)), [HostDevice(), HostDevice()],
                             effort="quick")
    built: list[Device] = []
    from gossamer.plan.tune import candidate_checks

    checked = candidate_checks.CandidateChecks.checked

    def counting(self: Any, *arguments: Any, **options: Any) -> Any:
        built.append(self)
        return checked(self, *arguments, **options)

    monkeypatch.setattr(candidate_checks.CandidateChecks, "checked", counting)
    group.plans[0].program(2)
    measured = len(built)
    assert measured
    group.plans[1].program(2)
    assert len(built) == measured
    assert [step.variant for step in group.plans[1].program(2).steps] == [
        step.variant for step in group.plans[0].program(2).steps]


def test_a_saved_plan_on_two_devices(tmp_path: Path) -> None:
    path = tmp_path / "small.plan"
    compiled(small(), find("host"), tmp_path).save(path)
    group = PlanGroup.load(path, ["host", "host"])
    assert_close(group(images(2)), expected(images(2)))


def test_a_closed_group_computes_nothing(tmp_path: Path) -> None:
    with group_on(["host", "host"], tmp_path) as group:
        group(images(1))
    with pytest.raises(InputError, match="the plan is closed"):
        group(images(1))
    with pytest.raises(InputError, match="the plan is closed"):
        group.stream([images(1)])


def test_lists_of_devices() -> None:
    host = find("host")
    assert find_several("host:all") == [host]
    assert find_several("host, host") == [host, host]
    assert find_several(["host:all", host]) == [host, host]
    with pytest.raises(InputError, match="the list of devices is empty"):
        find_several([])
    for wrong in (0, [0], ["host", None]):
        with pytest.raises(InputError, match="expected a name such as 'cuda:0', a Device, or"):
            find_several(wrong)  # type: ignore[arg-type]
    with pytest.raises(DeviceError, match="there is no device tpu:all here: there is no such API"):
        find_several("tpu:all")
    with pytest.raises(DeviceError, match="there is no device 'host:3' here"):
        find_several(["host:3"])


def test_a_group_of_nothing() -> None:
    with pytest.raises(InputError, match="a group needs at least one plan"):
        PlanGroup([])


def test_one_gpu_named_twice(cuda: Device, tmp_path: Path) -> None:
    group = group_on([cuda, cuda], tmp_path)
    batches = [images(64, seed) for seed in range(20)]
    for x, y in zip(batches, group.stream(batches), strict=True):
        assert_close(y, expected(x))
