"""Concatenation of tensors along an axis."""

from gossamer.ops.concat.host import NumpyConcat
from gossamer.ops.concat.packed import PackedConcat
from gossamer.ops.concat.problem import ConcatProblem
from gossamer.ops.concat.reference import reference
from gossamer.ops.concat.slices import SliceCopies
from gossamer.ops.op import Op

OP = Op("concat", ConcatProblem, reference, (NumpyConcat(), SliceCopies(), PackedConcat()))
