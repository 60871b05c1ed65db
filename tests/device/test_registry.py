"""Tests of finding devices: the list, the default device, and the reasons why others are
unusable."""

import re
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from gossamer.device.base import Device
from gossamer.device.registry import devices, find
from gossamer.errors import DeviceError, GossamerWarning
from tests.processes import python


def test_host_is_always_there() -> None:
    entry = next(entry for entry in devices() if entry.name == "host")
    assert entry.problem is None
    assert entry.compute_units > 0 and entry.memory_bytes > 0


def test_find_returns_one_instance(device: Device) -> None:
    assert find(device.name) is device


def test_index_may_be_left_out() -> None:
    for entry in devices():
        if entry.name in ("opencl:0", "cuda:0") and entry.problem is None:
            assert find(entry.name.split(":")[0]).name == entry.name


def test_default_is_no_processor_and_no_simulator() -> None:
    default = find()
    if default.api == "opencl":
        assert "Oclgrind" not in default.description
        assert default.limits.compute_units > 0
    working = [entry.name for entry in devices() if entry.problem is None]
    if any(name.startswith("cuda") for name in working):
        assert default.api == "cuda"
    elif all("Portable Computing" in entry.description or "Oclgrind" in entry.description
             for entry in devices() if entry.name.startswith("opencl:")):
        assert default.api == "host"


def test_unknown_device_lists_the_usable_ones() -> None:
    with pytest.raises(DeviceError, match=r"no device 'opencl:99'.*usable devices: .*host"):
        find("opencl:99")


@pytest.mark.parametrize(("package", "extra"), [("pyopencl", "opencl"), ("cuda.core", "cuda")])
def test_missing_package_is_a_reason(package: str, extra: str) -> None:
    code = (f"import sys; sys.modules[{package!r}] = None\n"
            "from gossamer.device.registry import devices, find\n"
            f"print([e.problem for e in devices() if e.name == {extra!r}])\n"
            "print(find('host').name)\n"
            f"try: find({extra!r})\n"
            "except Exception as error: print(type(error).__name__, error)\n")
    shown = python(code)
    assert f"pip install '.[{extra}]' in gossamer's checkout" in shown.stdout.splitlines()[0]
    assert shown.stdout.splitlines()[1] == "host"
    assert shown.stdout.splitlines()[2].startswith("DeviceError")


@pytest.mark.parametrize(("names", "reason"), [
    ([], "no OpenCL driver found"),
    (["Some GPU"], "the OpenCL driver offers no device: Some GPU"),
    (["Portable Computing Language"], "offers no device: Portable Computing Language; .* set "
                                      "XDG_CACHE_HOME"),
])
def test_a_driver_without_devices_is_not_called_missing(
        monkeypatch: pytest.MonkeyPatch, names: list[str], reason: str) -> None:
    import gossamer.device.registry as module
    opencl = pytest.importorskip("gossamer.device.opencl")

    monkeypatch.setattr(opencl.cl, "get_platforms", lambda: [
        SimpleNamespace(name=name, get_devices=list) for name in names])
    monkeypatch.setattr(module, "_candidates", {})
    (entry,) = (entry for entry in devices() if entry.name.startswith("opencl"))
    assert entry.problem is not None and re.search(reason, entry.problem)


def test_device_that_computes_wrongly_is_not_offered(monkeypatch: pytest.MonkeyPatch) -> None:
    import gossamer.device.registry as module

    wrong = DeviceError("it computed wrong numbers")
    monkeypatch.setattr(module, "self_check", Mock(side_effect=wrong))
    monkeypatch.setattr(module, "_candidates", {})
    entries = [entry for entry in devices() if entry.name[-1].isdigit()]
    assert all(entry.problem == "it computed wrong numbers" for entry in entries)


def test_broken_gpu_is_passed_over_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import gossamer.device.registry as module

    fail = Mock(side_effect=DeviceError("its fan fell off"))
    gpu = module._DeviceProbe("cuda:0", "some GPU", fail, True)
    host = module._DeviceProbe("host", "NumPy", module.HostDevice, True)
    monkeypatch.setattr(module, "_candidates", {"cuda": [gpu], "opencl": [], "host": [host]})
    with pytest.warns(GossamerWarning, match="cuda:0 .* cannot be used: its fan fell off"):
        assert find().name == "host"
    with pytest.raises(DeviceError, match="device cuda:0 cannot be used: its fan fell off"):
        find("cuda")


def test_devices_do_not_survive_a_fork(compiled_device: Device) -> None:
    """A forked child, in which the driver would hang, gets a warning and another device."""
    code = ("import multiprocessing as mp, warnings\n"
            "from gossamer.device.registry import find\n"
            "import pickle\n"
            f"device = find({compiled_device.name!r})\n"
            "def work(stored):\n"
            "    with warnings.catch_warnings(record=True) as caught:\n"
            "        warnings.simplefilter('always')\n"
            "        return pickle.loads(stored).name, str(caught[-1].message)\n"
            "with mp.get_context('fork').Pool(1) as pool:\n"
            "    print(*pool.map_async(work, [pickle.dumps(device)]).get(60)[0])\n")
    shown = python(code)
    name, text = shown.stdout.split(maxsplit=1)
    assert name.partition(":")[0] in ("host", "opencl") and name != compiled_device.name
    assert text.startswith(f"device {compiled_device.name} cannot be used: was opened before this "
                           "process was forked")
    assert text.endswith(f"; using {name} instead\n")
