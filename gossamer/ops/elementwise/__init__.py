"""Element-wise arithmetic: all steps of an expression in one problem."""

from gossamer.ops.elementwise.fused import FusedElementwise
from gossamer.ops.elementwise.host import NumpyElementwise
from gossamer.ops.elementwise.packed import PackedElementwise
from gossamer.ops.elementwise.problem import ElementwiseProblem
from gossamer.ops.elementwise.published import PublishedLeaky
from gossamer.ops.elementwise.reference import reference
from gossamer.ops.op import Op

OP = Op("elementwise", ElementwiseProblem, reference,
        (NumpyElementwise(), FusedElementwise(), PackedElementwise(), PublishedLeaky()))
