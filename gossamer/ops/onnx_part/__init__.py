"""The op of ONNX nodes that only ONNX Runtime computes."""

from gossamer.ops.onnx_part.host import OnnxRuntimePart, reference
from gossamer.ops.onnx_part.problem import OnnxPartProblem
from gossamer.ops.op import Op

OP = Op("onnx_part", OnnxPartProblem, reference, (OnnxRuntimePart(),))
