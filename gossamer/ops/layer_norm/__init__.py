"""Algorithms of layer norm and RMS norm over some dimensions."""

from __future__ import annotations

from gossamer.expression import Composer, Value
from gossamer.ops.layer_norm.problem import LayerNormProblem, layer_norm, reference
from gossamer.ops.op import Op
from gossamer.ops.rows.algorithm import RowAlgorithm
from gossamer.ops.rows.expression import Phase, RowExpression, RowOperand, rows_along
from gossamer.ops.strided import HostAlgorithm


class NumpyLayerNorm(HostAlgorithm):
    """Layer norm in float32, with the variance computed from centred values."""

    op = "layer_norm"
    compute = staticmethod(layer_norm)


class OnePassLayerNorm(RowAlgorithm):
    """A row expression with the mean and the variance of a row as reductions.

    The variance is computed as the mean square of the centred values. The mean square of the
    values, minus the square of their mean, would lose digits, because both numbers can be large.
    """

    op = "layer_norm"
    name = "one_pass"

    def expression(self, problem: LayerNormProblem) -> RowExpression:
        sizes, reduced, own = rows_along(problem.input.shape, problem.axes)
        normalised = tuple(own[axis] for axis in problem.axes)
        reads = {"x": 0, "scale": 1, "bias": 2, "mean": -1,
                 "variance": -2 if problem.centred else -1}

        def phase(kind: str, value: Value) -> Phase:
            names, expression = value.composer.build(value)
            return Phase(kind, tuple(reads[name] for name in names), expression)

        x = centred = Composer().operand("x")
        if problem.centred:
            centred = x - "mean"
        deviation = (x.composer.operand("variance") + problem.epsilon).apply("sqrt")
        phases = [phase("mean", centred * centred),
                  phase("", centred / deviation * "scale" + "bias")]
        if problem.centred:
            phases.insert(0, phase("mean", x))
        return RowExpression(sizes, reduced, (
            RowOperand(own), RowOperand(normalised, "scale"), RowOperand(normalised, "bias")),
            tuple(phases), own)


OP = Op("layer_norm", LayerNormProblem, reference, (NumpyLayerNorm(), OnePassLayerNorm()))
