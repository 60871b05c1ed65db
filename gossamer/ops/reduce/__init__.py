"""Sums, means and maxima over some dimensions."""

from gossamer.ops.op import Op
from gossamer.ops.reduce.host import NumpyReduce
from gossamer.ops.reduce.problem import ReduceProblem
from gossamer.ops.reduce.reference import reference
from gossamer.ops.reduce.tree import TreeReduce

OP = Op("reduce", ReduceProblem, reference, (NumpyReduce(), TreeReduce()))
