"""Training of small fully connected networks by back-propagation."""

from gossamer.train.many import ManyResult, cross_validate, sweep, train_many
from gossamer.train.mlp import MLP
from gossamer.train.preparation import Preparation
from gossamer.train.progress import Progress

__all__ = ["MLP", "ManyResult", "Preparation", "Progress", "cross_validate", "sweep", "train_many"]
