"""Training of fully connected networks by back-propagation."""

from gossamer.ops.backprop.batched import Batched
from gossamer.ops.backprop.blocked.blocked import Blocked
from gossamer.ops.backprop.host import NumpyBackprop
from gossamer.ops.backprop.per_step import PerStep
from gossamer.ops.backprop.persistent import Persistent
from gossamer.ops.backprop.problem import BackpropProblem, reference
from gossamer.ops.op import Op

OP = Op("backprop", BackpropProblem, reference,
        (Persistent(), Blocked(), Batched(), PerStep(), NumpyBackprop()))
