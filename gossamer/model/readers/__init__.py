"""Readers of the files that networks and their tensors are stored in."""
