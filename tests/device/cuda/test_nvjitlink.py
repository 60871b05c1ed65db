"""Tests of the assembler of PTX, without a GPU."""

from __future__ import annotations

import pytest

from gossamer.device.cuda.ptx import PtxProgram
from gossamer.errors import CompileError

nvjitlink = pytest.importorskip("gossamer.device.cuda.nvjitlink", exc_type=ImportError)


def test_an_error_of_the_assembler_is_told() -> None:
    wrong = PtxProgram("wrong", ".visible .entry wrong() { no.such; }")
    with pytest.raises(CompileError, match="known instruction: 'no'"):
        nvjitlink.build(wrong, "sm_90")


def test_a_program_that_is_generated_is_assembled() -> None:
    program = PtxProgram("a", ".visible .entry a() { exit; }")
    assert b".text.a" in nvjitlink.assembled(lambda: program, "sm_90")
