"""The suite `torch-modules`: modules of PyTorch, as `gossamer.optimize` makes them and as torch
itself runs them. Each call ends with a synchronisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from gossamer.bench.call_contest import CallCase
from gossamer.bench.call_times import Load
from gossamer.bench.work import MOST_ERROR, OWN, AbsentError, CalledContender, Setting
from gossamer_bench.contender import check_cuda_or_processor, processor_precisions
from gossamer_bench.modules import check_torch, names_of
from gossamer_bench.work import Files, Item

if TYPE_CHECKING:
    from gossamer_bench.peers.module_calls import ModuleWork

SUITE = "torch-modules"
PEERS = ("torch-eager", "torch-compile", "torch-compile:reduce-overhead", "torch-compile-graph")
"""The peers that take part where the command line names no peers."""
SLOW_PEERS = ("torch-compile:max-autotune-no-cudagraphs",)
"""Peers that take part only where the command line names them, because they compile for minutes."""


def torch_modules(batch: int, files: Files) -> list[Item]:
    """Returns the networks that --models names, or twenty small networks. Raises InputError where
    no network has such a name, and AbsentError where the library of a network is missing."""
    return [Item(SUITE, name, batch, partial(module_case, name, batch, files.loads[0]),
                 is_module=True)
            for name in names_of(files.modules)]


def module_case(name: str, batch: int, load: Load, setting: Setting) -> CallCase:
    """Makes the case of a network. Raises AbsentError as works_of does."""
    return case_of(name, works_of(name, batch, setting), load, setting)


def works_of(name: str, batch: int, setting: Setting) -> dict[str, ModuleWork]:
    """Returns a network's module and its input in each precision, by the precision. Raises
    AbsentError where torch or the network's library is missing, and on devices that torch does not
    run on."""
    check_torch()
    check_cuda_or_processor(setting.device)
    from gossamer_bench.peers.module_calls import ModuleWork

    precisions = setting.precisions
    if not setting.device.runs_cuda_libraries:
        precisions = tuple(processor_precisions(precisions))
    works = {precision: ModuleWork(name, batch, setting.device, precision)
             for precision in precisions if precision != "tf32"}
    if not works:
        raise AbsentError("modules are compared in float32 and in float16: --precision fp16")
    return works


def case_of(name: str, works: Mapping[str, ModuleWork], load: Load, setting: Setting) -> CallCase:
    """Returns the case of the modules of a network."""
    called: dict[str, Callable[[], CalledContender]] = {}
    for precision, work in works.items():
        label = "" if len(works) == 1 else f" {precision}"
        called[OWN + label] = partial(work.own, setting.effort)
        for peer in setting.against:
            called[peer + label] = partial(work.peer, peer)
    work = next(iter(works.values()))
    return CallCase(SUITE, name, len(work.x), 2 * work.multiplications, 4 * work.parameters, 1.0,
                    work.expected, called=called, load=load, most_error={
                        precision: max(MOST_ERROR[precision], each.largest_error)
                        for precision, each in works.items()})
