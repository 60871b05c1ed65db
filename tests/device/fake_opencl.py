"""An OpenCL driver that is not there: it notes its calls, and fails those that a test chooses."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pyopencl
import pytest

from gossamer.device import opencl, opencl_kernel, opencl_memory, opencl_platforms


def handle(platform: str = "Made", kind: int = pyopencl.device_type.GPU, **facts: Any) -> Any:
    """Returns a device of a driver. facts: attributes with other values than the usual ones."""
    return SimpleNamespace(**{
        "name": " Made device ", "driver_version": "3", "type": kind, "mem_base_addr_align": 1024,
        "platform": SimpleNamespace(name=f"{platform} ", version="OpenCL 1.2"),
        "single_fp_config": 0, "double_fp_config": 0, "extensions": "", "max_compute_units": 5,
        "global_mem_size": 2**30, "local_mem_size": 1000, "max_work_group_size": 512,
        "global_mem_cache_size": 77, "warp_size_nv": 32, "wavefront_width_amd": 64, **facts})


class Error(pyopencl.Error):
    """An error of the driver with a code that a test chooses."""

    def __init__(self, code: int) -> None:
        self._code = code
        super().__init__(f"code {code}")

    @property
    def code(self) -> int:
        return self._code


class FakeOpenCL:
    """The functions and classes of PyOpenCL, in the place of the real ones.

    calls: the text of each call. failing: for each function what its next calls raise, None where
    they raise nothing.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[str] = []
        self.failing: dict[str, list[Exception | None]] = {}
        self._made = itertools.count()
        self._ends = itertools.count(1000, 700)
        self.platforms: list[Any] = []
        self.required, self.work_group_size, self.shared_bytes = [0, 0, 0], 64, 100
        for module in (opencl, opencl_kernel, opencl_memory, opencl_platforms):
            monkeypatch.setattr(module, "cl", self)

    def __getattr__(self, name: str) -> Any:
        return getattr(pyopencl, name)

    def note(self, name: str, *words: Any, made: str = "") -> Any:
        """Notes a call, and raises what it is to raise. made: the kind of object that it makes."""
        self.calls.append(" ".join((name, *map(self.text, words))))
        failing = self.failing.get(name)
        if failing and (error := failing.pop(0)) is not None:
            raise error
        return self.made(made) if made else None

    def made(self, kind: str, **more: Any) -> Any:
        """Returns a new object, whose methods note their calls."""
        name = f"{kind}{next(self._made)}"
        return SimpleNamespace(
            label=name, int_ptr=5, finish=lambda: self.note("finish", name),
            release=lambda: None,
            wait=lambda: self.calls.append(f"wait {name}"), **more)

    @staticmethod
    def text(word: Any) -> str:
        """Returns a text of an argument."""
        if hasattr(word, "label"):
            return str(word.label)
        kind = type(word).__name__
        return f"{kind} {word.shape}" if hasattr(word, "nbytes") and word.ndim else (
            f"{word}" if isinstance(word, int | str | tuple | list) else f"{kind}")

    def taken(self) -> str:
        """Returns the calls since the last time. Objects made from now on have numbers from 100 on,
        whatever was made before."""
        text = f"[{', '.join(self.calls)}]"
        self.calls.clear()
        self.failing.clear()
        self._made = itertools.count(100)
        return text

    def get_platforms(self) -> list[Any]:
        self.note("get_platforms")
        return self.platforms

    def Context(self, devices: list[Any]) -> Any:
        return self.note("Context", len(devices), made="context")

    def CommandQueue(self, context: Any, properties: Any = 0) -> Any:
        return self.note("CommandQueue", context, int(properties), made="queue")

    def Buffer(self, context: Any, flags: Any, size: int) -> Any:
        self.note("Buffer", int(flags), size)

        def part(offset: int, nbytes: int) -> Any:
            self.note("part", offset, nbytes)
            return self.made("part")

        return self.made("buffer", size=size, get_sub_region=part)

    def event(self) -> Any:
        end = next(self._ends)
        return self.made("event", profile=SimpleNamespace(start=end - 300, end=end))

    def enqueue_migrate_mem_objects(self, queue: Any, objects: list[Any], flags: Any) -> Any:
        self.note("migrate", queue, len(objects), int(flags))
        return self.made("event")

    def enqueue_copy(self, queue: Any, target: Any, source: Any, **options: Any) -> Any:
        self.note("copy", queue, target, source, str(sorted(options.items())))
        return self.event()

    def enqueue_nd_range_kernel(self, queue: Any, kernel: Any, *sizes: Any) -> Any:
        self.note("launch", queue, kernel, *sizes)
        return self.event()

    def enqueue_marker(self, queue: Any) -> Any:
        self.note("marker", queue)
        return self.event()

    def LocalMemory(self, nbytes: int) -> Any:
        return SimpleNamespace(label=f"local {nbytes}")

    def Program(self, context: Any, text: str) -> Any:
        return SimpleNamespace(build=lambda options, cache_dir: self.note(
            "build", " ".join(options), str(cache_dir)))

    def Kernel(self, program: Any, name: str) -> Any:
        self.note("Kernel", name)
        asked = pyopencl.kernel_work_group_info
        facts = {asked.COMPILE_WORK_GROUP_SIZE: self.required,
                 asked.WORK_GROUP_SIZE: self.work_group_size,
                 asked.LOCAL_MEM_SIZE: self.shared_bytes}
        return self.made("kernel", set_args=lambda *values: self.note("set_args", *values),
                         get_work_group_info=lambda info, device: facts[info])
