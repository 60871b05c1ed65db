"""Tests of the description of kernels, and of how their texts are put together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import gossamer
from gossamer.device.base import Device
from gossamer.device.source import DIALECT, KernelSource, files_of
from gossamer.errors import CompileError


def write(folder: Path, **files: str) -> Path:
    """Writes files, and returns the path of the kernel among them, a.cl or a.cu."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    (kernel,) = folder.glob("a.c*")
    return kernel


@pytest.fixture
def planted(tmp_path: Path) -> Path:
    """A kernel with an error in the second line of a header that it includes through another."""
    return write(
        tmp_path,
        a_cl='#include "outer.h"\n\nKERNEL void a(GLOBAL float *x)\n{\n    x[0] = one();\n}\n',
        outer_h='#pragma once\n#include "dialect/common.h"\n#include "inner.h"\n',
        inner_h="#pragma once\nINLINE float one() { return undeclared; }\n")


def test_kernels_of_one_architecture_are_built_for_it() -> None:
    of_all = KernelSource(Path("a.cu"), "a", architectures=("sm_80", "sm_100"))
    of_hopper = KernelSource(Path("a.cu"), "a", architectures=("sm_90a", "sm_90a"))
    assert of_all.built_for("sm_90") == "sm_90"
    assert of_hopper.built_for("sm_90") == "sm_90a"
    assert of_hopper.built_for("sm_100") == "sm_100"


def test_a_header_stands_where_it_is_first_included(tmp_path: Path) -> None:
    kernel = write(tmp_path, a_cl='first\n#include "b.h"\nsecond\n#include "c.h"\nthird\n',
                   b_h='#pragma once\n#include "c.h"\nof b\n', c_h="of c\n")
    assert KernelSource.of(kernel, "a", {"N": 3}).text().splitlines() == [
        '#line 1 "macros of a"', "#define CONFIGURED", "#define N 3",
        '#line 1 "a.cl"', "first",
        '#line 1 "b.h"', "", '#line 1 "c.h"', "of c", '#line 3 "b.h"', "of b",
        '#line 3 "a.cl"', "second", "", "third"]
    assert [path.name for path in files_of(kernel)] == ["a.cl", "b.h", "c.h"]


def test_headers_of_the_package_are_named_by_their_paths_in_it(planted: Path) -> None:
    assert DIALECT in files_of(planted)
    assert '#line 1 "gossamer/device/include/dialect/common.h"' in KernelSource.of(
        planted, "a").text()


@pytest.mark.parametrize(("kernel", "header", "told"), [
    ('#include "b.h"\n', '\n#include "dialect/none.h"\n',
     r"b\.h, line 2: header dialect/none\.h not found in"),
    ('#if A\n#endif\n#ifdef B\n#include "b.h"\n#endif\n', "",
     r"a\.cl, line 4: b\.h is included between #if and")], ids=["absent", "on a condition"])
def test_headers_that_cannot_be_included_are_named(kernel: str, header: str, told: str,
                                                   tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=told):
        KernelSource.of(write(tmp_path, a_cl=kernel, b_h=header), "a").text()


def test_an_error_in_a_header_is_reported_with_its_line(compiled_device: Device, planted: Path
                                                        ) -> None:
    if "Oclgrind" in compiled_device.description:
        pytest.skip("Oclgrind ignores #line")
    with pytest.raises(CompileError, match=r"inner\.h(:2:|\(2\)).*undeclared"):
        compiled_device.compile(KernelSource.of(planted, "a"))


def test_nvrtc_reports_an_error_in_a_header_with_its_line(planted: Path) -> None:
    nvrtc = pytest.importorskip("gossamer.device.cuda.nvrtc", exc_type=ImportError)
    with pytest.raises(CompileError, match=r'inner\.h\(2\): error: .*"undeclared"'):
        nvrtc.compile_cubin(KernelSource.of(planted, "a"), "sm_90")


_FILES = [path for pattern in ("*.cl", "*.cu")
          for path in sorted(Path(gossamer.__file__).parent.rglob(pattern))]
_EARLY = [path for path in _FILES if KernelSource(path, "any").begins_early]


def test_most_kernels_of_plans_begin_early():
    assert len(_EARLY) > len(_FILES) / 2


@pytest.mark.parametrize("path", _EARLY, ids=lambda path: path.stem)
def test_each_kernel_of_the_file_lets_the_next_begin_and_waits(path):
    kernels = re.split(r"^KERNEL ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    assert kernels
    for kernel in kernels:
        calls = re.findall(r"pdl_(trigger_and_wait|trigger|wait)\(\);", kernel)
        assert calls[0].startswith("trigger"), calls
        assert calls[-1].endswith("wait"), calls
