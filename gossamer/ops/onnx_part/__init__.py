"""Nodes of an ONNX file that gossamer does not compute: ONNX Runtime computes them on the host."""

from gossamer.ops.onnx_part.host import OnnxRuntimePart, reference
from gossamer.ops.onnx_part.problem import OnnxPartProblem
from gossamer.ops.op import Op

OP = Op("onnx_part", OnnxPartProblem, reference, (OnnxRuntimePart(),))
