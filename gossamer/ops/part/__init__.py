"""The op of parts of a network that are computed by a network library (ONNX Runtime)."""

from gossamer.ops.fused.problem import PartProblem, reference
from gossamer.ops.op import Op
from gossamer.ops.part.host import OnnxRuntime

OP = Op("part", PartProblem, reference, (OnnxRuntime(),))
