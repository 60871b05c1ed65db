"""Squeeze-and-excite layers as one kernel."""
