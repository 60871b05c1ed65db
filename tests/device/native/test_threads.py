"""Tests calls of generated code by several threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.processes import in_threads

llvm = pytest.importorskip("llvmlite.binding")

from llvmlite import ir  # noqa: E402

from gossamer.device.jobs import Job  # noqa: E402
from gossamer.device.native.code import (  # noqa: E402
    FLOAT,
    INT64,
    POINTER,
    Code,
    integer,
)
from gossamer.device.native.processor import (  # noqa: E402
    address,
    function,
    processor,
)
from gossamer.device.native.threads import Jobs, source  # noqa: E402
from gossamer.errors import DeviceError  # noqa: E402


def written(name: str, size: int, task: Callable[[Code, Any, Any, Any], None]) -> str:
    """Returns a module with a function whose tasks change the elements of an array, each of so
    many bytes. task: writes what one does, from its index, the array, and the element's place."""
    module = ir.Module()
    code = Code(module, name, [POINTER, INT64, INT64, POINTER])
    arguments, first, end, _ = code.arguments
    array = code.load(POINTER, arguments)
    with code.loop(first, end) as loop:
        task(code, loop.index, array, code.builder.mul(loop.index, integer(size)))
    code.builder.ret_void()
    return str(module)


def counting() -> str:
    """Returns a module with a function whose task i adds i + 1 to element i of an array."""
    def task(code: Code, index: Any, array: Any, place: Any) -> None:
        value = code.builder.add(code.load(INT64, array, place),
                                 code.builder.add(index, integer(1)))
        code.builder.store(value, code.at(array, place))

    return written("count", 8, task)


def jobs_of(count: int, grain: int, threads: int, repeats: int) -> tuple[Jobs, np.ndarray]:
    array = np.zeros(max(count, 1), np.int64)
    count_tasks = function("count", processor(), counting)
    return Jobs([Job(count_tasks, (address(array),), count, grain)] * repeats, threads), array


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
@pytest.mark.parametrize("grain", [1, 3, 5000])
def test_each_task_runs_once_in_each_job(threads: int, count: int, grain: int) -> None:
    jobs, array = jobs_of(count, grain, threads, 3)
    for _ in range(50):
        jobs.run()
    np.testing.assert_array_equal(array[:count], 150 * np.arange(1, count + 1))


def doubling() -> str:
    """Returns a module with a function whose task i doubles element i of an array of floats."""
    def task(code: Code, index: Any, array: Any, place: Any) -> None:
        value = code.load(FLOAT, array, place)
        code.store(code.builder.fadd(value, value), array, place)

    return written("double", 4, task)


@pytest.mark.parametrize("threads", [1, 3])
def test_denormal_numbers_are_0_in_generated_code_only(threads: int) -> None:
    denormal, least = np.float32(3e-39), np.finfo(np.float32).tiny
    array = np.tile(np.array([denormal, 1.0, least, -denormal], np.float32), 300)
    double = function("double", processor(), doubling)
    Jobs([Job(double, (address(array),), len(array))], threads).run()
    np.testing.assert_array_equal(array, np.tile(np.array([0, 2, 2 * least, 0], np.float32), 300))
    # this thread computes with them afterwards as before
    assert np.full(1000, denormal).sum() > 2e-36


def test_calls_of_several_threads_do_not_mix() -> None:
    made = [jobs_of(97, 2, 3, 20) for _ in range(4)]
    in_threads(lambda jobs: [jobs.run() for _ in range(100)], [jobs for jobs, _ in made])
    for _, array in made:
        np.testing.assert_array_equal(array, 2000 * np.arange(1, 98))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_fork_has_threads_of_its_own() -> None:
    jobs, array = jobs_of(64, 1, 3, 1)
    jobs.run()
    child = os.fork()
    if not child:
        jobs.run()
        os._exit(int(array[-1] != 128))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("machine,system", [
    ("x86_64", "linux"), ("aarch64", "linux"), ("AMD64", "win32"), ("arm64", "darwin")])
def test_the_module_of_other_systems_is_valid(machine: str, system: str) -> None:
    text = source(machine, system)
    assert ("@syscall" in text) == (system == "linux")
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = f"{'x86_64' if machine == 'AMD64' else machine}-unknown-{system}"
    target = llvm.Target.from_triple(triple).create_target_machine()
    assert "worker" in target.emit_assembly(llvm.parse_assembly(text))


def test_a_module_that_llvm_refuses_is_an_error() -> None:
    with pytest.raises(DeviceError, match="LLVM refuses a generated module"):
        function("f", processor(), lambda: "define void @f() { ret i32 %missing }")


def test_a_damaged_object_is_compiled_again(own_cache: Path) -> None:
    def returning() -> str:
        return "define void @g(ptr %a, i64 %b, i64 %c, ptr %d) { ret void }"

    function("g", processor(), returning)
    (stored,) = (own_cache / "kernels").iterdir()
    stored.write_bytes(stored.read_bytes()[:-9] + b"\0" * 9)
    function.cache_clear()
    function("g", processor(), returning).call(0, 0, 0, 0)
