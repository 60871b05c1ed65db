"""Training of small fully connected networks by back-propagation."""

from gossamer.train.data.dataset import Preparation
from gossamer.train.loop.train_state import Progress
from gossamer.train.many import ManyResult, cross_validate, sweep, train_many
from gossamer.train.mlp import MLP

__all__ = ["MLP", "ManyResult", "Preparation", "Progress", "cross_validate", "sweep", "train_many"]
