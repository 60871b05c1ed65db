"""Padding and cropping."""

from gossamer.ops.op import Op
from gossamer.ops.pad.direct import DirectPad
from gossamer.ops.pad.host import NumpyPad
from gossamer.ops.pad.packed import PackedPad
from gossamer.ops.pad.problem import PadProblem
from gossamer.ops.pad.reference import reference

OP = Op("pad", PadProblem, reference, (NumpyPad(), DirectPad(), PackedPad()))
