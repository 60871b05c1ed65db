"""Computation of networks on a Ray cluster, for the blocks of a data set.

Ray schedules the work, moves the blocks, and repeats the work of a lost worker. gossamer sends each
worker its plan once, and copies the measurements of one worker to all workers with the same kind of
device.
"""

from gossamer.ray.cluster import connect, shared_out
from gossamer.ray.data import map_batches, map_pictures

__all__ = ["connect", "map_batches", "map_pictures", "shared_out"]
