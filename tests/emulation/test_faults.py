"""Tests that faults of kernels are found, and that correct kernels cause no report."""

from __future__ import annotations

import numpy as np
import pytest

from gossamer.device.source import KernelSource
from gossamer.errors import CompileError
from tests.device.test_oclgrind import FAULTS
from tests.emulation.device import Emulate, EmulatedDevice, KernelFault


def run(device: EmulatedDevice, function: str, items: int, *, numbers: int | None = None,
        groups: int = 1, shared_bytes: int = 0, **macros: int) -> np.ndarray:
    values = np.zeros(items if numbers is None else numbers, np.int32)
    buffer = device.upload(values, "a test")
    kernel = device.compile(KernelSource.of(FAULTS, function, macros,
                                            dynamic_shared=bool(shared_bytes)))
    device.launch(kernel, (groups,), (items,), (buffer,), shared_bytes=shared_bytes)
    device.read(buffer, values)
    return values


@pytest.mark.parametrize(("function", "items", "groups"), [
    ("race", 8, 1), ("groups_race", 32, 2), ("handed_over", 64, 1), ("not_in_step", 32, 1)])
def test_races(emulate: Emulate, function: str, items: int, groups: int) -> None:
    macros = {"HAS_BARRIER": 0}
    with pytest.raises(KernelFault, match=r"data race[^$]*faults\.cl:\d+[^$]*work-item \d+"):
        run(emulate("races"), function, items, groups=groups, **macros)


@pytest.mark.parametrize("mode", ["plain", "races", "bounds"])
@pytest.mark.parametrize(("function", "expected"), [
    ("handed_over", np.arange(63, -1, -1)), ("not_in_step", np.arange(32) ^ 1)])
def test_the_barrier_that_was_missing(emulate: Emulate, mode: str, function: str,
                                      expected: np.ndarray) -> None:
    result = run(emulate(mode), function, len(expected), HAS_BARRIER=1)
    np.testing.assert_array_equal(result, expected)


def test_what_a_missing_barrier_does_depends_on_the_schedule(emulate: Emulate) -> None:
    results = [run(emulate("plain", schedule), "handed_over", 64, HAS_BARRIER=0)
               for schedule in (0, 1)]
    assert not np.array_equal(results[0], results[1])


@pytest.mark.parametrize(("function", "items", "message"), [
    ("left_waiting", 64, r"waits for ever\n +work-items 0 to 31 wait at the barrier 1 of a part "
                         r"\(32 of 64 are there\), line \d+ of .*faults\.cl\n"
                         r" +work-items 32 to 63 have returned"),
    ("torn_warp", 32, r"work-items 0 to 19 wait at the ballot of warp 0 \(20 of 32 are there\)"),
    ("torn_part", 64, r"barrier 1 of a part in line \d+ of .* was passed by 16 of the 32 "
                      "work-items of warp 0"),
    ("miscounted", 96, r"waits for 96 work-items in line \d+ of .*, for 64 elsewhere"),
    ("two_places", 64, r"barrier of the group: work-item \d+ waits in line \d+ and work-item \d+ "
                       r"in line \d+"),
])
def test_barriers_that_are_not_met(emulate: Emulate, function: str, items: int,
                                   message: str) -> None:
    with pytest.raises(KernelFault, match=message):
        run(emulate(), function, items)


@pytest.mark.parametrize(("function", "options", "plain", "bounds"), [
    ("overrun", {"items": 8, "numbers": 4}, "out of a buffer", r"overflow[^$]*faults\.cl"),
    ("local_overrun", {"items": 32}, None, r"faults\.cl.*out of bounds"),
    ("dynamic_overrun", {"items": 32, "shared_bytes": 128}, "out of the dynamic shared memory",
     r"overflow[^$]*faults\.cl"),
    ("not_aligned", {"items": 1, "numbers": 8}, None, r"faults\.cl.*misaligned"),
])
def test_accesses_out_of_bounds(emulate: Emulate, function: str, options: dict[str, int],
                                plain: str | None, bounds: str) -> None:
    if plain is not None:
        with pytest.raises(KernelFault, match=plain):
            run(emulate(), function, **options)
    with pytest.raises(KernelFault, match=bounds):
        run(emulate("bounds"), function, **options)


def test_memory_that_nobody_wrote_is_not_zero(emulate: Emulate) -> None:
    np.testing.assert_array_equal(run(emulate(), "unwritten", 32), np.full(32, -1))


def test_an_unknown_instruction_is_named(emulate: Emulate) -> None:
    source = KernelSource.of(FAULTS, "race", {
        "MINE(x)": 'asm("mov.u32 %0, %%laneid;" : "=r"(x))'})
    with pytest.raises(CompileError, match=r"does not know the instruction 'mov\.u32 %0, %%lane"):
        emulate().compile(source)


def test_arguments_are_those_of_the_kernel(emulate: Emulate) -> None:
    device = emulate()
    kernel = device.compile(KernelSource.of(FAULTS, "race"))
    for arguments, message in [((), "takes 1 arguments, got 0"),
                               ((3,), "parameter 0 takes a pointer of 8 bytes, got one of 4")]:
        with pytest.raises(KernelFault, match=message):
            device.launch(kernel, (1,), (8,), arguments)
