"""The verb `run` with plans that the verb `compile` saved."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import Result
from PIL import Image

import gossamer
from gossamer.device import blas
from gossamer.plan.tune.tuner import Tuner
from tests.cli.command_line import run_on
from tests.cli.compile.command import Run, compile_
from tests.plan.small import assert_close, expected, images


def test_run_takes_a_saved_plan(run: Run, network: Path, tmp_path: Path,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    compile_(run, network, "-o", tmp_path / "small.plan")
    monkeypatch.setattr(Tuner, "measure_all", None)
    x = images(2)
    result, y = run_on(tmp_path / "small.plan", x, "--table")
    assert "batch 2 was not planned: the choices are those of batch 1" in result.stdout
    assert "end to end, batch 2" in result.stdout
    assert_close(y, expected(x))
    np.testing.assert_array_equal(y, gossamer.Plan.load(tmp_path / "small.plan")(x))


def test_a_plan_of_other_threads_runs_with_a_notice(
        run: Run, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = tmp_path / "small.plan"
    monkeypatch.setattr(blas, "threads", lambda: 2)
    compile_(run, network, "-o", plan)
    monkeypatch.setattr(blas, "threads", lambda: 1)
    result, _ = run_on(plan, images(1))
    assert f"notice: {plan}: was made with " in result.stderr
    assert f"`gossamer compile MODEL --device host -o {plan}`" in result.stderr
    assert "was made with" not in result.stdout and "host ran all" in result.stdout


def test_run_prepares_photos_as_the_network_and_its_plan_say(run: Run, network: Path,
                                                             tmp_path: Path) -> None:
    photo = np.random.default_rng(0).integers(0, 256, (6, 5, 3), dtype=np.uint8)
    Image.fromarray(photo).save(tmp_path / "photo.png")
    plan = tmp_path / "small.plan"

    def results() -> list[Result]:
        """The results of the network's file and of its plan."""
        compile_(run, network, "-o", plan)
        both = [run("run", model, "--image", tmp_path / "photo.png", "--strict", "--json")
                for model in (network, plan)]
        assert [result.exit_code for result in both] == [0, 0]
        return both

    assumed = results()
    assert all("assuming ImageNet's preprocessing" in result.stderr for result in assumed)
    model = onnx.load(network)
    onnx.helper.set_model_props(model, {"preprocessing": '{"channels": "bgr", "mean": [1, 2, 3]}'})
    onnx.save(model, network)
    told = results()
    assert [result.stderr for result in told] == ["", ""]
    answers = [json.loads(result.stdout)["results"] for result in (*told, *assumed)]
    assert answers[0] == answers[1] != answers[2]


def test_the_name_of_a_graph_tells_nothing(run: Run, network: Path, tmp_path: Path) -> None:
    model = onnx.load(network)
    model.graph.name = "mobilenet_v2"
    onnx.save(model, network)
    compile_(run, network, "-o", tmp_path / "small.plan")
    Image.fromarray(np.zeros((6, 5, 3), np.uint8)).save(tmp_path / "photo.png")
    result = run("run", tmp_path / "small.plan", "--image", tmp_path / "photo.png")
    assert "assuming ImageNet's preprocessing" in result.stderr
