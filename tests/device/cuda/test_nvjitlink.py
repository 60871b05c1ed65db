"""Tests of the assembler of PTX, without a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import pytest

from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError

nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)


def program() -> PtxProgram:
    return PtxProgram("a", ".visible .entry a() { exit; }")


def nothing() -> NoReturn:
    raise AssertionError("nothing is left to build")


def test_an_error_of_the_assembler_is_told() -> None:
    wrong = PtxProgram("wrong", ".visible .entry wrong() { no.such; }")
    with pytest.raises(CompileError, match="known instruction: 'no'"):
        nvjitlink.build(wrong, "sm_90")


def test_a_program_is_generated_and_assembled_once(made: Any, own_cache: Path) -> None:
    assert b".text.a" in nvjitlink.assembled(program, "sm_90")
    assert not made.assemble("a", ("a program",), program).from_cache
    again = made.assemble("a", ("a program",), nothing)
    assert again.from_cache and again.name == "a"
    with pytest.raises(AssertionError, match="nothing is left"):
        made.assemble("a", ("another program",), nothing)
