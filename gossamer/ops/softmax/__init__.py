"""Softmax and its logarithm along one dimension."""

from gossamer.ops.op import Op
from gossamer.ops.softmax.host import NumpySoftmax
from gossamer.ops.softmax.problem import SoftmaxProblem
from gossamer.ops.softmax.reference import reference
from gossamer.ops.softmax.tree import TreeSoftmax

OP = Op("softmax", SoftmaxProblem, reference, (NumpySoftmax(), TreeSoftmax()))
