"""Kernels that begin while the kernel before them runs read what it writes only after they wait.

The compiler takes memory for constant if it is read through a pointer to const that is RESTRICT,
and may move such a load before the wait. So memory that kernels write is never read in this way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest

from gossamer.device.kernel_cache import cached
from gossamer.device.source import KernelSource
from gossamer.model.infer.resolve import resolve
from gossamer.model.load import load
from gossamer.ops.algorithm import Problem
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights, WeightsStore
from gossamer.plan.fusion import find_fusions
from gossamer.plan.lower.rules import lower
from gossamer.plan.program import build
from tests.model.onnx_models import save
from tests.ops.harness import random_weights
from tests.ops.problems import BUILT
from tests.ops.recording import RecordingDevice
from tests.simulated.binary import binary_network, pruned_network
from tests.simulated.networks import random_network

pytest.importorskip("cuda.core")
pytest.importorskip("gossamer.device.cuda.nvrtc")

_VARIANTS = 4
"""Number of variants of an algorithm and a problem that are built."""


def _ptx(source: KernelSource) -> str:
    """Return a kernel's PTX, from the cache folder where the same text was compiled before."""
    from cuda.bindings import nvrtc

    virtual = source.built_for("sm_90").replace("sm", "compute")
    options = [f"--gpu-architecture={virtual}", "--std=c++17", "--minimal"]

    def compiled() -> bytes:
        _, program = nvrtc.nvrtcCreateProgram(source.text().encode(), b"kernel.cu", 0, [], [])
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options),
                                              [option.encode() for option in options])
        assert status == nvrtc.nvrtcResult.NVRTC_SUCCESS, source
        text = b" " * nvrtc.nvrtcGetPTXSize(program)[1]
        nvrtc.nvrtcGetPTX(program, text)
        nvrtc.nvrtcDestroyProgram(program)
        return text

    version = ".".join(map(str, nvrtc.nvrtcVersion()[1:]))
    return cached(("ptx", version, *options, source.text()), compiled)[0].decode()


def read_as_constants(ptx: str, function: str) -> set[int]:
    """Return the parameters of a kernel that are read as constants.

    Memory is read as constant through the addresses that are computed from these parameters,
    which are given by number.
    """
    of: dict[str, set[int]] = {}
    found: set[int] = set()
    for _ in range(3):  # an address may be computed in a loop
        for line in ptx.splitlines():
            registers = re.findall(r"%rd\d+", line)
            parameter = re.search(rf"ld\.param\.u64\s+(%rd\d+), \[{function}_param_(\d+)\]", line)
            if parameter:
                of[parameter[1]] = {int(parameter[2])}
            elif "ld.global.nc" in line:
                found |= of.get(re.findall(r"\[(%rd\d+)", line)[-1], set())
            elif registers and not re.search(r"\bld\.|\bst\.", line):
                of.setdefault(registers[0], set()).update(
                    *(of.get(register, set()) for register in registers[1:]))
    return found


def test_a_load_through_a_pointer_to_constants_is_found() -> None:
    ptx = """ld.param.u64 \t%rd1, [f_param_0];
        ld.param.u64 \t%rd2, [f_param_3];
        cvta.to.global.u64 \t%rd3, %rd2;
        add.s64 \t%rd4, %rd3, %rd9;
        ld.global.u64 \t%rd5, [%rd1];
        @%p1 ld.global.nc.v4.u32 \t{%r1, %r2, %r3, %r4}, [%rd4+16];"""
    assert read_as_constants(ptx, "f") == {3}


def _problems(folder: Path) -> Iterator[tuple[Problem, Mapping[str, np.ndarray]]]:
    """Yield problems with their constants.

    There are some of every op, and those of drawn networks, the fusions included.
    """
    for problems in BUILT.values():
        for problem in problems:
            yield problem, random_weights(problem)
    for make, seeds in ((random_network, 8), (pruned_network, 4), (binary_network, 6)):
        for seed in range(seeds):
            graph = load(str(save(make(seed), folder)))
            layers, _ = lower(resolve(graph, 2), WeightsStore())
            fusions = find_fusions(layers, {info.name for info in graph.outputs})
            for layer in (*layers, *fusions):
                if not layer.is_reshape:
                    yield layer.problem, layer.weights


def test_no_kernel_reads_what_others_write_as_constant(tmp_path: Path) -> None:
    device = RecordingDevice("sm_90")
    seen: set[tuple[object, str, object]] = set()
    for problem, arrays in _problems(tmp_path):
        for algorithm in OPS[problem.op].algorithms:
            if algorithm.vendor or algorithm.supports(problem, device) is not None:
                continue
            for variant in list(algorithm.variants(problem, device))[:_VARIANTS]:
                with np.errstate(all="ignore"):
                    state = build(algorithm, Weights(arrays, device, "layer"), problem, variant,
                                  device)
                for launch in state.launches:
                    source = launch.kernel.source  # type: ignore[attr-defined]
                    kind = source.path, source.function, dict(source.defines).get("HALVES")
                    if source.path.suffix == ".ptx" or kind in seen or not source.begins_early:
                        continue
                    seen.add(kind)
                    written = {index for index, argument in enumerate(launch.arguments)
                               if callable(argument)}
                    constant = read_as_constants(_ptx(source), source.function)
                    assert not written & constant, (source.path.name, source.function, variant)
    assert len(seen) > 50
