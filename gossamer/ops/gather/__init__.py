"""Gathering of slices by index."""

from gossamer.ops.gather.direct import DirectGather
from gossamer.ops.gather.host import NumpyGather
from gossamer.ops.gather.problem import GatherProblem
from gossamer.ops.gather.reference import reference
from gossamer.ops.op import Op

OP = Op("gather", GatherProblem, reference, (NumpyGather(), DirectGather()))
