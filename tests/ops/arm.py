"""Generated code for 64-bit Arm, run by an emulator on other processors."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from gossamer.device.jobs import Function, Job
from gossamer.device.native import processor as native
from gossamer.ops import generated

OnArm = Callable[..., None]
"""What the fixture `on_arm` is: called with modules, it has their code made for Arm."""
ARM = native.Processor("generic", "+neon", 4, 32)
_COMPILER, _EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
_RUN_JOB = Path(__file__).with_name("run_job.c")


class _Program(Function):
    """A function of a program for Arm."""

    def __init__(self, program: Path) -> None:
        super().__init__(0)
        self.program = program


def run_on_arm(monkeypatch: pytest.MonkeyPatch, folder: Path, *modules: ModuleType) -> list[Job]:
    """Has the algorithms of these modules make code for Arm, and an emulator run it, whose memory
    gets what the arguments point to. Returns a list of the jobs that have run. Skips the test where
    a compiler or the emulator is not installed."""
    if not (shutil.which(_COMPILER) and shutil.which(_EMULATOR)):
        pytest.skip(f"needs {_COMPILER} and {_EMULATOR}")
    llvm = pytest.importorskip("llvmlite.binding")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple("aarch64-unknown-linux-gnu").create_target_machine(
        ARM.name, ARM.features, opt=3)
    sizes: dict[int, int] = {}
    programs: dict[object, _Program] = {}
    ran: list[Job] = []

    def emitted(name: str, target: native.Processor, write: Callable[..., str],
                *parameters: object) -> Function:
        if (name, parameters) not in programs:
            program = folder / f"program{len(programs)}"
            (folder / "code.o").write_bytes(native._object(llvm, machine, write(*parameters)))
            subprocess.run([_COMPILER, "-O1", "-static", f"-DFUNCTION={name}", _RUN_JOB,
                            folder / "code.o", "-o", program], check=True)
            programs[name, parameters] = _Program(program)
        return programs[name, parameters]

    def known(address: Callable[[Any], int]) -> Callable[[Any], int]:
        def remembered(memory: Any) -> int:
            sizes[address(memory)] = memory.nbytes
            return address(memory)
        return remembered

    class Emulated:
        def __init__(self, jobs: Sequence[Job], threads: int) -> None:
            self.jobs = jobs

        def run(self) -> None:
            for job in self.jobs:
                parts = [np.array([len(job.arguments), job.count, job.scratch, 1], "<i8").tobytes()]
                for argument in job.arguments:
                    size = sizes.get(argument, -1)
                    parts += [np.array([size] if size >= 0 else [-1, argument], "<i8").tobytes(),
                              ctypes.string_at(argument, max(size, 0))]
                (folder / "job").write_bytes(b"".join(parts))
                assert isinstance(job.function, _Program)
                subprocess.run([_EMULATOR, job.function.program, folder / "job", folder / "result"],
                               check=True)
                output = (folder / "result").read_bytes()
                ctypes.memmove(job.arguments[1], output, len(output))
                ran.append(job)

    for module in modules:
        monkeypatch.setattr(module, "function", emitted)
    for module in (*modules, generated):
        if hasattr(module, "address_of"):
            monkeypatch.setattr(module, "address_of", known(module.address_of))
    monkeypatch.setattr(generated, "Jobs", Emulated)
    monkeypatch.setattr(native, "address", known(native.address))
    monkeypatch.setattr(native, "processor", lambda: ARM)
    return ran
