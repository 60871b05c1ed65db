"""The logger `gossamer` and the levels of GOSSAMER_DEBUG."""

from __future__ import annotations

import logging

import pytest

from gossamer import debug


def test_a_program_gets_the_lines_by_its_own_handlers(
        caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("GOSSAMER_DEBUG", raising=False)
    assert debug.level() == 0
    with caplog.at_level(logging.DEBUG, "gossamer"):
        assert debug.level() == 2
        debug.show("100% of a layer")
    assert [(record.name, record.getMessage()) for record in caplog.records] == [
        ("gossamer", "100% of a layer")]
    assert capsys.readouterr().err == ""


def test_the_environment_prints_them(monkeypatch: pytest.MonkeyPatch,
                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GOSSAMER_DEBUG", "2")
    debug.show("a line")
    assert debug.level() == 2 and capsys.readouterr().err == "a line\n"
    monkeypatch.setenv("GOSSAMER_DEBUG", "yes")
    assert debug.level() == 1
