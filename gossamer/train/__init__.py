"""Training of small fully connected networks by back-propagation."""

from gossamer.train.data.preparation import Preparation
from gossamer.train.loop.progress import Progress
from gossamer.train.many import ManyResult, cross_validate, sweep, train_many
from gossamer.train.mlp import MLP

__all__ = ["MLP", "ManyResult", "Preparation", "Progress", "cross_validate", "sweep", "train_many"]
