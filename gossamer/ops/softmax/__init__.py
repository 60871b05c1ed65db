"""Algorithms of the softmax and of its logarithm along one dimension."""

from __future__ import annotations

from gossamer.expression import Composer, Value
from gossamer.ops.op import Op
from gossamer.ops.rows.algorithm import RowAlgorithm
from gossamer.ops.rows.expression import Phase, RowExpression, RowOperand, rows_along
from gossamer.ops.softmax.host_direct import HostDirectSoftmax
from gossamer.ops.softmax.problem import SoftmaxProblem, reference, softmax
from gossamer.ops.strided import HostAlgorithm


class NumpySoftmax(HostAlgorithm):
    """Softmax in NumPy.

    The maximum is subtracted first, so that no exponential overflows.
    """

    op = "softmax"
    compute = staticmethod(softmax)


class OnePassSoftmax(RowAlgorithm):
    """A row expression with the maximum and the sum of the exponentials as reductions."""

    op = "softmax"
    name = "one_pass"

    def expression(self, problem: SoftmaxProblem) -> RowExpression:
        sizes, reduced, own = rows_along(problem.input.shape, (problem.axis,))
        reads = {"x": 0, "largest": -1, "total": -2}

        def phase(kind: str, value: Value) -> Phase:
            names, expression = value.composer.build(value)
            return Phase(kind, tuple(reads[name] for name in names), expression)

        x = Composer().operand("x")
        shifted, total = x - "largest", x.composer.operand("total")
        result = shifted - total.apply("log") if problem.log else shifted.apply("exp") / total
        return RowExpression(sizes, reduced, (RowOperand(own),), (
            phase("max", x), phase("sum", shifted.apply("exp")), phase("", result)), own)


OP = Op("softmax", SoftmaxProblem, reference,
        (NumpySoftmax(), HostDirectSoftmax(), OnePassSoftmax()))
