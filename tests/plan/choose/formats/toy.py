"""Toy algorithms on the host that read or write formats which no algorithm of gossamer's uses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gossamer.device.base import Device
from gossamer.expression import Expression, ExpressionStep, apply
from gossamer.facts import ValueFacts
from gossamer.model.graph import Graph, Node, ValueInfo
from gossamer.ops.algorithm import Algorithm, Variant
from gossamer.ops.conv2d.problem import Conv2dProblem, reference
from gossamer.ops.registry import OPS
from gossamer.ops.strided import HostAlgorithm
from gossamer.plan.candidate import Candidate
from gossamer.tensor import Format

PLUS_OR_MINUS = Expression(1, (
    ExpressionStep("constant", (), (0.0,)), ExpressionStep("less", (0, 1)),
    ExpressionStep("constant", (), (-1.0,)), ExpressionStep("constant", (), (1.0,)),
    ExpressionStep("where", (2, 3, 4))))
"""-1 where the value is below 0, else 1."""

EPILOGUES = {"binary": PLUS_OR_MINUS, "ternary": apply("sign"), "real": apply("relu")}


class ToyConv(HostAlgorithm):
    """A convolution that reads its input and writes its output in given formats.

    facts: what it must know of the values of its input; None for any. epilogue: the only epilogue
    that it computes; None for any.
    """

    op = "conv2d"

    def __init__(self, name: str, *, reads: Format | None = None, writes: Format | None = None,
                 facts: ValueFacts | None = None, epilogue: Expression | None = None) -> None:
        self.name = name  # type: ignore[misc]
        self._reads, self._writes = reads, writes
        self._facts, self._epilogue = facts, epilogue

    def supports(self, problem: Conv2dProblem, device: Device) -> str | None:
        if device.compiles:
            return "runs on the host only"
        if self._facts is not None and problem.facts[:1] != (self._facts,):
            return f"reads values of {self._facts}"
        if self._epilogue not in (None, problem.epilogue.expression):
            return "computes another epilogue"
        return None

    def variants(self, problem: Conv2dProblem, device: Device) -> Iterable[Variant]:
        (x,), (y,) = problem.inputs, problem.outputs
        return [Variant((), (x if self._reads is None else replace(x, format=self._reads),),
                        (y if self._writes is None else replace(y, format=self._writes),))]

    def compute(self, problem: Any, inputs: Sequence[np.ndarray],
                weights: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        return reference(problem, inputs, weights)


def two_layers(kind: str, *, middle_is_output: bool = False) -> Graph:
    """Returns a network of two convolutions. kind: the values between them, a key of EPILOGUES.
    middle_is_output: whether these are an output of the network too."""
    rng = np.random.default_rng(0)
    constants = {f"w{index}": rng.choice(np.float32([-1, 1]), (5, 5, 3, 3)) for index in range(2)}
    constants["w0"] *= rng.uniform(0.5, 1.5, (5, 5, 3, 3)).astype(np.float32)
    nodes = [Node("conv2d", f"conv{index}", [x, f"w{index}"], [y], {
        "strides": (1, 1), "pads": (1, 1, 1, 1), "dilations": (1, 1), "groups": 1,
        "epilogue": epilogue}, f"Conv 'conv{index}'")
        for index, (x, y, epilogue) in enumerate([("x", "middle", EPILOGUES[kind]),
                                                  ("middle", "y", apply("relu"))])]
    outputs = [ValueInfo("y", (None, 5, 6, 6))]
    if middle_is_output:
        outputs.append(ValueInfo("middle", (None, 5, 6, 6)))
    return Graph(kind, [ValueInfo("x", (None, 5, 6, 6))], outputs, nodes, constants)


def images(batch: int = 2) -> np.ndarray:
    return np.random.default_rng(1).standard_normal((batch, 5, 6, 6)).astype(np.float32)


def add_algorithms(monkeypatch: pytest.MonkeyPatch, *algorithms: Algorithm) -> None:
    op = OPS["conv2d"]
    monkeypatch.setitem(OPS, "conv2d", replace(op, algorithms=(*op.algorithms, *algorithms)))


def set_costs(monkeypatch: pytest.MonkeyPatch, toy: float, conversion: float) -> None:
    """Sets the times of candidates: of a toy algorithm, of a conversion, and of any other (10)."""
    def cost(self: Candidate) -> float:
        if self.measured.failure:
            return float("inf")
        if isinstance(self.algorithm, ToyConv):
            return toy
        return conversion if self.algorithm.op == "copy" else 10.0

    monkeypatch.setattr(Candidate, "cost", property(cost))
