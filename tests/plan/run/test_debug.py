"""Debug levels, and shapes that are given when a network is compiled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from onnx import helper

import gossamer
from gossamer import debug
from gossamer.device.base import Device
from tests.model.onnx_models import model, save, weights
from tests.plan.small import assert_close, compiled, expected, images, small


@pytest.mark.parametrize(("text", "level"), [("", 0), ("0", 0), ("1", 1), ("3", 3), ("9", 4),
                                             ("-1", 0), ("yes", 1)])
def test_levels(monkeypatch: pytest.MonkeyPatch, text: str, level: int) -> None:
    monkeypatch.setenv("GOSSAMER_DEBUG", text)
    assert debug.level() == level


@pytest.mark.parametrize("level", [2, 3, 4])
def test_layers_tell_what_they_did(device: Device, monkeypatch: pytest.MonkeyPatch,
                                   capsys: pytest.CaptureFixture[str], tmp_path: Path,
                                   level: int) -> None:
    plan = compiled(small(), device, tmp_path)
    monkeypatch.setenv("GOSSAMER_DEBUG", str(level))
    x = images(2)
    assert_close(plan(x), expected(x))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(plan.program(2).steps)
    assert all("GFLOP/s" in line and "GB/s" in line for line in lines)
    assert any("; not " in line for line in lines) == (level >= 3)
    # reasons why other algorithms were not chosen may name registers too
    told = any(re.search(r": \S+ registers, \S+ bytes spilled", line) for line in lines)
    assert told == (level >= 4 and device.compiles)


@pytest.mark.library_parts
def test_layers_tell_what_they_did_where_onnx_runtime_computes_all(
        monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = images(2), expected(images(2))
    for level, lines in (("1", 0), ("2", 1)):
        monkeypatch.setenv("GOSSAMER_DEBUG", level)
        plan = gossamer.compile(small(), "host")
        capsys.readouterr()
        assert_close(plan(x), y)
        told = [line for line in capsys.readouterr().err.splitlines() if "GFLOP/s" in line]
        assert [step.algorithm.name for step in plan.program(2).steps] == ["onnxruntime"]
        assert len(told) == lines


def test_open_dimensions_are_set_from_python(tmp_path: Path) -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"], "conv")],
                  {"x": ["N", 3, "H", "W"]}, {"y": 4}, {"w": weights(4, 3, 3, 3)})
    path = str(save(proto, tmp_path))
    with pytest.raises(gossamer.GossamerError, match=r"compile\(\.\.\., shapes="):
        gossamer.compile(path, ["host", "host"])
    plan = gossamer.compile(path, "host", shapes={"x": (3, 8, 9)})
    assert plan(images(1).repeat(3, axis=2)[:, :, :8].repeat(2, axis=3)[..., :9]).shape == (
        1, 4, 6, 7)
