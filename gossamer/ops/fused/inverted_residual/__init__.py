"""Inverted residual blocks and separable convolutions as one kernel, in which the expanded tensor
stays on the chip."""
