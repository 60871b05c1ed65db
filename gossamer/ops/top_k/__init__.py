"""The greatest or smallest elements along one dimension, and their indices."""

from gossamer.ops.op import Op
from gossamer.ops.top_k.host import NumpyTopK
from gossamer.ops.top_k.problem import TopKProblem
from gossamer.ops.top_k.reference import reference
from gossamer.ops.top_k.rounds import RoundsTopK

OP = Op("top_k", TopKProblem, reference, (NumpyTopK(), RoundsTopK()))
