"""Each device has the capabilities that it declares, and refuses the others; code outside of
gossamer/device asks for capabilities and not for the kind of device."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gossamer
from gossamer.device import blas
from gossamer.device.base import Device
from gossamer.device.host import HostDevice, host_array
from gossamer.device.registry import find
from gossamer.errors import DeviceError, InputError
from gossamer.tensor import TensorSpec, default_spec
from tests.device.helpers import SELF_CHECK, read

PACKAGE = Path(gossamer.__file__).parent
SPEC = default_spec((2, 3))


def _array_of(device: Device) -> Any:
    """Returns an array of the device; None where the device has none."""
    return device.empty_array(SPEC, "a test") if device.runs_cuda_libraries else None


METHODS = {
    "assembles_ptx": ("assemble",),
    "runs_cuda_libraries": ("stream_handle", "current", "wrap"),
}
"""The methods that belong to each flag."""

EXCHANGE = ("holds", "incoming", "empty_array", "like")
"""The methods for arrays of other libraries, of which a device has all or none."""

CALLS: dict[str, Callable[[Any], Any]] = {
    "assemble": lambda device: device.assemble("a", (), list),
    "stream_handle": lambda device: device.stream_handle(None),
    "current": lambda device: device.current(),
    "wrap": lambda device: device.wrap(4096, 16, None),
    "address": lambda device: device.empty(16, "a test").address,
    "incoming": lambda device: device.incoming(np.zeros(2)),
    "empty_array": lambda device: device.empty_array(SPEC, "a test"),
    "like": lambda device: device.like(np.zeros(2), _array_of(device)),
    "capture": lambda device: device.capture(lambda stream: None),
}


def _classes() -> dict[str, type[Device]]:
    classes: dict[str, type[Device]] = {"host": HostDevice}
    for name, module, cls in (("opencl", "gossamer.device.opencl", "OpenCLDevice"),
                              ("cuda", "gossamer.device.cuda.device", "CudaDevice"),
                              ("emulated", "tests.emulation.device", "EmulatedDevice")):
        try:
            classes[name] = getattr(__import__(module, fromlist=[cls]), cls)
        except ImportError:
            continue
    return classes


@pytest.mark.parametrize("kind", _classes())
def test_a_flag_and_its_methods_are_declared_together(kind: str) -> None:
    cls = _classes()[kind]
    device = object.__new__(cls)
    for flag, methods in METHODS.items():
        for method in methods:
            overridden = getattr(cls, method) is not getattr(Device, method)
            assert overridden == getattr(device, flag), f"{kind}: {flag} and {method}"
    exchanged = {getattr(cls, method) is not getattr(Device, method)
                 for method in EXCHANGE}
    assert len(exchanged) == 1, f"{kind} overrides a part of {', '.join(EXCHANGE)}"


def _has(device: Device, method: str) -> bool:
    if method == "capture":
        return device.limits.graph
    if method in EXCHANGE:
        return type(device).holds is not Device.holds
    return device.assembles_ptx if method == "assemble" else device.runs_cuda_libraries


def _refusal(device: Device, method: str) -> str | None:
    try:
        CALLS[method](device)
    except DeviceError as error:
        return str(error)
    except InputError:
        # the device takes other arrays
        pass
    return None


def test_exactly_what_a_device_cannot_do_is_refused_in_one_line(device: Device) -> None:
    refusals = {method: text for method in CALLS if (text := _refusal(device, method))}
    assert set(refusals) == {method for method in CALLS if not _has(device, method)}
    assert all(device.name in text and "\n" not in text for text in refusals.values())


def test_arrays_in_host_memory_are_held_by_no_device(device: Device) -> None:
    assert not device.holds(np.zeros(2))


def test_names_and_limits_are_consistent(device: Device) -> None:
    limits = device.limits
    assert 1 <= limits.sure_work_group_size <= limits.work_group_size
    assert device.chip and device.chip in device.description
    assert isinstance(device.toolkit, str) and "\n" not in device.toolkit
    assert bool(device.architecture) or not device.assembles_ptx


def test_a_stream_waits_for_another(device: Device) -> None:
    first, second = device.create_stream(), device.create_stream()
    source, target = (device.upload(np.zeros(8, np.float32), "a test") for _ in range(2))
    if device.compiles:
        device.launch(device.compile(SELF_CHECK), (1,), (8,), (source, 8), stream=first)
    else:
        device.write(source, np.ones(8, np.float32), first)
    device.wait(second, first)
    device.copy(target, source, 32, second)
    result = read(device, target, 8, stream=second)
    assert result.tolist() == [1] * 8


def test_a_stream_does_not_wait_for_itself(monkeypatch: pytest.MonkeyPatch,
                                           device: Device) -> None:
    waits: list[Any] = []
    monkeypatch.setattr(type(device), "synchronize", lambda self, stream=None: waits.append(stream))
    stream = device.create_stream()
    device.wait(stream, stream)
    device.wait(None, None)
    assert waits == []


@pytest.mark.parametrize(("threads", "text"), [(2, "BLAS with 2 threads"), (1, "BLAS with 1 "
                                                                           "thread")])
def test_the_toolkit_of_the_host_is_its_blas(monkeypatch: pytest.MonkeyPatch, threads: int,
                                             text: str) -> None:
    monkeypatch.setattr(blas, "threads", lambda: threads)
    assert find("host").toolkit == text


def test_host_memory_becomes_arrays_and_other_memory_does_not(device: Device) -> None:
    buffer = device.upload(np.arange(6, dtype=np.float32), "a test")
    if device.compiles:
        with pytest.raises(DeviceError, match=f"expected host memory, got memory of {device.name}"):
            host_array(buffer, (6,))
        return
    spec = TensorSpec((2, 3))
    assert host_array(buffer, spec).tolist() == [[0, 1, 2], [3, 4, 5]]
    host_array(buffer, (3,), np.int32)[:] = 0
    assert host_array(buffer, (6,)).tolist() == [0, 0, 0, 3, 4, 5]
    with pytest.raises(ValueError, match="needs 28 bytes, but the buffer has 24"):
        host_array(buffer, (7,))


def test_memory_of_other_libraries_is_used_in_place(cuda: Device) -> None:
    buffer = cuda.upload(np.arange(512, dtype=np.float32), "a test")
    part = buffer.view(cuda.alignment, 256)
    assert part.address == buffer.address + cuda.alignment
    wrapped = cuda.wrap(part.address, 256, buffer)
    result = read(cuda, wrapped, 64)
    assert result[0] == cuda.alignment / 4
    stream = cuda.create_stream()
    assert cuda.stream_handle(stream) == stream.handle != cuda.stream_handle(None)
    with cuda.current():
        cuda.keep(buffer)


def test_arrays_are_exchanged(cuda: Device) -> None:
    array = cuda.empty_array(SPEC, "a test")
    cuda.write(array.buffer, np.ones(6, np.float32))
    assert cuda.holds(array) and cuda.incoming(array) is array
    assert (array.shape, array.dtype) == ((2, 3), np.float32)
    assert np.asarray(cuda.like(np.zeros(1), array)).tolist() == [[1, 1, 1], [1, 1, 1]]


def test_ptx_is_assembled(cuda: Device) -> None:
    from gossamer.device.cuda import ptx

    code = ptx.Code()
    address = code.get("ld.param.u64", "q", ptx.Address("target"))
    code.emit("st.global.u32", ptx.Address(address), 7)
    code.emit("ret")
    program = ptx.kernel("seven", ("target",), code, 1, 1)
    kernel = cuda.assemble(program.name, (program.text,), lambda: program)
    buffer = cuda.upload(np.zeros(1, np.int32), "a test")
    cuda.launch(kernel, (1,), (1,), (buffer,))
    result = read(cuda, buffer, 1, np.int32)
    assert result[0] == 7


_WORD = r"(?:\w+\.)*(?:\w+_)?(?:device|gpu|buffer|workspace)"
_KINDS = re.compile("|".join((
    r"\bapi (?:[!=]=|(?:not )?in) ['\"(\[{]", r"['\"\])}] (?:[!=]=|in) (?:\w+\.)*api\b",
    r"\[(?:\w+\.)*\w+\.api\]", r"\.get\((?:\w+\.)*api\b", r"\bmatch (?:\w+\.)*api:",
    r"\bapi\.(?:startswith|endswith|lower|partition|split)\(", rf"\b(?:has|get)attr\({_WORD},",
    r"\b(?:isinstance|cast)\([^)]*?\b(?:Host|OpenCL|Cuda)(?:Device|Buffer|Kernel)\b",
    rf"(?<!jax_)\b(?!jax_){_WORD}: Any\b", r"type: ignore\[[^]]*attr-defined")))
"""Matches code that decides by a device's api, looks for an attribute that devices or buffers may
lack, asks for the class of one, or hides its type."""


@pytest.mark.parametrize("line", [
    "if device.api == 'cuda': pass", "x = self.device.api not in ('host', 'opencl')",
    "y = {'cuda': 1}[device.api]", "z = TABLE.get(state.device.api)",
    "w = device.api.startswith('cu')", "v = hasattr(device, 'assemble')",
    "u = getattr(self.device, 'is_simulator', False)", "t = isinstance(buffer, HostBuffer)",
    "s = cast('CudaBuffer', buffer).address", "def f(device: Any): pass",
    "device: Any = state.device", "r = buffer.address  # type: ignore[attr-defined]",
    "match device.api:\n    case 'cuda': pass", "q = api == 'host'", "'cuda' == device.api",
    "isinstance(device,\n           HostDevice | OpenCLDevice)",
])
def test_the_scan_finds(line: str) -> None:
    assert _KINDS.search(line)


def test_code_asks_for_capabilities_and_not_for_kinds_of_devices() -> None:
    lines = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith(("device/", "model/")):
            # a device knows its kind; models know no devices
            continue
        text = path.read_text(encoding="utf-8")
        lines += [f"gossamer/{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
                  for match in _KINDS.finditer(text)]
    assert not lines, "ask for a capability (gossamer/device/base.py) in:\n" + "\n".join(lines)
