"""Resizing of H and W by the nearest element or by linear interpolation."""

from gossamer.ops.op import Op
from gossamer.ops.resize.host import NumpyResize
from gossamer.ops.resize.problem import ResizeProblem
from gossamer.ops.resize.reference import reference
from gossamer.ops.resize.tables import TableResize

OP = Op("resize", ResizeProblem, reference, (NumpyResize(), TableResize()))
