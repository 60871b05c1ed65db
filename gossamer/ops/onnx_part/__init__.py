"""Parts of a network that ONNX Runtime computes on the host, since nothing else does."""

from gossamer.ops.onnx_part.host import OnnxRuntimePart
from gossamer.ops.onnx_part.problem import OnnxPartProblem
from gossamer.ops.onnx_part.reference import reference
from gossamer.ops.op import Op

OP = Op("onnx_part", OnnxPartProblem, reference, (OnnxRuntimePart(),))
