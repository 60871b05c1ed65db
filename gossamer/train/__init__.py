"""Training of small fully connected networks by back-propagation."""

from gossamer.train.data.dataset import Preparation
from gossamer.train.loop.train_state import Progress
from gossamer.train.mlp import MLP

__all__ = ["MLP", "Preparation", "Progress"]
