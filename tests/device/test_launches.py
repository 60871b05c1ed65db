from pathlib import Path

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.device.checks import self_check
from gossamer.device.host import HostDevice
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError, DeviceError, GossamerError
from tests.device.helpers import SELF_CHECK, launched, read, self_check_of
from tests.processes import in_threads

KERNELS = Path(__file__).with_name("kernels.cl")


@pytest.mark.sanitize
def test_self_check_passes(compiled_device: Device) -> None:
    self_check(compiled_device)


def test_one_wrong_number_fails_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    host, right = HostDevice(), np.arange(1, 65, dtype=np.float32) * 2 + 1
    monkeypatch.setattr(host, "compile", lambda source: None)
    monkeypatch.setattr(host, "launch", lambda kernel, groups, size, arguments: host.write(
        arguments[0], right))
    self_check(host)
    right[-1] += 1
    with pytest.raises(DeviceError, match="host built a one-line kernel but it computed wrong"):
        self_check(host)


def test_same_source_is_built_once(compiled_device: Device) -> None:
    assert compiled_device.compile(SELF_CHECK) is compiled_device.compile(SELF_CHECK)


@pytest.mark.sanitize
def test_arguments_keep_their_types(compiled_device: Device) -> None:
    (result,) = launched(
        compiled_device, KernelSource.of(KERNELS, "arguments"), (1,), (1,), np.zeros(6, np.float32),
        -3, 0.5, np.uint8(200), np.int16(-7), np.uint32(2**32 - 1), np.float32(1.25), None)
    assert result.tolist() == [-3, 0.5, 200, -7, np.float32(2**32), 1.25]


@pytest.mark.sanitize
def test_three_dimensions(compiled_device: Device) -> None:
    (result,) = launched(compiled_device, KernelSource.of(KERNELS, "positions"), (2, 3, 2),
                         (2, 1, 2), np.zeros(2 * 3 * 2 * 4, np.int32))
    assert result.tolist() == list(range(48))


def test_no_launch_for_an_empty_dimension(compiled_device: Device) -> None:
    (result,) = launched(compiled_device, SELF_CHECK, (1, 0), (4, 1), np.ones(4, np.float32), 4)
    assert result.tolist() == [1] * 4


def check_reversed(device: Device, count: int, shared_bytes: int) -> None:
    """Checks a kernel that reverses numbers in dynamic shared memory."""
    (result,) = launched(device, KernelSource.of(KERNELS, "reverse", dynamic_shared=True), (1,),
                         (8,), np.arange(count, dtype=np.float32), count, shared_bytes=shared_bytes)
    assert result.tolist() == list(range(count))[::-1]


@pytest.mark.sanitize
@pytest.mark.parametrize("count", [8, 2000])
def test_dynamic_shared_memory(compiled_device: Device, count: int) -> None:
    check_reversed(compiled_device, count, 4 * count)


def test_dynamic_shared_memory_beyond_the_static_limit(compiled_device: Device) -> None:
    most = compiled_device.limits.shared_bytes_opt_in
    count = min(most, 200 * 1024) // 4 - 64
    check_reversed(compiled_device, count, 4 * count)
    with pytest.raises(DeviceError, match="bytes of shared memory"):
        check_reversed(compiled_device, count, most + 4)


@pytest.mark.parametrize("wrong", [
    pytest.param(lambda kernel, buffer: ((1,), (1 << 14,), (buffer, 4)), id="group too large"),
    pytest.param(lambda kernel, buffer: ((1,), (4,), (buffer, 1 << 40)), id="int too large"),
    pytest.param(lambda kernel, buffer: ((1,), (4,), (buffer,)), id="argument missing"),
    pytest.param(lambda kernel, buffer: ((1,), (4,), (buffer, 4, 4)), id="argument too many"),
])
def test_wrong_launches_name_device_or_kernel(compiled_device: Device, wrong) -> None:
    device = compiled_device
    buffer = device.upload(np.ones(4, np.float32), "a test")
    kernel = device.compile(SELF_CHECK)
    groups, size, arguments = wrong(kernel, buffer)
    with pytest.raises(DeviceError, match="self_check"):
        device.launch(kernel, groups, size, arguments)


def test_build_errors_carry_the_log(compiled_device: Device, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.cl"
    wrong.write_text('#include "dialect/common.h"\n'
                     "KERNEL void wrong(GLOBAL float *x) { x[0] = undeclared; }")
    with pytest.raises(CompileError, match=r"(?s)wrong of wrong\.cl.*undeclared"):
        compiled_device.compile(KernelSource.of(wrong, "wrong"))


@pytest.mark.filterwarnings("error")
def test_compiler_warnings_stay_silent(compiled_device: Device, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.cl"
    noisy.write_text('#include "dialect/common.h"\n#warning planted\n'
                     "KERNEL void noisy(GLOBAL float *x) { x[0] = 1.0f; }\n")
    assert compiled_device.compile(KernelSource.of(noisy, "noisy")).name == "noisy"


def test_missing_function_is_an_error(compiled_device: Device) -> None:
    with pytest.raises(GossamerError, match="no_such"):
        compiled_device.compile(KernelSource.of(KERNELS, "no_such"))


def test_host_compiles_nothing(device: Device) -> None:
    assert device.compiles == (device.api != "host")
    if not device.compiles:
        with pytest.raises(DeviceError, match="cannot compile the kernel"):
            device.compile(SELF_CHECK)


def test_threads_share_a_kernel(quick_compiled: Device) -> None:
    device = quick_compiled

    def work(start: int) -> bool:
        stream = device.create_stream()
        for turn in range(20):
            values = np.full(8, start * 100 + turn, np.float32)
            buffer = device.upload(values, "a test")
            self_check_of(device, buffer)(stream)
            back = read(device, buffer, values.shape, values.dtype, stream=stream)
            if not np.array_equal(back, values * 2 + 1):
                return False
        return True

    assert all(in_threads(work, range(4)))


def test_time_runs_the_work(device: Device) -> None:
    ran = []
    assert device.time(ran.append) >= 0
    assert len(ran) == 1


def test_time_of_launches_is_positive(compiled_device: Device) -> None:
    buffer = compiled_device.upload(np.zeros(8, np.float32), "a test")
    assert compiled_device.time(self_check_of(compiled_device, buffer)) > 0
    assert read(compiled_device, buffer, 8).tolist() == [1] * 8


def test_graph_replays_in_order(compiled_device: Device) -> None:
    device = compiled_device
    buffer = device.upload(np.zeros(8, np.float32), "a test")
    check = self_check_of(device, buffer)

    def work(stream) -> None:
        check(stream)
        check(stream)

    if not device.limits.graph:
        with pytest.raises(DeviceError, match="does not support graphs"):
            device.capture(work)
        return
    graph = device.capture(work)
    assert read(device, buffer, 8).tolist() == [0] * 8
    graph()
    assert read(device, buffer, 8).tolist() == [3] * 8
    stream = device.create_stream()
    graph(stream)
    device.synchronize(stream)
    assert read(device, buffer, 8).tolist() == [15] * 8


def test_graph_records_launches_and_copies(compiled_device: Device) -> None:
    device = compiled_device
    if not device.limits.graph:
        pytest.skip(f"{device.name} records no graphs")
    first, second = (device.upload(np.zeros(8, np.float32), "a test") for _ in range(2))
    check = self_check_of(device, first)

    def work(stream) -> None:
        check(stream)
        device.copy(second, first, 16, stream)

    graph = device.capture(work, repeats=2)
    # a kernel object that others use keeps none of the graph's arguments
    device.launch(device.compile(SELF_CHECK), (1,), (8,), (second, 4))
    assert read(device, second, 8).tolist() == [1] * 4 + [0] * 4
    assert device.time(graph) > 0
    assert read(device, first, 8).tolist() == [3] * 8
    assert read(device, second, 8).tolist() == [3] * 4 + [0] * 4


def test_opencl_graph_refuses_the_memory_of_the_host(compiled_device: Device) -> None:
    device = compiled_device
    if device.api != "opencl":
        pytest.skip("CUDA itself refuses it")
    buffer, array = device.empty(32, "a test"), np.zeros(8, np.float32)
    for transfer in (device.read, device.write):
        with pytest.raises(DeviceError, match="can record only launches and copies within"):
            device.capture(lambda stream, transfer=transfer: transfer(buffer, array, stream))
    self_check(device)


def test_failed_capture_leaves_the_device_working(compiled_device: Device) -> None:
    if not compiled_device.limits.graph:
        return
    with pytest.raises(ZeroDivisionError):
        compiled_device.capture(lambda stream: 1 / 0)
    self_check(compiled_device)
