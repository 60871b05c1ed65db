"""Inverted residual blocks and separable convolutions as one kernel."""
