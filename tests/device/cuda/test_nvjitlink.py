"""Tests of the assembler of PTX, in this process and in others, without a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError

nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)


def test_an_error_of_the_assembler_is_told() -> None:
    wrong = PtxProgram("wrong", ".visible .entry wrong() { no.such; }")
    for apart in (False, True):
        with pytest.raises(CompileError, match="known instruction: 'no'"):
            nvjitlink.build(wrong, "sm_90", apart=apart)


def test_several_programs_are_assembled_at_the_same_time() -> None:
    programs = [PtxProgram(name, f".visible .entry {name}() {{ exit; }}") for name in "abc"]
    cubins = nvjitlink.build_all(programs, "sm_90")
    assert [f".text.{name}".encode() in cubin for name, cubin in zip("abc", cubins, strict=True)
            ] == [True] * 3
    assert nvjitlink.build_all(programs, "sm_90", one_here=True) == cubins
    assert nvjitlink.build_all(programs[:1], "sm_90", one_here=True) == cubins[:1]
    assert nvjitlink.build_all([], "sm_90") == []


def test_a_process_apart_imports_what_this_one_does(tmp_path: Path,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not import modules from its working directory."""
    (tmp_path / "numpy.py").write_text("raise SystemExit('not that one')")
    monkeypatch.chdir(tmp_path)
    empty = PtxProgram("empty", ".visible .entry empty() { exit; }")
    assert nvjitlink.build(empty, "sm_90", apart=True)[0][:4] == b"\x7fELF"


@pytest.mark.parametrize("script, message", [
    ("import sys; sys.exit('first\\nlast')", "PTX failed with status 1: last"),
    ("import os; os.kill(os.getpid(), 9)", "PTX was ended by signal 9; is there too little memory"),
])
def test_a_process_apart_that_fails_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, message: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(CompileError, match=message) as error:
        nvjitlink.build(PtxProgram("any", ""), "sm_90", apart=True)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "absent"))
    with pytest.raises(CompileError, match="cannot start a process that assembles PTX"):
        nvjitlink.build(PtxProgram("any", ""), "sm_90", apart=True)


@pytest.mark.parametrize(("one_here", "apart"), [(True, [False, True, True]), (False, [True] * 3)])
def test_all_programs_but_the_first_have_processes(one_here: bool, apart: list[bool],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, bool] = {}

    def build(program: str, architecture: str, *, apart: bool) -> tuple[bytes, None]:
        found[program] = apart
        return program.encode(), None

    monkeypatch.setattr(nvjitlink, "build", build)
    cubins = nvjitlink.build_all(["a", "b", "c"], "sm_90", one_here=one_here)
    assert cubins == [b"a", b"b", b"c"]
    assert [found[program] for program in "abc"] == apart
