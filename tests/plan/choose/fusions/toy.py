"""A toy algorithm that computes three convolutions in one step, and networks with such blocks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Buffer, Device
from gossamer.device.host import host_array
from gossamer.device.native import processor as native
from gossamer.device.registry import find
from gossamer.expression import apply, identity
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.ops.algorithm import State, Variant
from gossamer.ops.fused.algorithm import FusionAlgorithm
from gossamer.ops.fused.problem import FusionProblem, reference
from gossamer.ops.registry import OPS
from gossamer.ops.weights import Weights
from gossamer.plan.candidate import Candidate
from gossamer.plan.choose import refine
from gossamer.plan.plan import Plan
from gossamer.plan.policy import Policy
from gossamer.plan.store.tuning_cache import TuningCache
from gossamer.plan.tune.rows import LayerCandidates
from gossamer.plan.tune.tuner import Tuner
from gossamer.tensor import pack, unpack

NAME = "toy_fusion"
LAYERS = ["grow0", "middle0", "shrink0"]
"""The layers of the first block, and below the name of the fusion that covers them."""
FUSION = " + ".join(LAYERS)
ALONE_US = 10.0
"""The time that each layer alone counts as."""


class FusedBlock(FusionAlgorithm):
    """Three convolutions one after another, of which nobody else reads the values between."""

    name = NAME
    patterns = (("conv2d", "conv2d", "conv2d"),)

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        if problem.exits != ((2, 0),):
            return "a value inside the block is read elsewhere"
        return None

    def variants(self, problem: FusionProblem, device: Device) -> Iterable[Variant]:
        for tile in (1, 2):
            plain = [Variant((("tile", tile),), *(
                tuple(spec.with_format(layout=layout) for spec in specs)
                for specs in (problem.inputs, problem.outputs))) for layout in ("NCHW", "NHWC")]
            yield from (*plain, *(variant.as_fp16 for variant in plain))

    def prepare(self, weights: Weights, problem: FusionProblem, variant: Variant,
                device: Device) -> State:
        return State(problem, variant, device, data=weights.arrays)

    def launch(self, state: State, inputs: Sequence[Buffer], outputs: Sequence[Buffer],
               workspace: Buffer | None, stream: Any = None) -> None:
        arrays = [unpack(host_array(buffer, spec), spec)
                  for buffer, spec in zip(inputs, state.variant.inputs, strict=True)]
        results = self.compute(state.problem, arrays, state.data)
        for buffer, spec, result in zip(outputs, state.variant.outputs, results, strict=True):
            host_array(buffer, spec)[...] = pack(result, spec)

    def compute(self, problem: Any, arrays: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, arrays, weights)


class FusedPair(FusedBlock):
    """Two convolutions one after another, of which nobody else reads the value between."""

    name = "fused_pair"
    patterns = (("conv2d", "conv2d"),)

    def supports(self, problem: FusionProblem, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        return None if problem.exits == ((1, 0),) else "the value between is read elsewhere"


def blocks(count: int, *, second_reader: bool = False) -> Graph:
    """Returns a network of residual blocks: two ordinary convolutions, and one that adds the
    block's input.

    second_reader: whether the value after the first convolution is an output of the network too.
    """
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {}
    nodes = []

    def conv(name: str, x: str, *operands: str) -> str:
        constants[f"{name}.w"] = (rng.standard_normal((4, 4, 1, 1)) / 2).astype(np.float32)
        nodes.append(Node("conv2d", name, [x, f"{name}.w", *operands], [f"{name}.y"], {
            "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1,
            "epilogue": apply("add") if operands else identity()}, f"Conv '{name}'"))
        return f"{name}.y"

    x = "x"
    for index in range(count):
        grown = conv(f"grow{index}", x)
        x = conv(f"shrink{index}", conv(f"middle{index}", grown), x)
    outputs = [ValueInfo(x, (None, 4, 3, 3))]
    if second_reader:
        outputs.append(ValueInfo("grow0.y", (None, 4, 3, 3)))
    return Graph("blocks", [ValueInfo("x", (None, 4, 3, 3))], outputs, nodes, constants)


def images(batch: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 4, 3, 3)).astype(np.float32)


def with_algorithm(monkeypatch: pytest.MonkeyPatch, *algorithms: FusionAlgorithm) -> None:
    monkeypatch.setitem(OPS, "fused", replace(OPS["fused"], algorithms=algorithms))


def set_costs(monkeypatch: pytest.MonkeyPatch, fused: float, conversion: float = 1.0, *,
              fused_fp16: float | None = None) -> None:
    """Sets the times of candidates: of a convolution alone, of a fused block and of a change of
    format; candidates that do not work stay excluded. fused_fp16: the time of a fused block in
    float16, by default that in float32."""
    fp16 = fused if fused_fp16 is None else fused_fp16

    def cost(self: Candidate) -> float:
        times = {"fused": fp16 if self.variant.precision == "fp16" else fused, "copy": conversion}
        return math.inf if self.measured.failure else times.get(self.algorithm.op, ALONE_US)

    monkeypatch.setattr(Candidate, "cost", property(cost))
    # layers have the same algorithms with or without llvmlite
    monkeypatch.setattr(native, "absent", lambda: "left out")
    # none is left out by the time that it really takes
    monkeypatch.setattr(LayerCandidates, "limit_us", lambda *arguments: math.inf)


def make_plan(graph: Graph, folder: Path, device: str = "host", **policy: Any) -> Plan:
    """Returns a plan whose measurements are kept in a folder."""
    opened = find(device)
    tuner = Tuner(opened, "quick", precision=policy.get("precision", "fp32"),
                  keeps_precisions="tolerance" in policy,
                  cache=TuningCache(opened, folder / "tuning"))
    return Plan(graph, opened, Policy(effort="quick", **policy), tuner=tuner)


def step_names(plan: Plan, batch: int = 2) -> list[str]:
    return [step.layer.name for step in plan.program(batch).steps if not step.layer.inserted]


def no_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the measured choice without a comparison with other assignments."""
    monkeypatch.setattr(refine, "_restrictions", lambda *arguments: {})
