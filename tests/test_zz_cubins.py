"""Every kernel that the other tests ran on OpenCL builds for CUDA too, for each architecture it
declares, and spills no register. Runs last; run alone, it takes the kernels named here."""

from __future__ import annotations

from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gossamer.device import base
from gossamer.device.base import KernelSource
from gossamer.errors import CompileError
from tests.conftest import COMPILED

ARCHITECTURES = ("sm_75", "sm_80", "sm_90", "sm_100")

# specialisations of one kernel function that are built; the rest differ in little
SPECIALISATIONS = 8

ALONE = (
    KernelSource.of(Path(base.__file__).with_name("self_check.cl"), "self_check"),
    KernelSource.of(Path(__file__).parent / "device" / "dialect.cl", "every_word"),
)


def _chosen() -> list[KernelSource]:
    """A few specialisations of every kernel function: the first, the last, and some between."""
    package = Path(base.__file__).parents[1]
    by_function: dict[tuple[Path, str], list[KernelSource]] = defaultdict(list)
    for source in COMPILED:
        if source.path.is_relative_to(package):
            by_function[source.path, source.function].append(source)
    chosen = list(ALONE)
    for sources in by_function.values():
        last = len(sources) - 1
        count = min(SPECIALISATIONS, len(sources))
        chosen += [sources[round(i * last / max(count - 1, 1))] for i in range(count)]
    return list(dict.fromkeys(chosen))


def _number(architecture: str) -> int:
    return int("".join(filter(str.isdigit, architecture)))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_kernels_build_without_spills(architecture: str) -> None:
    nvrtc = pytest.importorskip("gossamer.device.nvrtc", exc_type=ImportError)
    wanted = [source for source in _chosen()
              if _number(source.architectures[0]) <= _number(architecture)
              <= _number(source.architectures[1])]

    def build(source: KernelSource) -> str | None:
        try:
            _, info = nvrtc.compile_cubin(source, architecture)
        except CompileError as error:
            return str(error)
        if info.spill_bytes:
            return (f"{source.function} of {source.path.name} with {dict(source.defines)} spills "
                    f"{info.spill_bytes} bytes ({info.registers} registers)")
        return None

    with ThreadPoolExecutor() as pool:
        faults = [fault for fault in pool.map(build, wanted) if fault]
    assert len(wanted) >= len(ALONE)
    assert not faults, "\n".join(faults)
