"""Layer norm and RMS norm over some dimensions."""

from gossamer.ops.layer_norm.host import NumpyLayerNorm
from gossamer.ops.layer_norm.one_pass import OnePassLayerNorm
from gossamer.ops.layer_norm.problem import LayerNormProblem
from gossamer.ops.layer_norm.reference import reference
from gossamer.ops.op import Op

OP = Op("layer_norm", LayerNormProblem, reference, (NumpyLayerNorm(), OnePassLayerNorm()))
