"""A network with two choices, and a way to set the times of its programs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import pytest
from onnx import helper

from gossamer.device.native import processor as native
from gossamer.measure import Task, Timing
from gossamer.plan.choose import plan_times
from gossamer.plan.plan import Plan
from gossamer.plan.program import Program
from tests.model.onnx_models import model, weights

DEPTHWISE, DENSE = "host_depthwise", "host_im2col"
CHOICE = "measured choice"
OTHER = "second choice"


def separable() -> onnx.ModelProto:
    """Returns a network with a depthwise layer, which a dense algorithm can compute too, between
    two ordinary layers."""
    node = helper.make_node
    return model([node("Conv", ["x", "w0"], ["a"], "grow"),
                  node("Conv", ["a", "w1"], ["b"], "thin", group=6, pads=[1, 1, 1, 1]),
                  node("Conv", ["b", "w2"], ["y"], "shrink")],
                 {"x": ["N", 3, 7, 7]}, {"y": 4},
                 {"w0": weights(6, 3, 1, 1), "w1": weights(6, 1, 3, 3, seed=1),
                  "w2": weights(2, 6, 1, 1, seed=2)})


def algorithm(program: Program) -> str:
    """Returns the algorithm of the depthwise layer."""
    (step,) = [step for step in program.steps if step.layer.name == "thin"]
    return step.algorithm.name


def reset(monkeypatch: pytest.MonkeyPatch, **times: float) -> list[list[str]]:
    """Sets the times of programs by the algorithm of their depthwise layer, with quartiles 2% away.
    Returns a list to which each round of timing adds the algorithms that are timed together. The
    layers have two algorithms with or without llvmlite."""
    rounds: list[list[str]] = []
    monkeypatch.setattr(native, "absent", lambda: "left out")

    def interleave(tasks: Sequence[Task], **options: float) -> list[Timing]:
        programs = [task.work.__self__.program for task in tasks]  # type: ignore[attr-defined]
        rounds.append([algorithm(program) for program in programs])
        return [Timing(time, 0.98 * time, 1.02 * time, 20)
                for time in (times[name] for name in rounds[-1])]

    monkeypatch.setattr(plan_times, "interleave", interleave)
    return rounds


def outcomes(plan: Plan) -> dict[str, str]:
    return {row["plan"]: row["outcome"] for row in plan.report(2).plans}
