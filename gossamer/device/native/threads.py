"""Calls of generated code by several threads, which share the tasks of each call."""

from __future__ import annotations

import ctypes
import functools
import os
import platform
import re
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gossamer.device.jobs import Function, Job
from gossamer.device.native.processor import address, function, processor

_SOURCE = Path(__file__).with_name("threads.ll")
_LINE = 64
"""Bytes of a cache line."""
_ROUNDS = 2000
"""Number of iterations that an idle thread spins before it sleeps.

These iterations take 20 to 100 microseconds. This is longer than the time between two steps of a
plan, and too short to affect other programs.
"""
_X86 = ("202", "llvm.x86.sse2.pause()", "32832", """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal i64 @control() {
  %slot = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %slot)
  %value = load i32, ptr %slot
  %wide = zext i32 %value to i64
  ret i64 %wide
}
define internal void @set.control(i64 %wide) {
  %slot = alloca i32
  %value = trunc i64 %wide to i32
  store i32 %value, ptr %slot
  call void @llvm.x86.sse.ldmxcsr(ptr %slot)
  ret void
}
""")
_ARM = ("98", "llvm.aarch64.hint(i32 1)", "16777216", """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)
define internal i64 @control() {
  %value = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %value
}
define internal void @set.control(i64 %value) {
  call void @llvm.aarch64.set.fpcr(i64 %value)
  ret void
}
""")
_MACHINES = {"x86_64": _X86, "AMD64": _X86, "aarch64": _ARM, "arm64": _ARM}
"""Four texts for each machine.

The texts are: the number of the system call futex; the instruction that tells the CPU that a loop
spins; the bits of the floating-point control register that flush denormal numbers to 0; and LLVM IR
of the functions that read and set this register.
"""


class Jobs:
    """Jobs that run one after another; several threads share the tasks of each job.

    threads: maximum number of threads, including the calling thread.
    """

    def __init__(self, jobs: Sequence[Job], threads: int) -> None:
        self._arguments = [(ctypes.c_int64 * len(job.arguments))(*job.arguments) for job in jobs]
        stride = max((_lines(job.scratch) for job in jobs), default=0)
        self._scratch = np.empty(threads * stride + _LINE, np.uint8)
        start = address(self._scratch)
        self._table = (ctypes.c_int64 * (6 * len(jobs)))(*(
            number for job, arguments in zip(jobs, self._arguments, strict=True)
            for number in (job.function.address, ctypes.addressof(arguments), job.count,
                           job.grain, start + -start % _LINE, stride)))
        self._count, self._threads = len(jobs), threads
        self._address = ctypes.addressof(self._table)
        self._run = _function("jobs").call

    def run(self, stream: object = None) -> None:
        """Run the jobs.

        If the pool's threads are busy with other jobs, the calling thread runs the jobs alone.
        `stream` is ignored, because the host has no streams.
        """
        pool = _pool(self._threads)
        if pool is None or not pool.lock.acquire(blocking=False):
            self._run(self._address, self._count, 0, 0)
            return
        try:
            self._run(self._address, self._count, pool.shared, 0)
        finally:
            pool.lock.release()


class _Pool:
    """Threads that wait for jobs without holding Python's GIL.

    shared: address of the memory through which jobs are announced to the threads.
    lock: held by the caller whose jobs are running.
    """

    def __init__(self, count: int) -> None:
        memory = np.zeros((count + 7) * _LINE, np.uint8)
        self._memory = memory[-address(memory) % _LINE:]
        self.shared = address(self._memory)
        self._memory[5 * _LINE:5 * _LINE + 8].view(np.int64)[0] = count
        self.lock = threading.Lock()
        worker = _function("worker").call
        for index in range(1, count):
            threading.Thread(target=worker, args=(self.shared, index, _ROUNDS, 0), daemon=True,
                             name=f"gossamer-{index}").start()


_pools: dict[int, _Pool] = {}
_making = threading.Lock()


def _pool(count: int) -> _Pool | None:
    """Return a pool of `count` threads; later calls with this count return the same pool.

    The result is None for one thread, and on systems without futexes.
    """
    if count <= 1 or sys.platform != "linux":
        return None
    if (pool := _pools.get(count)) is None:
        with _making:
            pool = _pools.get(count) or _pools.setdefault(count, _Pool(count))
    return pool


def _lines(nbytes: int) -> int:
    return -(-nbytes // _LINE) * _LINE


@functools.cache
def _function(name: str) -> Function:
    return function(name, processor(), source, platform.machine(), sys.platform)


def source(machine: str, system: str) -> str:
    """Return the module for a machine as LLVM IR, without futexes on systems that lack them."""
    number, pause, flushing, control = _MACHINES[machine]
    text = _SOURCE.read_text() + control
    if system != "linux":
        text = re.sub(r"declare i64 @syscall.*|%result = call [^)]*\)[^)]*\)", lambda found: (
            "" if found[0].startswith("declare") else "%result = add i64 0, 0"), text)
    text = text.replace("declare void @PAUSE", f"declare void @{pause.split('(')[0]}"
                        + ("(i32)" if "i32" in pause else "()"))
    return text.replace("PAUSE", pause).replace("FUTEX", number).replace("FLUSHING", flushing)


# a forked child has none of its parent's threads
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pools.clear)
