"""Builds kernels for CUDA without a driver, among them those that ran on OpenCL."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer.device import base
from gossamer.device.kernel_cache import cached
from gossamer.device.source import KernelSource
from gossamer.errors import CompileError

if TYPE_CHECKING:
    from gossamer.device.cuda.nvrtc import BuildInfo

# architectures, with the number of specialisations of one kernel function that are built for each;
# the others differ little, and so do the architectures between the oldest and the newest
ARCHITECTURES = {"sm_75": 8, "sm_80": 4, "sm_90": 4, "sm_100": 8}

# kernels for processors alone, whose tiles need more registers than a GPU has for a work-item
ON_PROCESSORS = ("wide.cl", "wide_gemm.cl", "wide_popcount.cl")

# kernels whose largest tiles hold more than a GPU has registers for where windows are large; they
# are candidates like the smaller ones, and measuring decides
MAY_SPILL = ("depthwise.cl",)

ALONE = (
    KernelSource.of(Path(base.__file__).with_name("self_check.cl"), "self_check"),
    KernelSource.of(Path(__file__).parent / "device" / "dialect.cl", "every_word"),
)


def chosen(compiled: Iterable[KernelSource], number: int) -> list[KernelSource]:
    """Returns the kernels ALONE and a number of specialisations of every kernel function of the
    package: the first, the last and some between, in the order of their macros, so that the
    order of the tests does not matter."""
    package = Path(base.__file__).parents[1]
    by_function: dict[tuple[Path, str], list[KernelSource]] = defaultdict(list)
    for source in compiled:
        if source.path.is_relative_to(package) and source.path.name not in ON_PROCESSORS:
            by_function[source.path, source.function].append(source)
    selected = list(ALONE)
    for sources in by_function.values():
        sources.sort(key=lambda source: source.defines)
        last = len(sources) - 1
        count = min(number, len(sources))
        selected += [sources[round(i * last / max(count - 1, 1))] for i in range(count)]
    return list(dict.fromkeys(selected))


def build_info(source: KernelSource, architecture: str) -> BuildInfo:
    """Returns the assembler's report on a kernel, from the cache folder where the same text was
    built before. Raises CompileError with the compiler's log."""
    from gossamer.device.cuda import nvrtc

    def build() -> bytes:
        cubin, info = nvrtc.compile_cubin(source, architecture)
        assert cubin
        return json.dumps(dataclasses.asdict(info)).encode()

    # the options of the compiler are in the text of the module that calls it
    key = ("report", *nvrtc.key(source, architecture), Path(nvrtc.__file__).read_text())
    return nvrtc.BuildInfo(**json.loads(cached(key, build)[0]))


def check_builds(sources: Iterable[KernelSource]) -> None:
    """Fails where a kernel spills registers, or the assembler warns, on an architecture that it is
    for."""
    for source in sources:
        for architecture in dict.fromkeys(source.architectures):
            info = build_info(source, architecture)
            assert info.spill_bytes == 0, f"{source} spills on {architecture}"
            assert "warning" not in info.log, info.log


def faults(sources: Iterable[KernelSource], architecture: str) -> list[str]:
    """Returns a message for each kernel for the architecture that does not build, or that spills
    though it is none of MAY_SPILL.
    Raises ImportError where there is no NVRTC."""
    def build(source: KernelSource) -> str | None:
        try:
            info = build_info(source, source.built_for(architecture))
        except CompileError as error:
            return str(error)
        if info.spill_bytes and source.path.name not in MAY_SPILL:
            return (f"{source.function} of {source.path.name} with {dict(source.defines)} spills "
                    f"{info.spill_bytes} bytes ({info.registers} registers) on {architecture}")
        return None

    supported = [source for source in sources if _number(source.architectures[0])
                 <= _number(architecture) <= _number(source.architectures[1])]
    assert len(supported) >= len(ALONE)
    with ThreadPoolExecutor() as pool:
        return [fault for fault in pool.map(build, supported) if fault]


def _number(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)))
