"""Parts of a network, or a whole network, that a library for whole networks computes."""

from gossamer.ops.fused.problem import PartProblem, reference
from gossamer.ops.op import Op
from gossamer.ops.part.host import OnnxRuntime

OP = Op("part", PartProblem, reference, (OnnxRuntime(),))
