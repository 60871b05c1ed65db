"""Fixtures of all tests: the devices that work here, and the networks beside the checkout."""

from __future__ import annotations

import gc
import gzip
import math
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from gossamer import onnx_model
from gossamer.device.base import Device, Kernel
from gossamer.device.source import KernelSource
from tests import workers
from tests.golden import Golden

SHARED = Path(__file__).resolve().parents[2] / "shared"

_host_only = False
"""Whether the tests of this session run on the host alone."""

COMPILED: dict[KernelSource, None] = {}
"""Every kernel that was built for an OpenCL device in this session, in order."""


@cache
def _oclgrind_log() -> Path:
    """Returns the file that Oclgrind writes to, in a folder that the session removes at its end."""
    return Path(tempfile.mkdtemp(prefix="gossamer-tests-")) / "oclgrind.log"


hypothesis.settings.register_profile(
    "gossamer", derandomize=True, database=None, deadline=None, max_examples=25,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("gossamer")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """Compares texts with the files in tests/golden."""
    return Golden(request.config.getoption("--record"))


@pytest.fixture
def without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has the reader of ONNX files refuse what gossamer does not compute, as where ONNX Runtime is
    not installed."""
    monkeypatch.setattr(onnx_model, "has_runtime", lambda: False)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require-device", default="", metavar="NAMES",
        help="fail unless these devices work here, e.g. pocl,oclgrind,emulated",
    )
    parser.addoption(
        "--record", action="store_true",
        help="write the files of tests/golden instead of comparing with them",
    )
    parser.addoption(
        "--host-only", action="store_true",
        help="leave out OpenCL and CUDA: fixtures of devices give the host alone",
    )
    parser.addoption(
        "--emulate", choices=("plain", "races", "bounds"), metavar="MODE",
        help="run kernels as CUDA has them, on the processor, to find faults: plain, races, bounds",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "expect_oclgrind: plants a fault that Oclgrind must find")
    global _host_only
    _host_only = config.getoption("--host-only")
    # a shell's background jobs ignore interrupts, and so would the programs that tests start
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Oclgrind reads these variables when its first context is created
    os.environ["OCLGRIND_DATA_RACES"] = "1"
    os.environ["OCLGRIND_LOG"] = str(_oclgrind_log())
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(workers.Controller())


def pytest_sessionstart(session: pytest.Session) -> None:
    required = [name for name in session.config.getoption("--require-device").split(",") if name]
    absent = [name for name in required
              if name not in working_devices() and not (name == "emulated" and _emulates())]
    if absent:
        pytest.exit(f"required devices do not work here: {', '.join(absent)} "
                    f"(working: {', '.join(working_devices())})", returncode=1)
    if os.environ.get("CI") == "true" and not SHARED.is_dir():
        pytest.exit(f"the networks of the tests are missing: no folder {SHARED}", returncode=1)


def _emulates() -> bool:
    from gossamer.errors import DeviceError
    from tests.emulation.device import emulated

    try:
        return all(map(emulated, ("plain", "races", "bounds")))
    except DeviceError:
        return False


def pytest_unconfigure(config: pytest.Config) -> None:
    shutil.rmtree(_oclgrind_log().parent, ignore_errors=True)


@cache
def working_devices() -> dict[str, Device]:
    """Returns the devices that work here, by the names that tests show."""
    from gossamer.device.registry import devices, find

    if _host_only:
        return {"host": find("host")}
    _record_builds()
    working: dict[str, Device] = {}
    for entry in devices():
        if entry.problem is None:
            working.setdefault(_test_name(entry.name, entry.description), find(entry.name))
    return dict(sorted(working.items(), key=lambda item: item[0] != "host"))


def _record_builds() -> None:
    try:
        from gossamer.device.opencl import OpenCLDevice
    except ImportError:
        return
    build = OpenCLDevice._build

    def recorded(self: OpenCLDevice, source: KernelSource) -> Kernel:
        COMPILED[source] = None
        return build(self, source)

    OpenCLDevice._build = recorded


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Moves the tests of kernels that the session built behind all others. Worker processes leave
    these tests to the process that started them. `-k cuda` selects those tests too that ask for a
    CUDA device by their fixture."""
    for item in items:
        if "cuda" in getattr(item, "fixturenames", ()):
            item.extra_keyword_matches.add("cuda")
    items.sort(key=lambda item: item.path.name == "test_zz_cubins.py")
    if workers.is_worker(config) and items and items[0].path.name != "test_zz_cubins.py":
        items[:] = [item for item in items if item.path.name != "test_zz_cubins.py"]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Has the garbage collector pass over what was collected, which lives until the session ends:
    thousands of tests are a tenth of the session's time otherwise."""
    gc.collect()
    gc.freeze()


_PROCESSOR_DRIVERS = {"Portable Computing Language": "pocl", "Intel(R) OpenCL": "intel",
                      "Oclgrind": "oclgrind"}
"""The names that tests show of OpenCL drivers for processors, by the names of their platforms."""


def _test_name(name: str, description: str) -> str:
    for driver, test_name in _PROCESSOR_DRIVERS.items():
        if f"({driver})" in description:
            return test_name
    return name.removesuffix(":0") if name.startswith("cuda") else name


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes messages in tests independent of other programs on the machine."""
    monkeypatch.setattr("gossamer.measure.SCATTERED", math.inf)


@pytest.fixture(autouse=True)
def quickly_built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has PoCL build kernels in a third of the time, without its optimiser, except for real
    networks, which compute much. A flag that the variable already has is kept."""
    if "shared_model" not in request.fixturenames and "POCL_EXTRA_BUILD_FLAGS" not in os.environ:
        monkeypatch.setenv("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")


@pytest.fixture(autouse=True)
def own_algorithms(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves ONNX Runtime out of plans of the host, as where it is not installed, except in tests
    that are marked with library_parts: what is compared with it is computed by other code."""
    if request.node.get_closest_marker("library_parts") is None:
        monkeypatch.setattr("gossamer.plan.fusion.has_library", lambda device: False)


@pytest.fixture
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder of a cache of the test's own, where nothing is yet."""
    monkeypatch.setenv("GOSSAMER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def is_slow(device: Device) -> bool:
    """Returns whether the device interprets its kernels (Oclgrind), so that shapes must be tiny."""
    return device.is_simulator


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture in ("device", "compiled_device", "quick_device", "quick_compiled"):
        if fixture in metafunc.fixturenames:
            is_quick = fixture.startswith("quick")
            names = [name for name, device in working_devices().items()
                     if (device.compiles or "compiled" not in fixture)
                     and not (is_quick and is_slow(device))]
            mode = metafunc.config.getoption("--emulate")
            if mode and not is_quick:
                names = [f"emulated:{mode}"]
            metafunc.parametrize(fixture, names, indirect=True, scope="session")


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> Device:
    """Every device that works here: host, pocl, oclgrind, cuda."""
    return _device(request.param)


@pytest.fixture(scope="session")
def compiled_device(request: pytest.FixtureRequest) -> Device:
    """Every device that works here and compiles kernels: all but the host."""
    return _device(request.param)


@pytest.fixture(scope="session")
def quick_device(request: pytest.FixtureRequest) -> Device:
    """Every device that works here and does not interpret its kernels: host, pocl, cuda."""
    return _device(request.param)


@pytest.fixture(scope="session")
def quick_compiled(request: pytest.FixtureRequest) -> Device:
    """Every device that compiles kernels and does not interpret them: pocl, cuda."""
    return _device(request.param)


def _device(name: str) -> Device:
    api, _, mode = name.partition(":")
    if api == "emulated":
        from tests.emulation.device import emulated

        return emulated(mode)
    return working_devices()[name]


def needed(name: str) -> Any:
    """Returns a device by its name in tests; the test is skipped where it does not work."""
    if name not in working_devices():
        pytest.skip(f"{name} does not work here")
    return working_devices()[name]


@pytest.fixture(scope="session")
def cuda() -> Device:
    """The CUDA device; the test is skipped where there is none."""
    return needed("cuda")


@pytest.fixture
def torch(cuda: Device) -> Any:
    """PyTorch with CUDA; the test is skipped where there is none."""
    module = pytest.importorskip("torch", reason="torch is not installed", exc_type=ImportError)
    if not module.cuda.is_available():
        pytest.skip("this torch has no CUDA")
    return module


@pytest.fixture(scope="session")
def pocl() -> Any:
    """PoCL's device, an OpenCLDevice; the test is skipped where there is none."""
    return needed("pocl")


def oclgrind_log() -> str:
    """Returns the messages of Oclgrind so far."""
    return _oclgrind_log().read_text() if _oclgrind_log().exists() else ""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = len(oclgrind_log())
    result = yield
    complaints = oclgrind_log()[before:]
    if complaints and item.get_closest_marker("expect_oclgrind") is None:
        pytest.fail(f"Oclgrind found a fault in a kernel:\n{complaints}", pytrace=False)
    return result


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of networks and data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip(f"no folder {SHARED} with the networks and data of the tests")
    return SHARED


@pytest.fixture(scope="session")
def shared_model(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """shared_model("mobilenetv2") returns the path of that network as an .onnx file."""
    folder = tmp_path_factory.mktemp("models")

    def unpack(name: str) -> Path:
        target = folder / f"{name}.onnx"
        if not target.exists():
            packed = shared / "models" / f"{name}.onnx.gz"
            if not packed.exists():
                pytest.skip(f"no file {packed}")
            with gzip.open(packed) as source, open(target, "wb") as unpacked:
                shutil.copyfileobj(source, unpacked)
        return target

    return unpack


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    if workers.is_worker(session.config):
        # the controller reads the kernels as soon as the worker reports that it has finished
        workers.hand_over(session.config, COMPILED)
        return (yield)
    # after pytest's own summary, so that these are the last lines
    result = yield
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        terminal.ensure_newline()
        for line in _not_tested():
            terminal.write_line(f"not tested: {line}")
    return result


_API_NAMES = {"opencl": "OpenCL", "cuda": "CUDA"}


def _not_tested() -> list[str]:
    from gossamer.device.registry import devices

    if _host_only:
        return ["OpenCL and CUDA (--host-only)"]
    lines = [f"{_API_NAMES.get(entry.name, entry.name)} ({entry.problem})"
             for entry in devices() if entry.problem]
    working = working_devices()
    if not any(entry.name.startswith("opencl") and entry.problem for entry in devices()):
        if not {"pocl", "intel"} & working.keys():
            lines.append("OpenCL on the processor (PoCL was not found; on Debian: "
                         "apt-get install pocl-opencl-icd)")
        if "oclgrind" not in working:
            lines.append("kernels under Oclgrind (not found; pip install 'pyopencl[oclgrind]')")
    if shutil.which("g++") is None:
        lines.append("kernels as CUDA has them, on the processor (no g++; on Debian: "
                     "apt-get install g++)")
    if not SHARED.is_dir():
        lines.append(f"real networks (no folder {SHARED})")
    return lines
