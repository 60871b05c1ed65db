"""Strided copies: transposes, slices, splits, broadcasts and changes of format."""

from gossamer.ops.copy.host import NumpyCopy
from gossamer.ops.copy.packed import PackedCopy
from gossamer.ops.copy.problem import CopyProblem
from gossamer.ops.copy.reference import reference
from gossamer.ops.copy.strided import StridedCopy
from gossamer.ops.op import Op

OP = Op("copy", CopyProblem, reference, (NumpyCopy(), StridedCopy(), PackedCopy()))
