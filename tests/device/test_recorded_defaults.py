"""Records of what devices have in common: the self-check, forks, capabilities that a device lacks,
the processor's name, and the sources of algorithms."""

from __future__ import annotations

import copy
import io
import itertools
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gossamer.device import base, host, registry, source_hash
from gossamer.device.array_library import library
from gossamer.device.base import Device
from gossamer.device.checks import self_check
from gossamer.device.copying_graph import GraphThenCopies
from gossamer.device.host import HostDevice
from gossamer.errors import DeviceError
from gossamer.tensor import TensorSpec
from tests.recorded import Recorded, digest
from tests.recorded.outcomes import outcome


class Plain(HostDevice):
    """A device with what every device has, which notes how it is used."""

    def __init__(self, notes: list[str]) -> None:
        super().__init__()
        self.notes = notes
        self.index, self.description = 3, "made (for tests)"

    def synchronize(self, stream: Any = None) -> None:
        self.notes.append(f"synchronize {stream}")

    def is_closed(self, stream: Any) -> bool:
        return stream == "closed"


class Computing(HostDevice):
    """A device whose kernels compute what a test says."""

    compiles = True

    def __init__(self, factor: float, term: float, at: int) -> None:
        super().__init__()
        self._numbers = factor, term, at

    def compile(self, source: Any) -> Any:
        return source.function

    def launch(self, kernel: Any, groups: Any, work_group_size: Any, arguments: Any,
               **options: Any) -> None:
        factor, term, at = self._numbers
        values = arguments[0].bytes.view(np.float32)
        assert (groups, work_group_size, arguments[1]) == ((1,), (64,), values.size)
        values[:at] = values[:at] * factor + term


def test_devices(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    notes: list[str] = []
    for factor, term, at in itertools.product((1, 2, 3), (0, 1, 2), (0, 1, 63, 64)):
        found[f"self-check {factor} {term} {at}"] = outcome(self_check, Computing(factor, term, at))
    device = Plain(notes)
    other = device.upload(np.arange(4, dtype=np.float32), "a test")
    capabilities: dict[str, tuple[Any, ...]] = {
        "capture": (print,), "stream_handle": (None,), "current": (), "keep": (1, 2),
        "wrap": (1, 2, None), "holds": (np.zeros(1),), "incoming": (np.zeros(1),),
        "empty_array": (TensorSpec((1,)), "a test"), "array_in": (other, TensorSpec((1,))),
        "like": (None, None), "is_page_locked": (np.zeros(1),), "is_idle": (None,),
        "side_streams": ("s", 3), "assemble": ((), list), "check_usable": (), "__repr__": ()}
    for name, arguments in capabilities.items():
        found[f"lacks {name}"] = outcome(getattr(device, name), *arguments)
    found["lacks streams"] = f"{[device.side_streams(1, count) for count in range(3)]}"
    for name in ("name", "kind", "compiles", "is_simulator", "queued_us", "builds_side_by_side",
                 "compilers", "build_only", "assembles_ptx", "locks_pages",
                 "runs_cuda_libraries", "architecture"):
        value = getattr(device, name)
        found[f"has {name}"] = str(value[0] if isinstance(value, tuple) else value)
    for waiting, awaited in itertools.product((None, 1, "closed"), repeat=2):
        device.wait(waiting, awaited)
        found[f"wait {waiting} {awaited}"] = str(notes)
        notes.clear()
        found[f"stream {waiting}"] = outcome(device.check_stream, waiting)
    found["copied"] = f"{copy.copy(device) is device} {copy.deepcopy([device])[0] is device}"
    for reopen in (None, print):
        monkeypatch.setattr(Device, "reopen", staticmethod(reopen) if reopen else None)
        found[f"pickled {reopen is None}"] = outcome(device.__reduce__, text=lambda made: str(
            made[1]))
    monkeypatch.undo()
    for api, index in itertools.product(("host", "cuda"), (0, 2)):
        device.api, device.index = api, index
        found[f"name {api} {index}"] = device.name
        device.unusable = "is gone" if index else None
        found[f"usable {api} {index}"] = outcome(device.check_usable)
    device = Plain(notes)
    monkeypatch.setattr(device, "capture", lambda work, stream=None, repeats=1: (
        lambda stream=None: notes.append(f"replayed {repeats} on {stream}")), raising=False)
    monkeypatch.setattr(device, "wrap", lambda address, nbytes, owner: notes.append(
        f"wrap {address} {nbytes}"))
    monkeypatch.setattr(device, "copy", lambda target, source, nbytes, stream: notes.append(
        f"copy {nbytes} on {stream}"))
    for count in range(3):
        graph = device.capture_copying(print, [(other, 4 + index) for index in range(count)])
        assert isinstance(graph, GraphThenCopies)
        for targets in range(3):
            text = outcome(graph.copy_to, tuple(range(targets)))
            text += outcome(graph.on(5))
            found[f"copying {count} {targets}"] = f"{text} {graph.addresses} {notes}"
            notes.clear()
        found[f"timed graph {count}"] = (
            f"{device.timed_graph(print, count)() >= 0} {notes}")
        notes.clear()
        device.replayed(device.capture(print), 4)()
        found[f"replayed {count}"] = str(notes)
        notes.clear()
    found["kinds"] = f"{base.Device.kind.fget(device)[0]} {device.chip == device.description}"
    recorded("device_defaults", found)


def test_host(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    device = HostDevice()
    for nbytes, size, offset in itertools.product((0, 1, 64, 130), (0, 1, 63, 64, 65, 129, 130),
                                                  (0, 64)):
        whole = device.upload(np.arange(nbytes, dtype=np.uint8), "a test")
        array = np.arange(100, 100 + size, dtype=np.uint8)

        def written(whole: Any = whole, array: Any = array, offset: int = offset) -> str:
            part = whole.view(offset, whole.nbytes - offset)
            device.write(part, array)
            back = np.zeros_like(array)
            device.read(part, back)
            return f"{digest(whole.bytes)} {digest(back)}"

        found[f"written {nbytes} {size} {offset}"] = outcome(written)
    lines = {"none": "", "first": "model name\t: One : two\n", "later": "a: b\nmodel name : C \n",
             "several": "model name: X\nmodel name: Y\n", "other": "names: model name: X\n"}
    for (word, text), processor, machine in itertools.product(
            [*lines.items(), ("missing", None)], ("", "P"), ("", "M")):
        def opened(path: str, text: Any = text) -> Any:
            if text is None:
                raise FileNotFoundError(path)
            return io.StringIO(text)

        monkeypatch.setattr(host, "open", opened, raising=False)
        monkeypatch.setattr(host, "platform", SimpleNamespace(
            processor=lambda processor=processor: processor, machine=lambda machine=machine: machine
        ))
        found[f"processor {word} {processor!r} {machine!r}"] = repr(host._processor_name())
    for names in ({"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 10}, {"SC_PAGE_SIZE": 4096}):
        def asked(name: str, names: dict[str, int] = names) -> int:
            if name not in names:
                raise ValueError(name)
            return names[name]

        monkeypatch.setattr(host.os, "sysconf", asked)
        found[f"memory {len(names)}"] = str(host._memory_bytes())
    monkeypatch.undo()
    for threads in range(4):
        monkeypatch.setattr(host.blas, "threads", lambda threads=threads: threads)
        found[f"toolkit {threads}"] = HostDevice().toolkit
    for bound, quota, count in itertools.product((None, 1, 3), (0.2, 1.0, 1.5, 3.0, math.inf),
                                                 (None, 4)):
        host._most_processors.cache_clear()
        monkeypatch.setattr(host, "cpu_quota", lambda quota=quota: quota)
        system = {"cpu_count": lambda count=count: count}
        if bound is not None:
            system["sched_getaffinity"] = lambda of, bound=bound: range(bound)
        monkeypatch.setattr(host, "os", SimpleNamespace(**system))
        found[f"processors {bound} {quota} {count}"] = str(host.processors())
    host._most_processors.cache_clear()
    for module in ("numpy", "jaxlib._jax", "jax.numpy", "torch", "cupy._core.core", "jaxlib", ""):
        kind = type("Array", (), {"__module__": module})
        found[f"library {module}"] = repr(library(kind()))
    recorded("device_host", found)


def test_forks(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for name, asked, works in itertools.product(("host", "cuda:0", "opencl:1"), (False, True),
                                                (False, True)):
        opened: list[str] = []

        def open_device(works: bool = works, opened: list[str] = opened) -> Device:
            opened.append("opened")
            if not works:
                raise DeviceError("it is broken")
            return Plain([])

        probe = registry._DeviceProbe(name, "made", open_device, True)
        device = probe.check() if asked else None
        monkeypatch.setattr(registry, "_candidates", {"made": [probe]})
        monkeypatch.setattr(registry, "_lock", None)
        before = probe._lock
        registry._after_fork()
        found[f"forked {name} {asked} {works}"] = (
            f"{probe.check() is not None} {probe.problem} {device and device.unusable} {opened} "
            f"{probe._lock is before} {registry._lock is None}")
    recorded("device_forks", found)


def test_sources_of_algorithms(recorded: Recorded, tmp_path: Path,
                               monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "gossamer"
    monkeypatch.setattr(source_hash, "_PACKAGE", package)
    monkeypatch.setattr(source_hash, "files_of", lambda path: [path])
    monkeypatch.setattr(source_hash, "DIALECT", tmp_path / "dialect.h")
    monkeypatch.setattr(source_hash.metadata, "version", lambda package: f"version of {package}")
    files = {
        "ops/a.py": "import os, scipy.linalg\nfrom gossamer.ops.b import x\nfrom . import y\n"
                    "'k.cl' \"missing.cl\" 'k.txt' 'gossamer.ops.c'\n",
        "ops/b.py": "from gossamer.ops.sub import (\n    d,\n    e)\nfrom gossamer.other import z\n"
                    "  import cudnn\n",
        "ops/c.py": "from gossamer import ops\n'k.cu'", "ops/sub/__init__.py": "import nvmath as n",
        "ops/sub/d.py": "from .b import cudnn\n", "ops/sub/e.py": "x = 'gossamer.ops.a'\n",
        "other.py": "import torch\n", "ops/k.cl": "kernel", "ops/k.cu": "kernel", "ops/k.txt": "",
        "expression.py": "from gossamer.ops . c import q", "ops/alone.py": "x = 1\n",
        "ops/f.py": "from gossamer.expression import *\nfrom\tgossamer.ops.alone\timport\tq\n"}
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    for cached in (source_hash._named_in, source_hash._module_files, source_hash._versions,
                   source_hash._content):
        cached.cache_clear()
    found = {}
    for name in files:
        if name.endswith(".py"):
            path = package / name
            found[f"names {name}"] = str(source_hash._names(path))
            monkeypatch.setitem(sys.modules, "made", SimpleNamespace(__file__=path))  # type: ignore
            paths, versions = source_hash.sources("made")
            found[f"sources {name}"] = (
                f"{[str(path.relative_to(tmp_path)) for path in paths]} {versions}")
            if name != "other.py":
                (tmp_path / "dialect.h").write_text("dialect")
                source_hash.source_hash.cache_clear()
                found[f"hash {name}"] = source_hash.source_hash("made")
    for cached in (source_hash._named_in, source_hash._module_files, source_hash._versions,
                   source_hash._content, source_hash.source_hash):
        cached.cache_clear()
    recorded("device_algorithms", found)
