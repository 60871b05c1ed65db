"""The options --calibration and --tolerance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from gossamer.plan.tune.tuner import Tuner
from tests.cli.compile.command import Run, compile_
from tests.model.onnx_models import model, save
from tests.plan.small import images


def test_calibration_tells_the_error_of_the_outputs(run: Run, network: Path,
                                                    tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", images(3))
    result = compile_(run, network, "--calibration", tmp_path / "x.npy", "--precision", "fp16",
                      "--tolerance", "1e-3", "--json")
    (report,) = json.loads(result.stdout)["reports"]
    assert 0 < report["accuracy"]["error"] < 1e-3
    assert report["accuracy"]["images"] == 3 and report["accuracy"]["tolerance"] == 1e-3
    assert any("on 3 calibration images" in note for note in report["notes"])


def test_calibration_images_that_are_mixed_are_refused_before_anything_is_measured(
        run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(model([helper.make_node("Softmax", ["x"], ["y"], "it", axis=0)],
                      {"x": ["N", 3, 6, 5]}, {"y": 4}), tmp_path)
    np.save(tmp_path / "x.npy", images(3))
    words = ("--calibration", tmp_path / "x.npy", "--batch")
    compile_(run, path, *words, "3")
    monkeypatch.setattr(Tuner, "measure", None)
    result = compile_(run, path, *words, "3,4", code=2)
    assert result.stderr.startswith("error: the calibration inputs hold 3 images, expected 4 for "
                                    "batch 4: Softmax 'it' works across axis 0")
