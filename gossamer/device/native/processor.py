"""Machine code for this processor, made by LLVM.

It is cached on disk as objects.

llvmlite calls LLVM. A generated function takes its arguments, a range of tasks, and scratch memory:
``void f(int64_t *arguments, int64_t first, int64_t end, void *scratch)``. Several threads may run
ranges of one call at the same time.
"""

from __future__ import annotations

import functools
import platform
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gossamer.device.base import Device
from gossamer.device.jobs import Function
from gossamer.device.kernel_cache import cached, forget
from gossamer.device.source import source_hash
from gossamer.errors import DeviceError, installing

_MACHINES = ("x86_64", "AMD64", "aarch64", "arm64")


@dataclass(frozen=True)
class Processor:
    """The target of generated code.

    name, features: LLVM's names of the processor and its features.
    lanes: float32 numbers in the longest vector.
    registers: number of vector registers.
    """

    name: str
    features: str
    lanes: int
    registers: int


def absent() -> str | None:
    """Return why no code can be generated here, or None."""
    if platform.machine() not in _MACHINES:
        return f"processors need to be one of {', '.join(_MACHINES)}, not {platform.machine()}"
    if _llvm() is None:
        return f"needs llvmlite, which is not installed: {installing('host')}"
    return None


def unavailable(device: Device) -> str | None:
    """Return why a device cannot run generated code, or None."""
    return "runs on the host only" if device.compiles else absent()


@functools.cache
def processor() -> Processor:
    """Return this processor. Raises DeviceError if no code can be generated."""
    if (reason := absent()) is not None:
        raise DeviceError(reason)
    llvm = _llvm()
    features = llvm.get_host_cpu_features()
    name = llvm.get_host_cpu_name()
    if features.get("avx512vl"):
        lanes, registers = 16, 32
    elif features.get("avx2") and features.get("fma"):
        lanes, registers = 8, 16
    elif features.get("neon"):
        lanes, registers = 4, 32
    else:
        lanes, registers = 4, 16
    return Processor(name, features.flatten(), lanes, registers)


@functools.cache
def _llvm() -> Any:
    try:
        import llvmlite.binding as llvm
    except ImportError:
        return None
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


_lock = threading.Lock()
_engines: list[Any] = []
"""Engines own the code of the functions, which is kept until the process ends."""


@functools.cache
def function(name: str, target: Processor, write: Callable[..., str], *parameters: Any
             ) -> Function:
    """Return a compiled function of a generated module.

    `write` makes the module from `parameters`.

    Its object is taken from the cache folder if any process has compiled it for the same target.

    write: returns the module in LLVM's assembly language. It is not called if the object is cached
    for the parameters and the sources of the module that defines `write`.
    parameters: hashable; equal ones have equal texts.
    target: this processor, or one whose instructions it supports.

    Raises DeviceError if LLVM rejects the module.
    """
    llvm = _llvm()
    key = ["native", source_hash(write.__module__), write.__qualname__, repr(parameters),
           target.name, target.features, *map(str, llvm.llvm_version_info)]
    with _lock:
        machine = llvm.Target.from_default_triple().create_target_machine(
            cpu=target.name, features=target.features, opt=3)
        for is_second in (False, True):
            data, was_stored = cached(key, lambda: _object(llvm, machine, write(*parameters)))
            engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
            try:
                engine.add_object_file(llvm.object_file.ObjectFileRef.from_data(data))
                engine.finalize_object()
                break
            except RuntimeError as error:
                if is_second or not was_stored:
                    raise DeviceError(f"LLVM cannot load the code of {name}: {error}") from None
                forget(key)
        _engines.append(engine)
        return Function(engine.get_function_address(name))


def _object(llvm: Any, machine: Any, text: str) -> bytes:
    try:
        module = llvm.parse_assembly(text)
        module.verify()
    except RuntimeError as error:
        raise DeviceError(f"LLVM refuses a generated module: {error}") from None
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return bytes(machine.emit_object(module))


def address(array: np.ndarray) -> int:
    """Return the address of an array's memory."""
    return array.__array_interface__["data"][0]
