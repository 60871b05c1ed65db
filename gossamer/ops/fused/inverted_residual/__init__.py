"""Inverted residual blocks and separable convolutions in one kernel."""
